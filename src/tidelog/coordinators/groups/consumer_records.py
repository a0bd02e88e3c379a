"""A consumer group as records: what is written when something changes, and read again.

A group marks what has changed (a kind of record and whose); the records are made when they
are written, from the group as it is then.  What is gone gets a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.coordinators.groups.assignors import Slots
from tidelog.coordinators.groups.consumer_image import (
    MEMBER_KINDS,
    ConsumerGroupImage,
    Dirty,
    RecordKind,
)
from tidelog.coordinators.groups.consumer_members import (
    Classic,
    ConsumerMember,
    MemberState,
    by_topic,
    slots_of,
)
from tidelog.coordinators.groups.records import (
    AssignedPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
)
from tidelog.coordinators.records import CoordinatorRecord


def records(image: ConsumerGroupImage, dirty: Iterable[Dirty]) -> list[CoordinatorRecord]:
    """What is to be written.

    Members that are gone come first, and lose what they have before their name: Kafka
    does not read it in another order.
    """

    def order(dirty: Dirty) -> tuple[bool, int, str]:
        kind, name = dirty
        there = kind not in MEMBER_KINDS or name in image.members
        return there, kind if there else -kind, name

    return [_record(image, kind, name) for kind, name in sorted(dirty, key=order)]


def tombstones(image: ConsumerGroupImage) -> list[CoordinatorRecord]:
    """What deletes it all."""
    dirty = sorted(image.everything(), reverse=True)  # what a member has before its name
    rows = [_record(image, kind, name) for kind, name in dirty if kind is not RecordKind.GROUP]
    rows.append(_record(image, RecordKind.GROUP, ""))
    return [CoordinatorRecord(row.key, None) for row in rows]


def _record(image: ConsumerGroupImage, kind: RecordKind, name: str) -> CoordinatorRecord:
    group_id, member = image.group_id, image.members.get(name)
    if kind is RecordKind.CLASSIC:
        return CoordinatorRecord(GroupMetadataKey(group=group_id), None)
    if kind is RecordKind.GROUP:
        return CoordinatorRecord(
            ConsumerGroupMetadataKey(group_id=group_id),
            ConsumerGroupMetadataValue(epoch=image.epoch, metadata_hash=image.metadata_hash),
        )
    if kind is RecordKind.TARGET_EPOCH:
        return CoordinatorRecord(
            ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=image.target_epoch),
        )
    if kind is RecordKind.REGEX:
        return _regex_record(image, name)
    if kind is RecordKind.MEMBER:
        key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=name)
        return CoordinatorRecord(key, None if member is None else _member_value(member))
    if kind is RecordKind.TARGET:
        target = image.targets.get(name)
        rows = None
        if member is not None and target is not None:
            rows = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=by_topic(target))
        return CoordinatorRecord(
            ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=name), rows
        )
    current = None
    if member is not None:
        current = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_with_epochs(member, member.assigned),
            partitions_pending_revocation=_with_epochs(member, member.revoking),
        )
    return CoordinatorRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=name), current
    )


def _with_epochs(member: ConsumerMember, slots: Slots) -> list[AssignedPartitions]:
    return [
        AssignedPartitions(
            topic_id=row.topic_id,
            partitions=row.partitions,
            assignment_epochs=[member.assigned_at[row.topic_id, i] for i in row.partitions],
        )
        for row in by_topic(slots)
    ]


def _regex_record(image: ConsumerGroupImage, pattern: str) -> CoordinatorRecord:
    key = ConsumerGroupRegularExpressionKey(group_id=image.group_id, regular_expression=pattern)
    topics = image.regexes.get(pattern)
    if topics is None:
        return CoordinatorRecord(key, None)
    value = ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=0, timestamp=0)
    return CoordinatorRecord(key, value)


def _member_value(member: ConsumerMember) -> ConsumerGroupMemberMetadataValue:
    classic = None
    if member.classic is not None:
        classic = ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=data) for name, data in member.classic.protocols
            ],
        )
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_ms,
        server_assignor=member.assignor,
        classic_member_metadata=classic,
    )


def replay(image: ConsumerGroupImage, record: CoordinatorRecord) -> None:
    """Apply a record.  Compaction may have removed others before it."""
    key, value = record.key, record.value
    if isinstance(value, ConsumerGroupMetadataValue):
        image.epoch, image.metadata_hash = value.epoch, value.metadata_hash
    elif isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
        image.target_epoch = value.assignment_epoch
    elif isinstance(key, ConsumerGroupRegularExpressionKey):
        image.regexes.pop(key.regular_expression, None)
        if isinstance(value, ConsumerGroupRegularExpressionValue):
            image.regexes[key.regular_expression] = frozenset(value.topics)
    elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
        image.targets.pop(key.member_id, None)
        if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
            image.targets[key.member_id] = slots_of(value.topic_partitions)
    elif isinstance(value, ConsumerGroupMemberMetadataValue):
        assert isinstance(key, ConsumerGroupMemberMetadataKey)
        _replay_member(_member(image, key.member_id), value)
        if value.instance_id is not None:
            image.static[value.instance_id] = key.member_id
    elif isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
        assert isinstance(key, ConsumerGroupCurrentMemberAssignmentKey)
        _replay_current(_member(image, key.member_id), value)
    elif isinstance(key, ConsumerGroupMemberMetadataKey):
        gone = image.members.pop(key.member_id, None)
        if gone is not None and image.static.get(gone.instance_id or "") == key.member_id:
            del image.static[gone.instance_id or ""]


def _member(image: ConsumerGroupImage, member_id: str) -> ConsumerMember:
    found = image.members.get(member_id)
    if found is None:
        found = image.members[member_id] = ConsumerMember(member_id)
    return found


def _replay_current(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue
) -> None:
    member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
    known = value.state in frozenset(MemberState)
    member.state = MemberState(value.state) if known else MemberState.UNRELEASED
    member.assigned = slots_of(value.assigned_partitions)
    member.revoking = slots_of(value.partitions_pending_revocation)
    member.assigned_at = {}
    for row in (*value.assigned_partitions, *value.partitions_pending_revocation):
        # A record without them is of an older broker: its commits must have the member's epoch.
        epochs = row.assignment_epochs or [max(member.epoch, 0)] * len(row.partitions)
        for index, epoch in zip(row.partitions, epochs, strict=False):
            member.assigned_at[row.topic_id, index] = epoch


def _replay_member(member: ConsumerMember, value: ConsumerGroupMemberMetadataValue) -> None:
    member.instance_id, member.rack_id = value.instance_id, value.rack_id
    member.client_id, member.client_host = value.client_id, value.client_host
    member.topics = frozenset(value.subscribed_topic_names)
    member.regex, member.assignor = value.subscribed_topic_regex, value.server_assignor
    member.rebalance_ms = value.rebalance_timeout_ms
    classic = value.classic_member_metadata
    member.classic = None
    if classic is not None:
        rows = tuple((row.name, row.metadata) for row in classic.supported_protocols)
        member.classic = Classic(classic.session_timeout_ms, rows)
