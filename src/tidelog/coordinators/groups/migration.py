"""A classic group becomes a consumer group, and one of these a classic group again (KIP-848).

So members can be moved to the other protocol one after the other, while the group works.
Upgrade: when the first member comes with the new protocol.  Downgrade: when the last one of
these has gone.  Offsets belong to the group's id and are not touched.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.coordinators.groups.classic_group import ClassicGroup
from tidelog.coordinators.groups.consumer_group import ConsumerGroup
from tidelog.coordinators.groups.consumer_members import Classic, ConsumerMember
from tidelog.coordinators.groups.records import (
    GroupMetadataValue,
    MemberMetadata,
)
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata
from tidelog.wire.consumer_protocol import PROTOCOL_TYPE, assigned_partitions, subscribed_topics


def upgrade(
    classic: ClassicGroup, make: Callable[[str, Timeline], ConsumerGroup], metadata: ClusterMetadata
) -> ConsumerGroup:
    """The same group, for the new protocol.  Raises if that cannot be."""
    group = make(classic.group_id, classic.timeline)
    if not classic.members:
        return group
    reason = _why_not(classic, group)
    if reason:
        message = f"group {classic.group_id!r} is a classic group, and stays one: {reason}"
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)
    group.image.epoch = group.image.target_epoch = classic.generation
    for old in classic.members.values():
        name, subscription = old.protocols[0]
        protocol = classic.protocol or name
        topics = subscribed_topics(old.metadata(protocol) or subscription)
        member = ConsumerMember(
            old.member_id,
            old.instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            topics=frozenset(topics or ()),
            rebalance_ms=old.rebalance_ms,
            classic=Classic(old.session_ms, old.protocols),
            epoch=classic.generation,
            previous_epoch=classic.generation,
            assigned=frozenset(
                (metadata.topics[topic].topic_id, index)
                for topic, index in assigned_partitions(old.assignment) or ()
                if topic in metadata.topics
            ),
        )
        group.membership.adopt(member)
    return group


def _why_not(classic: ClassicGroup, group: ConsumerGroup) -> str:
    if not group.limits.upgrade:
        return "group.consumer.migration.policy allows no upgrade"
    if classic.protocol_type != PROTOCOL_TYPE or classic.subscribed() is None:
        return "its members are no consumers"
    if len(classic.members) >= group.limits.max_size:
        return "it has as many members as group.consumer.max.size allows"
    return ""


def downgrade(group: ConsumerGroup, make: Callable[[str, Timeline], ClassicGroup]) -> ClassicGroup:
    """The same group, for the classic protocol; its members are asked to join again."""
    members = [m for m in group.members.values() if m.classic is not None]
    common = [name for name, _ in _protocols(members[0])]
    for member in members:
        names = {name for name, _ in _protocols(member)}
        common = [name for name in common if name in names]
    protocol = common[0] if common else _protocols(members[0])[0][0]
    value = GroupMetadataValue(
        protocol_type=PROTOCOL_TYPE,
        # Not the group's epoch: members go on, and commit, in the generation that they know.
        generation=max(member.epoch for member in members),
        protocol=protocol,
        leader=members[0].member_id,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_ms,
                session_timeout=member.classic.session_ms,
                subscription=dict(member.classic.protocols).get(protocol, b""),
                assignment=group.classic_assignment(member),
            )
            for member in members
            if member.classic is not None
        ],
    )
    classic = make(group.group_id, group.timeline)
    classic.restore(value)
    classic.converted("the last member with the consumer protocol is gone")
    return classic


def _protocols(member: ConsumerMember) -> tuple[tuple[str, bytes], ...]:
    return member.classic.protocols if member.classic is not None else ()
