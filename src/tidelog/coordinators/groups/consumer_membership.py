"""The members of a consumer group: who joins and leaves, sessions, and the way to the target."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.coordinators.groups.assignors import Slots
from tidelog.coordinators.groups.consumer_assignment import GroupContext, TargetAssignment
from tidelog.coordinators.groups.consumer_image import ConsumerGroupImage, RecordKind
from tidelog.coordinators.groups.consumer_members import (
    LEFT_FOR_A_WHILE,
    ConsumerMember,
    MemberState,
    reconcile,
)
from tidelog.coordinators.groups.members import MemberStatus
from tidelog.errors import ApiError, ErrorCode

Subscription = tuple[frozenset[str], str | None, str | None]  # topics, pattern, assignor


class GroupMembership:
    """See the module."""

    def __init__(
        self, image: ConsumerGroupImage, assignment: TargetAssignment, context: GroupContext
    ) -> None:
        self._image = image
        self._assignment = assignment
        self._context = context
        self._deadlines = context.deadlines

    # -- joining and leaving ------------------------------------------------------

    def check_room(self) -> None:
        most = self._context.limits.max_size
        if len(self._image.members) >= most:
            message = f"the group has {most} members, the most that group.consumer.max.size allows"
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)

    def add(
        self, member_id: str, instance_id: str | None, client_id: str, client_host: str
    ) -> None:
        self.check_room()
        member = ConsumerMember(
            member_id, instance_id, client_id=client_id, client_host=client_host
        )
        self._image.insert(member)
        self._image.mark(member_id, RecordKind.MEMBER, RecordKind.CURRENT)
        self._assignment.topics_changed()
        self.note("joined", member, member.shown)
        self._assignment.because(f"a new member joined: {member.shown}")

    def replace_static(self, old: ConsumerMember, member_id: str) -> None:
        new = self._image.replace_static(old, member_id)
        self.note("replaced", new, f"the static member restarted; it was {old.member_id}")

    def remove(self, member: ConsumerMember, kind: str, cause: str) -> None:
        self._image.remove(member)
        self._assignment.topics_changed()
        self.note(kind, member, cause)
        self._assignment.because(f"a member {kind}: {member.shown}: {cause}")

    def adopt(self, member: ConsumerMember) -> None:
        """Take a member over from a classic group, with what it has."""
        image = self._image
        image.insert(member)
        taken = image.owners.keys()
        member.assigned = frozenset(slot for slot in member.assigned if slot not in taken)
        member.assigned_at = dict.fromkeys(member.assigned, member.epoch)
        image.owners.update(dict.fromkeys(member.assigned, member.member_id))
        image.targets[member.member_id] = member.assigned
        self.touch(member)

    def subscribed(self, member: ConsumerMember, before: Subscription) -> None:
        """A member has said what it reads: the epoch grows if that is not what it read before."""
        self.touch(member)
        if (member.topics, member.regex or None) != before[:2]:
            self._assignment.topics_changed()
            self._assignment.because(f"a member changed its subscription: {member.shown}")
        elif member.assignor != before[2]:
            cause = f"a member asks for the assignor {member.assignor}: {member.shown}"
            self._assignment.because(cause)

    def note(self, kind: str, member: ConsumerMember, cause: str) -> None:
        self._context.note(self._image, kind, member.member_id, cause)

    # -- committed offsets ----------------------------------------------------------

    def may_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        places: Iterable[tuple[str, int]],
        *,
        knows_epochs: bool = True,
    ) -> ErrorCode:
        """May this member commit offsets of these partitions?  An old OffsetCommit knows no epochs.

        Also in an older epoch, if it has had all of them since then: the answer with the newer one
        is on its way, and no other member can have read them meanwhile (KIP-1251).
        """
        if epoch < 0 and not self._image.members:
            return ErrorCode.NONE  # a client that assigns partitions by hand
        try:
            member = self._image.find(member_id, instance_id)
        except ApiError as error:
            return error.code
        if not member.classic and not knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        code = _compare_epochs(member, epoch)
        if epoch < member.epoch and self._has_had(member, epoch, places):
            code = ErrorCode.NONE
        if member.classic and not code:
            self.touch(member)
        return code

    def _has_had(
        self, member: ConsumerMember, epoch: int, places: Iterable[tuple[str, int]]
    ) -> bool:
        topics = self._context.metadata().topics
        slots = [(topics[name].topic_id, index) for name, index in places if name in topics]
        return all(member.assigned_at.get(slot, epoch + 1) <= epoch for slot in slots)

    def may_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """May this member read the committed offsets?"""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE  # not a member: a tool
        member = self._image.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return _compare_epochs(member, epoch)

    # -- reconciliation -----------------------------------------------------------

    def step(self, member: ConsumerMember, owned: Slots | None) -> None:
        """The next step of a member towards its target."""
        image = self._image
        new = reconcile(
            member,
            image.target(member),
            image.target_epoch,
            owned,
            lambda slot: image.is_free(slot, member),
        )
        waited = member.state is MemberState.UNREVOKED
        image.set_current(member, new)
        if new.state is not MemberState.UNREVOKED:
            member.act_by = None
        elif not waited or member.act_by is None:
            self.must_act(member)

    # -- sessions -----------------------------------------------------------------

    def session_ms(self, member: ConsumerMember) -> int:
        if member.classic is not None:
            return member.classic.session_ms
        return self._context.limits.session_ms

    def touch(self, member: ConsumerMember) -> None:
        """The member is alive: its session begins again."""
        member.deadline = self._deadlines.now() + self.session_ms(member)
        self._deadlines.add(member.deadline)

    def must_act(self, member: ConsumerMember) -> None:
        """It has its rebalance timeout to give up partitions, or to join again, or to sync."""
        member.act_by = self._deadlines.now() + max(member.rebalance_ms, 0)
        self._deadlines.add(member.act_by)

    def expire(self) -> None:
        """Remove the members whose time is up."""
        now = self._deadlines.now()
        for member in list(self._image.members.values()):
            if member.deadline <= now:
                self.remove(member, "expired", f"no heartbeat for {self.session_ms(member)} ms")
            elif member.act_by is not None and member.act_by <= now:
                what = "join again" if member.classic is not None else "give up its partitions"
                cause = f"it did not {what} within {member.rebalance_ms} ms"
                self.remove(member, "removed", cause)

    def deadlines(self) -> Iterable[int]:
        for member in self._image.members.values():
            yield member.deadline
            if member.act_by is not None:
                yield member.act_by

    def loaded(self) -> None:
        """The image is replayed: sessions begin now."""
        self._image.index_owners()
        for member in self._image.members.values():
            self.touch(member)
            if member.state is MemberState.UNREVOKED:
                self.must_act(member)

    def statuses(self) -> list[MemberStatus]:
        """Which members are alive, and which ones a rebalance waits for."""
        return [self._status(member) for member in self._image.members.values()]

    def _status(self, member: ConsumerMember) -> MemberStatus:
        # One that is UNRELEASED waits itself, for the owners of what it is to get.
        reconciled = member.reconciled(self._image.target_epoch)
        away = member.epoch == LEFT_FOR_A_WHILE
        waited_for = not reconciled and not away and member.state is not MemberState.UNRELEASED
        now, ends = self._deadlines.now(), member.deadline
        if member.act_by is not None:
            ends = min(ends, member.act_by)
        return MemberStatus(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            waited_for,
            away,
            silent_ms=max(now - (member.deadline - self.session_ms(member)), 0),
            expires_in_ms=max(ends - now, 0),
        )


def _compare_epochs(member: ConsumerMember, epoch: int) -> ErrorCode:
    if member.epoch == epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.classic else ErrorCode.STALE_MEMBER_EPOCH
