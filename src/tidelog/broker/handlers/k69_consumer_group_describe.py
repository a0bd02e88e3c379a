"""ConsumerGroupDescribe: epochs, members, what they have and what they should have (KIP-848).

A classic group is GROUP_ID_NOT_FOUND here: clients then ask with DescribeGroups.
Versions: 1 says which members speak the classic protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.broker import authorized_operations
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.assignors import NO_SLOTS, Slot
from tidelog.coordinators.groups.consumer_group import ConsumerGroup
from tidelog.coordinators.groups.consumer_members import by_topic
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
    DescribedMember,
    TopicPartitions,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_CLASSIC, _CONSUMER = 0, 1  # kinds of members


@api(ConsumerGroupDescribeRequest, versions=(0, 1), needs="DESCRIBE GROUP")
def consumer_group_describe(
    broker: Broker, message: ConsumerGroupDescribeRequest, request: Request
) -> ConsumerGroupDescribeResponse:
    """Describe consumer groups of the new protocol."""
    groups = [_describe(broker, group_id) for group_id in message.group_ids]
    for group in groups:
        if not group.error_code:
            group.authorized_operations = authorized_operations.on_group(
                message.include_authorized_operations
            )
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(broker: Broker, group_id: str) -> DescribedConsumerGroup:
    try:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = broker.groups.group(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        if not isinstance(group, ConsumerGroup):
            text = f"group {group_id!r} is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)
    except ApiError as error:
        return DescribedConsumerGroup(
            error_code=error.code,
            error_message=error.message,
            group_id=group_id,
            group_state=GroupState.DEAD if error.code == ErrorCode.GROUP_ID_NOT_FOUND else "",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=[],
        )
    names = broker.metadata.topic_names
    return DescribedConsumerGroup(
        error_code=0,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[
            DescribedMember(
                member_id=member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=f"/{member.client_host}",  # as Java writes an address
                subscribed_topic_names=sorted(member.topics),
                subscribed_topic_regex=member.regex or None,
                assignment=_assignment(member.assigned, names),
                target_assignment=_assignment(group.image.targets.get(member_id, NO_SLOTS), names),
                member_type=_CONSUMER if member.classic is None else _CLASSIC,
            )
            for member_id, member in group.members.items()
        ],
    )


def _assignment(slots: Iterable[Slot], names: Mapping[bytes, str]) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(
                topic_id=row.topic_id, topic_name=names[row.topic_id], partitions=row.partitions
            )
            for row in by_topic(slots)
            if row.topic_id in names  # what was deleted has no name
        ]
    )
