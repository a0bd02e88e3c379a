"""The image of a consumer group: what its records say, in memory.

Every change marks the records that must be written for it (``dirty``): the invariant is that a
replay of the records that are written, being written and marked gives the same image.  The random
schedules check it after every step.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

from tidelog.coordinators.groups.assignors import NO_SLOTS, Slot, Slots
from tidelog.coordinators.groups.consumer_members import ConsumerMember, Current, MemberState
from tidelog.errors import ApiError, ErrorCode


class RecordKind(IntEnum):
    """What can change, in the order in which it is written."""

    CLASSIC = 0  # only ever a tombstone: the group was a classic one
    MEMBER = 1
    REGEX = 2
    GROUP = 3
    TARGET = 4
    TARGET_EPOCH = 5
    CURRENT = 6


MEMBER_KINDS = (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT)

Dirty = tuple[RecordKind, str]  # what, and whose: member id or pattern


class ConsumerGroupImage:
    """See the module."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.metadata_hash = 0  # of the topics that are subscribed
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.targets: dict[str, Slots] = {}
        self.regexes: dict[str, frozenset[str]] = {}  # pattern -> topics
        self.owners: dict[Slot, str] = {}  # of partitions; until a member has given it up
        self.dirty: set[Dirty] = set()

    def mark(self, name: str, *kinds: RecordKind) -> None:
        self.dirty.update((kind, name) for kind in kinds)

    def everything(self) -> set[Dirty]:
        """All records that there should be of the group."""
        found = {(RecordKind.GROUP, ""), (RecordKind.TARGET_EPOCH, "")}
        found |= {(kind, member_id) for kind in MEMBER_KINDS for member_id in self.members}
        return found | {(RecordKind.REGEX, pattern) for pattern in self.regexes}

    # -- members ----------------------------------------------------------------

    def insert(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member: ConsumerMember) -> None:
        self.set_current(member, Current(member.epoch, member.state, NO_SLOTS))
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        self.mark(member.member_id, *MEMBER_KINDS)

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member came back under another member id: it gets what it had."""
        new = replace(
            old,
            member_id=member_id,
            epoch=0,
            previous_epoch=0,
            state=MemberState.STABLE,
            revoking=NO_SLOTS,
            assigned_at=dict.fromkeys(old.assigned, 0),
            act_by=None,
        )
        target = self.targets.get(old.member_id)
        self.remove(old)
        self.insert(new)
        self.owners.update(dict.fromkeys(new.assigned, member_id))
        if target is not None:
            self.targets[member_id] = target
        self.mark(member_id, *MEMBER_KINDS)
        return new

    def find(self, member_id: str, instance_id: str | None = None) -> ConsumerMember:
        """The member with these ids; raises if there is none."""
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no instance {instance_id!r}")
            if known != member_id:
                message = f"instance {instance_id!r} is now member {known}"
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID, message)
        member = self.members.get(member_id)
        if member is None:
            raise unknown_member(member_id)
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        return self.members.get(self.static.get(instance_id or "", ""))

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names of the topics that a member subscribes to."""
        return member.topics | self.regexes.get(member.regex or "", frozenset())

    def subscribed(self) -> set[str]:
        """The topics that members subscribe to."""
        topics: set[str] = set()
        for member in self.members.values():
            topics |= self.topics_of(member)
        return topics

    # -- assignments --------------------------------------------------------------

    def target(self, member: ConsumerMember) -> Slots:
        return self.targets.get(member.member_id, NO_SLOTS)

    def is_free(self, slot: Slot, member: ConsumerMember) -> bool:
        return self.owners.get(slot, member.member_id) == member.member_id

    def set_current(self, member: ConsumerMember, new: Current) -> None:
        """What a member has from now on."""
        if new == (member.epoch, member.state, member.assigned, member.revoking):
            return
        for slot in member.assigned | member.revoking:
            if self.owners.get(slot) == member.member_id:
                del self.owners[slot]
        held = new.assigned | new.revoking
        self.owners.update(dict.fromkeys(held, member.member_id))
        if new.epoch != member.epoch:
            member.previous_epoch = member.epoch
        before = member.assigned_at
        member.assigned_at = {slot: before.get(slot, new.epoch) for slot in held}
        member.epoch, member.state, member.assigned, member.revoking = new
        self.mark(member.member_id, RecordKind.CURRENT)

    def index_owners(self) -> None:
        """After a replay: the records do not say it."""
        self.owners.clear()
        for member in self.members.values():
            self.owners.update(dict.fromkeys(member.assigned | member.revoking, member.member_id))

    def clear(self) -> None:
        for part in (self.members, self.static, self.targets, self.owners, self.dirty):
            part.clear()


def unknown_member(member_id: str) -> ApiError:
    message = f"{member_id!r} is not a member of the group: join again with epoch 0"
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, message)
