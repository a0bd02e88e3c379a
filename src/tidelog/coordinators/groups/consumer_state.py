"""What a consumer group knows: its members, what they read, and who has which partition.

Every change marks what must be written (``_dirty``) and, where it is one of members,
subscriptions or topics, leaves a cause for the next epoch (``_because``); ``_grow`` makes that
epoch and its target assignment.  When all this happens is ``consumer_group.py``'s business.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from tidelog.clock import Clock
from tidelog.coordinators.groups.assignors import ASSIGNORS, NO_SLOTS, Slot, Slots, Wish
from tidelog.coordinators.groups.consumer_members import (
    LEFT_FOR_A_WHILE,
    ConsumerLimits,
    ConsumerMember,
    Current,
    MemberState,
    reconcile,
)
from tidelog.coordinators.groups.consumer_records import Dirty, Kind
from tidelog.coordinators.groups.members import MemberStatus
from tidelog.coordinators.groups.states import State
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.coordinators.groups.topic_regex import matching
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata, TopicInfo


class ConsumerState:
    """See the module."""

    def __init__(
        self,
        group_id: str,
        limits: ConsumerLimits,
        clock: Clock,
        metadata: Callable[[], ClusterMetadata],
        new_id: Callable[[], str],
    ) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = State.EMPTY
        self.epoch = 0
        self.target_epoch = 0
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.targets: dict[str, Slots] = {}
        self.regexes: dict[str, frozenset[str]] = {}  # pattern -> topics
        self.owners: dict[Slot, str] = {}  # who has a partition, or has not given it up yet
        self.timeline = Timeline()
        self._clock = clock
        self._metadata = metadata
        self._new_id = new_id
        self._dirty: set[Dirty] = set()
        self._cause: str | None = None  # why the epoch must grow
        self._refresh = False  # topics or subscriptions have changed
        self._grown_at = 0  # when the epoch grew
        self._wake_at: int | None = None  # nothing is due before this

    # -- members ----------------------------------------------------------------

    def _check_room(self) -> None:
        if len(self.members) >= self.limits.max_size:
            most = self.limits.max_size
            message = f"the group has {most} members, the most that group.consumer.max.size allows"
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)

    def _add(
        self, member_id: str, instance_id: str | None, client_id: str, client_host: str
    ) -> None:
        self._check_room()
        member = ConsumerMember(
            member_id, instance_id, client_id=client_id, client_host=client_host
        )
        self._insert(member)
        self._dirty |= {(Kind.MEMBER, member_id), (Kind.CURRENT, member_id)}
        self._refresh = True
        self._note("joined", member, member.shown)
        self._because(f"a new member joined: {member.shown}")

    def _insert(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def _replace_static(self, old: ConsumerMember, member_id: str) -> None:
        """A static member came back under another member id: it takes its own old place."""
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
        self._set_current(old, Current(old.epoch, old.state, NO_SLOTS))
        del self.members[old.member_id]
        self._insert(new)
        self.owners.update(dict.fromkeys(new.assigned, member_id))
        if old.member_id in self.targets:
            self.targets[member_id] = self.targets.pop(old.member_id)
        for kind in (Kind.MEMBER, Kind.TARGET, Kind.CURRENT):
            self._dirty |= {(kind, old.member_id), (kind, member_id)}
        self._note("replaced", new, f"the static member restarted; it was {old.member_id}")

    def _remove(self, member: ConsumerMember, kind: str, cause: str) -> None:
        self._set_current(member, Current(member.epoch, member.state, NO_SLOTS))
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        for record in (Kind.MEMBER, Kind.TARGET, Kind.CURRENT):
            self._dirty.add((record, member.member_id))
        self._refresh = True
        self._note(kind, member, cause)
        self._because(f"a member {kind}: {member.shown}: {cause}")

    def _find(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if self.state is State.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
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

    def _subscribed(
        self, member: ConsumerMember, before: tuple[frozenset[str], str | None, str | None]
    ) -> None:
        """The epoch grows if a member reads other topics than before."""
        self._touch(member)
        if (member.topics, member.regex or None) != before[:2]:
            self._refresh = True
            self._because(f"a member changed its subscription: {member.shown}")
        elif member.assignor != before[2]:
            self._because(f"a member asks for the assignor {member.assignor}: {member.shown}")

    # -- epochs and assignments -------------------------------------------------

    def _because(self, cause: str) -> None:
        self._cause = self._cause or cause

    def _grow(self) -> None:
        """A new epoch, if there is cause for one, and a target assignment for it."""
        if self._refresh:
            self._refresh = False
            self._look_up_topics()
        if self._cause is None and (self.target_epoch == self.epoch or not self.members):
            return
        if self._cause is not None:
            self.epoch += 1
            self._grown_at = self._now()
            self._dirty.add((Kind.GROUP, ""))
            self._note("epoch", None, self._cause)
            self._cause = None
        if self.members:
            self._assign()

    def _look_up_topics(self) -> None:
        topics = self._metadata().topics
        used = {m.regex for m in self.members.values() if m.regex}
        for pattern in self.regexes.keys() - used:
            del self.regexes[pattern]
            self._dirty.add((Kind.REGEX, pattern))
        for pattern in used:
            found = self._match(pattern, topics)
            if self.regexes.get(pattern) != found:
                self.regexes[pattern] = found
                self._dirty.add((Kind.REGEX, pattern))
        digest = hashlib.blake2b(digest_size=8)
        for name in sorted(self.subscribed()):
            if name in topics:
                digest.update(topics[name].topic_id)
                digest.update(len(topics[name].partitions).to_bytes(4, "big"))
        value = int.from_bytes(digest.digest(), "big", signed=True) if self.members else 0
        if value != self.metadata_hash:
            self.metadata_hash = value
            self._because("topics have changed")

    def _match(self, pattern: str, topics: Mapping[str, TopicInfo]) -> frozenset[str]:
        try:
            # Internal topics too, as in Kafka: a client that does not want them excludes them.
            return matching(pattern, topics)
        except ApiError:
            # Another broker accepted it: the topics that it matched stay.
            return self.regexes.get(pattern, frozenset())

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names of the topics that a member wants to read."""
        return member.topics | self.regexes.get(member.regex or "", frozenset())

    def subscribed(self) -> set[str]:
        """The topics that members ask for."""
        found: set[str] = set()
        for member in self.members.values():
            found |= self.topics_of(member)
        return found

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        votes = Counter(m.assignor for m in self.members.values() if m.assignor)
        names = self.limits.assignors
        known = [name for name in votes if name in names]
        if not known:
            return names[0]
        return max(known, key=lambda name: (votes[name], -names.index(name)))

    def _assign(self) -> None:
        topics = self._metadata().topics
        sizes = {
            topics[name].topic_id: len(topics[name].partitions)
            for name in self.subscribed()
            if name in topics
        }
        ids: dict[frozenset[str], frozenset[bytes]] = {}
        wishes = {}
        for member_id, member in self.members.items():
            names = self.topics_of(member)
            if names not in ids:
                ids[names] = frozenset(topics[name].topic_id for name in names if name in topics)
            owned = self.targets.get(member_id, NO_SLOTS)
            wishes[member_id] = Wish(ids[names], owned, member.instance_id)
        result = ASSIGNORS[self.assignor](wishes, sizes)
        for member_id, slots in result.items():
            if self.targets.get(member_id) != slots:
                self.targets[member_id] = slots
                self._dirty.add((Kind.TARGET, member_id))
        self.target_epoch = self.epoch
        self._dirty.add((Kind.TARGET_EPOCH, ""))

    def _target(self, member: ConsumerMember) -> Slots:
        return self.targets.get(member.member_id, NO_SLOTS)

    def _is_free(self, slot: Slot, member: ConsumerMember) -> bool:
        return self.owners.get(slot, member.member_id) == member.member_id

    def _step(self, member: ConsumerMember, owned: Slots | None) -> None:
        """The next step of a member towards its target."""
        new = reconcile(
            member,
            self._target(member),
            self.target_epoch,
            owned,
            lambda slot: self._is_free(slot, member),
        )
        waited = member.state is MemberState.UNREVOKED
        self._set_current(member, new)
        if new.state is not MemberState.UNREVOKED:
            member.act_by = None
        elif not waited or member.act_by is None:
            self._act_by(member)

    def _set_current(self, member: ConsumerMember, new: Current) -> None:
        if new == (member.epoch, member.state, member.assigned, member.revoking):
            return
        for slot in member.assigned | member.revoking:
            if self.owners.get(slot) == member.member_id:
                del self.owners[slot]
        self.owners.update(dict.fromkeys(new.assigned | new.revoking, member.member_id))
        if new.epoch != member.epoch:
            member.previous_epoch = member.epoch
        before = member.assigned_at
        held = new.assigned | new.revoking
        member.assigned_at = {slot: before.get(slot, new.epoch) for slot in held}
        member.epoch, member.state, member.assigned, member.revoking = new
        self._dirty.add((Kind.CURRENT, member.member_id))

    # -- time, and what happened ------------------------------------------------

    def statuses(self) -> list[MemberStatus]:
        """Who is alive, and who is waited for."""
        return [self._status(member) for member in self.members.values()]

    def _status(self, member: ConsumerMember) -> MemberStatus:
        # One that is UNRELEASED waits itself: for those who have what it is to get.
        reconciled = member.reconciled(self.target_epoch)
        away = member.epoch == LEFT_FOR_A_WHILE
        waited_for = not reconciled and not away and member.state is not MemberState.UNRELEASED
        now, ends = self._now(), member.deadline
        if member.act_by is not None:
            ends = min(ends, member.act_by)
        return MemberStatus(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            waited_for,
            away,
            silent_ms=max(now - (member.deadline - self._session(member)), 0),
            expires_in_ms=max(ends - now, 0),
        )

    def _session(self, member: ConsumerMember) -> int:
        return self.limits.session_ms if member.classic is None else member.classic.session_ms

    def _touch(self, member: ConsumerMember) -> None:
        """The member is alive: its session begins anew."""
        member.deadline = self._now() + self._session(member)
        self._wake(member.deadline)

    def _act_by(self, member: ConsumerMember) -> None:
        member.act_by = self._now() + max(member.rebalance_ms, 0)
        self._wake(member.act_by)

    def _wake(self, deadline: int) -> None:
        # A deadline that moves away leaves an early tick behind, which finds nothing to do.
        if self._wake_at is None or deadline < self._wake_at:
            self._wake_at = deadline

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _note(self, kind: str, member: ConsumerMember | None, cause: str) -> None:
        member_id = member.member_id if member is not None else ""
        self.timeline.add(self._clock.now_ms(), kind, self.epoch, member_id, cause)


def unknown_member(member_id: str) -> ApiError:
    message = f"{member_id!r} is not a member of the group: join again with epoch 0"
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, message)
