"""DescribeGroups: state, members and their assignments.

A group that is not there is ``Dead`` without an error, from version 6 on GROUP_ID_NOT_FOUND.
So is one of the consumer protocol: clients then ask with ConsumerGroupDescribe.
Versions: 1 throttle time; 3 authorized operations; 4 group.instance.id; 5 flexible;
6 error message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker import authorized_operations
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.classic_group import ClassicGroup
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_NOT_FOUND = 6


@api(DescribeGroupsRequest, versions=(0, 6), needs="DESCRIBE GROUP")
def describe_groups(
    broker: Broker, message: DescribeGroupsRequest, request: Request
) -> DescribeGroupsResponse:
    """Describe consumer groups."""
    groups = [_describe(broker, group_id, request.version) for group_id in message.groups]
    for group in groups:
        if not group.error_code:
            group.authorized_operations = authorized_operations.on_group(
                message.include_authorized_operations
            )
    return DescribeGroupsResponse(groups=groups)


def _describe(broker: Broker, group_id: str, version: int) -> DescribedGroup:
    try:
        found = broker.groups.group(group_id)
        group = found if isinstance(found, ClassicGroup) else None
        if group is None and version >= _NOT_FOUND:
            text = f"there is no group {group_id!r}"
            if found is not None:
                text = f"group {group_id!r} is not a classic group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)
    except ApiError as error:
        return _described(group_id, GroupState.DEAD, error.code, error.message)
    if group is None:
        return _described(group_id, GroupState.DEAD)
    described = _described(group_id, group.state)
    described.protocol_type = group.protocol_type or ""
    described.members = _members(group)
    if group.state is GroupState.STABLE:
        described.protocol_data = group.protocol or ""
    return described


def _members(group: ClassicGroup) -> list[DescribedGroupMember]:
    stable = group.state is GroupState.STABLE  # before, no member has an assignment
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=f"/{member.client_host}",  # as Java writes an address
            member_metadata=member.metadata(group.protocol) if stable else b"",
            member_assignment=member.assignment if stable else b"",
        )
        for member in group.members.values()
    ]


def _described(
    group_id: str, state: GroupState, code: int = 0, text: str | None = None
) -> DescribedGroup:
    return DescribedGroup(
        error_code=code,
        error_message=text,
        group_id=group_id,
        group_state=state if not code or code == ErrorCode.GROUP_ID_NOT_FOUND else "",
        protocol_type="",
        protocol_data="",
        members=[],
    )
