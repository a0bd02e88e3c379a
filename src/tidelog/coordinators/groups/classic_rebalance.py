"""The rebalance of a classic group: joins, syncs, and how long they may take.

    Empty -> Preparing             the first member joins
    Preparing -> Completing        all have joined, or the rebalance timeout is over
    Preparing -> Empty             no member has
    Completing -> Stable           the leader's assignment is written to the log
    Completing, Stable -> Preparing  a member joins, leaves, dies or changes its subscription
    any -> Dead                    the group is gone, or its shard is unloaded

Requests that wait for others are parked with their member, as tokens; answers go to ``replies``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.coordinators.groups.classic_image import ClassicGroupImage
from tidelog.coordinators.groups.deadlines import Deadlines
from tidelog.coordinators.groups.members import (
    GroupLimits,
    Join,
    JoinResult,
    Member,
    MemberStatus,
    SyncResult,
    Token,
)
from tidelog.coordinators.groups.states import GroupState
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.errors import ErrorCode


@dataclass(slots=True)
class PendingMember:
    """A member id that was given out, to a client that has not joined with it yet (KIP-394)."""

    deadline: int
    holds_until: int  # the rebalance waits for it until then


@dataclass(slots=True)
class _JoinPhase:
    """How long a rebalance waits for members to join."""

    deadline: int
    delay_left: int = -1  # the first rebalance (KIP-134): ms by which it may still be put off
    newcomers: bool = False  # ... and whether members came since it was


class Rebalance:
    """See the module."""

    def __init__(
        self,
        image: ClassicGroupImage,
        limits: GroupLimits,
        clock: Clock,
        deadlines: Deadlines,
        timeline: Timeline,
        emptied: Callable[[], None],
    ) -> None:
        self.state = GroupState.EMPTY
        self.state_since_ms = clock.now_ms()
        self.replies: list[tuple[Token, JoinResult | SyncResult]] = []
        self.pending: dict[str, PendingMember] = {}
        self.storing = False  # the leader's assignment is being written
        self.joined_count = 0  # members that have joined again
        self._unsynced: set[str] = set()  # members that have not asked for their assignment
        self._join: _JoinPhase | None = None
        self._sync_deadline: int | None = None
        self._image = image
        self._limits = limits
        self._clock = clock
        self._deadlines = deadlines
        self._timeline = timeline
        self._emptied = emptied

    # -- answers ------------------------------------------------------------------

    def answer(self, token: Token, result: JoinResult | SyncResult) -> None:
        self.replies.append((token, result))

    def park_join(self, member: Member, token: Token) -> None:
        """A member has joined, and waits for the others."""
        if member.join_token is None:
            self.joined_count += 1
        else:
            # Its connection broke and it asks again; the first request leads nowhere.
            again = JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            self.answer(member.join_token, again)
        member.join_token = token

    def park_sync(self, member: Member, token: Token) -> None:
        """A member has asked for its assignment, and waits for the leader's."""
        if member.sync_token is not None:
            self.answer(member.sync_token, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_token = token
        self.has_synced(member)

    def refuse_parked(self, member: Member, error: ErrorCode) -> None:
        if member.join_token is not None:
            token, member.join_token = member.join_token, None
            self.joined_count -= 1
            self.answer(token, JoinResult(error, member.member_id))
        if member.sync_token is not None:
            token, member.sync_token = member.sync_token, None
            self.answer(token, SyncResult(error))

    def answer_syncs(self, error: ErrorCode = ErrorCode.NONE) -> None:
        for member in self._image.members.values():
            if member.sync_token is not None:
                token, member.sync_token = member.sync_token, None
                self.touch(member)
                self.answer(token, SyncResult(error) if error else self.assigned(member))

    def assigned(self, member: Member) -> SyncResult:
        image = self._image
        return SyncResult(ErrorCode.NONE, member.assignment, image.protocol_type, image.protocol)

    # -- admission ----------------------------------------------------------------

    def admit(self, request: Join) -> ErrorCode:
        """May a member join with such a request?"""
        error = self._refusal(request)
        causes = {
            ErrorCode.GROUP_MAX_SIZE_REACHED: f"group.max.size is {self._limits.max_size}",
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "no assignor in common with the others",
        }
        if error in causes:
            client = f"client {request.client_id!r} at {request.client_host}"
            self.note("refused", None, f"{client}: {error.name}: {causes[error]}")
        return error

    def _refusal(self, request: Join) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._limits.allow_session(request.session_ms):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not self._has_room(request):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        image = self._image
        same_type = request.protocol_type == image.protocol_type
        if image.members and not (same_type and image.shares_protocol(request)):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _has_room(self, request: Join) -> bool:
        most, member = self._limits.max_size, self._image.members.get(request.member_id)
        if member is None and request.instance_id in self._image.static:
            return True  # it takes a place that it has
        if member is None:
            # Ids that were given out do not count: clients that die with one would shut out others.
            return len(self._image.members) < most
        if self.state is GroupState.PREPARING and member.join_token is None:
            return self.joined_count < most  # the limit was lowered since
        return True

    # -- the way of a rebalance ---------------------------------------------------

    def prepare(self, member: Member | None, cause: str) -> None:
        """Ask all members to join again."""
        if self.state is GroupState.PREPARING:
            return
        now, timeout = self._deadlines.now(), self._image.rebalance_timeout()
        if self.state is GroupState.COMPLETING:
            self.answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is GroupState.EMPTY:
            delay = self._limits.initial_delay_ms
            self._join = _JoinPhase(now + delay, max(timeout - delay, 0))
        else:
            self._join = _JoinPhase(now + timeout)
        self._sync_deadline = None
        self.storing = False
        self.become(GroupState.PREPARING)
        self._deadlines.add(self._join.deadline)
        self.note("rebalance", member, cause)

    def newcomer(self) -> None:
        if self._join is not None:
            self._join.newcomers = True

    def complete_if_all_joined(self) -> None:
        if self._join is None or self._join.delay_left >= 0:
            return
        if self.joined_count < len(self._image.members):
            return
        now = self._deadlines.now()
        if self._image.members and any(p.holds_until > now for p in self.pending.values()):
            return
        self._complete()

    def _join_timed_out(self, phase: _JoinPhase) -> None:
        """The time to join again is over."""
        now = self._deadlines.now()
        delay = min(self._limits.initial_delay_ms, phase.delay_left)
        if phase.newcomers and delay > 0:
            phase.newcomers = False
            phase.delay_left -= delay
            phase.deadline = now + delay
            self._deadlines.add(phase.deadline)
            return
        for member in list(self._image.members.values()):
            # A static member keeps its place until its session is over.
            if member.join_token is None and member.instance_id is None:
                self.remove(member, "removed", "it did not join again in time")
        if self._image.members and not self.joined_count:
            phase.deadline = now + self._image.rebalance_timeout()
            self._deadlines.add(phase.deadline)
            return
        self._complete()

    def _complete(self) -> None:
        """The next generation begins."""
        image = self._image
        self._join = None
        image.generation = 0 if image.generation >= 2**31 - 1 else image.generation + 1
        if not image.members:
            image.protocol = image.leader = None
            self.joined_count = 0
            self.become(GroupState.EMPTY)
            self.note("empty", None, "the last member is gone")
            self._emptied()
            return
        leader = image.members.get(image.leader or "")
        if leader is None or leader.join_token is None:
            image.leader = next(
                m.member_id for m in image.members.values() if m.join_token is not None
            )
        image.protocol = image.select_protocol()
        self.become(GroupState.COMPLETING)
        count = "1 member" if len(image.members) == 1 else f"{len(image.members)} members"
        self.note("generation", None, f"{count}, protocol {image.protocol}")
        self._sync_deadline = self._deadlines.now() + image.rebalance_timeout()
        self._deadlines.add(self._sync_deadline)
        self._unsynced = set(image.members)
        for member in image.members.values():
            if member.join_token is not None:
                token, member.join_token = member.join_token, None
                member.is_new = False
                self.touch(member)
                self.answer(token, image.joined(member))
        self.joined_count = 0

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """The leader's assignment is in the log."""
        self.storing = False
        for name, member in self._image.members.items():
            member.assignment = assignments.get(name, b"")
        self.become(GroupState.STABLE)
        self.note("stable", None, "every member has its assignment")
        self.answer_syncs()

    def has_synced(self, member: Member) -> None:
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            self._sync_deadline = None

    def remove(self, member: Member, kind: str, cause: str) -> None:
        """A member is gone."""
        self.refuse_parked(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._unsynced.discard(member.member_id)
        self._image.remove(member)
        self.note(kind, member, cause)

    def replace_static(self, member: Member, member_id: str, request: Join) -> None:
        """A static member came back under its instance id, and gets what it had."""
        old_id = member.member_id
        self.refuse_parked(member, ErrorCode.FENCED_INSTANCE_ID)
        self._image.replace_static(member, member_id, request)
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(member_id)
        self.note("replaced", member, f"the static member restarted; {old_id} is fenced")

    # -- time ---------------------------------------------------------------------

    def touch(self, member: Member) -> None:
        """The member is alive: its session begins again."""
        member.deadline = self._deadlines.now() + member.session_ms
        self._deadlines.add(member.deadline)

    def tick(self) -> None:
        """Do what is due: pending member ids, joins and syncs that took too long."""
        now = self._deadlines.now()
        for member_id, pending in list(self.pending.items()):
            if pending.deadline <= now:
                del self.pending[member_id]
        if self._join is not None and self._join.deadline <= now:
            self._join_timed_out(self._join)
        if self._sync_deadline is not None and self._sync_deadline <= now:
            self._sync_deadline = None
            late = [m for m in self._image.members.values() if m.member_id in self._unsynced]
            for member in late:
                self.remove(member, "removed", "it did not ask for its assignment in time")
            if late:
                self.prepare(late[0], "a member did not ask for its assignment in time")
        self.complete_if_all_joined()

    def deadlines(self) -> list[int]:
        now = self._deadlines.now()
        found = [m.deadline for m in self._image.members.values() if not m.waits]
        found += [
            p.holds_until if p.holds_until > now else p.deadline for p in self.pending.values()
        ]
        if self._sync_deadline is not None:
            found.append(self._sync_deadline)
        return found if self._join is None else [*found, self._join.deadline]

    def end(self, error: ErrorCode) -> None:
        """Nothing waits any longer."""
        for member in self._image.members.values():
            self.refuse_parked(member, error)
        self.pending.clear()
        self.joined_count = 0
        self._join = self._sync_deadline = None
        self._deadlines.reset()
        self.become(GroupState.DEAD)

    def become(self, state: GroupState) -> None:
        if state is not self.state:
            self.state = state
            self.state_since_ms = self._clock.now_ms()

    def note(self, kind: str, member: Member | None, cause: str) -> None:
        """Add an event to the timeline."""
        member_id = member.member_id if member is not None else ""
        now_ms, generation = self._clock.now_ms(), self._image.generation
        self._timeline.add(now_ms, kind, generation, member_id, cause)

    # -- what others see ----------------------------------------------------------

    def status(self, member: Member) -> MemberStatus:
        waited_for = self.state is GroupState.PREPARING and member.join_token is None
        if self.state is GroupState.COMPLETING and not self.storing:
            waited_for = member.member_id == self._image.leader
        shown = (member.member_id, member.instance_id, member.client_id, member.client_host)
        if member.waits or member.is_new:
            return MemberStatus(*shown, waited_for)
        now, ends = self._deadlines.now(), member.deadline
        if waited_for and self._join is not None:
            ends = min(ends, self._join.deadline)
        silent = now - (member.deadline - member.session_ms)
        return MemberStatus(
            *shown, waited_for, silent_ms=max(silent, 0), expires_in_ms=max(ends - now, 0)
        )
