"""The members of a consumer group: who joins and leaves, sessions, and the way to the target."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.coordinators.groups.assignors import Slots
from tidelog.coordinators.groups.consumer_assignment import GroupContext, TargetAssignment
from tidelog.coordinators.groups.consumer_image import ConsumerGroupImage, Kind
from tidelog.coordinators.groups.consumer_members import (
    LEFT_FOR_A_WHILE,
    ConsumerMember,
    MemberState,
    reconcile,
)
from tidelog.coordinators.groups.members import MemberStatus
from tidelog.errors import ApiError, ErrorCode

Subscription = tuple[frozenset[str], str | None, str | None]  # topics, pattern, assignor


class Membership:
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
        self._image.mark(member_id, Kind.MEMBER, Kind.CURRENT)
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
