"""A consumer group of KIP-848: a state machine without I/O.

    Empty        no members
    Reconciling  some members are on their way to what the newest assignment gives them
    Stable       every member has it
    Dead         gone: deleted, converted, or the shard was unloaded

Three numbers drive it.  The *group epoch* grows with every change of members, subscriptions
or topics.  The *target epoch* is the group epoch for which the assignor has computed the target
assignment.  A *member epoch* is how far a member has come.  Heartbeats carry a member from its
epoch to the target, giving up first (see ``consumer_members.reconcile``).  The assignor runs
as soon as the epoch grows; Kafka's state Assigning is never seen.

This file queues requests, writes and answers.  What the records say is in ``consumer_image.py``;
who is a member, and until when, in ``consumer_membership.py``; the epochs and the target in
``consumer_assignment.py``; what the two protocols ask for in ``consumer_heartbeats.py`` and
``consumer_classic.py``.

No sockets, no log, no awaiting.  A request is a token; answers are put into ``replies``, what
must be written first into ``writes``; the shard takes both after each call, writes, and reports
with ``stored``.  It calls ``tick`` when ``next_deadline`` has passed.

At most one write is under way.  Requests that come meanwhile wait and are served together,
with one run of the assignor: so a thousand members that start at once cost a few.  A write
has the newest value of everything that changed; if it fails, the same things are written
again with the next one, so the log never misses a step for long, and no member is told what
is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelog import ids
from tidelog.clock import Clock
from tidelog.coordinators.groups import consumer_records
from tidelog.coordinators.groups.consumer_assignment import GroupContext, TargetAssignment
from tidelog.coordinators.groups.consumer_classic import ClassicAdapter
from tidelog.coordinators.groups.consumer_heartbeats import ConsumerHeartbeats
from tidelog.coordinators.groups.consumer_image import ConsumerGroupImage, Dirty, RecordKind
from tidelog.coordinators.groups.consumer_members import (
    Beat,
    BeatResult,
    ConsumerLimits,
    ConsumerMember,
)
from tidelog.coordinators.groups.consumer_membership import GroupMembership
from tidelog.coordinators.groups.deadlines import Deadlines
from tidelog.coordinators.groups.members import (
    Join,
    JoinResult,
    MemberStatus,
    Sync,
    SyncResult,
    Token,
)
from tidelog.coordinators.groups.states import GroupState
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.coordinators.records import CoordinatorRecord
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata
from tidelog.wire.consumer_protocol import PROTOCOL_TYPE

_REFUSALS = frozenset({ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.UNRELEASED_INSTANCE_ID})
_RETRY_MS = 1_000  # after a failed write
# While a rebalance goes on members are asked to come sooner than every five seconds: one that
# waits for a partition cannot be told that it is free.
_SOON_MS = 500
_SOON_PER_MEMBER_MS = 2

Request = Beat | Join | Sync
Answer = BeatResult | JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class ConsumerWrite:
    """Records that must be in the log; ``stored`` says whether they are."""

    records: list[CoordinatorRecord]
    dirty: frozenset[Dirty]
    answers: list[tuple[Token, Answer]]


class ConsumerGroup:
    """See the module."""

    group_type = "consumer"
    protocol_type = PROTOCOL_TYPE

    def __init__(
        self,
        group_id: str,
        limits: ConsumerLimits,
        clock: Clock,
        metadata: Callable[[], ClusterMetadata],
        new_id: Callable[[], str] = ids.random_name,
        timeline: Timeline | None = None,
    ) -> None:
        self.group_id = group_id
        self.image = ConsumerGroupImage(group_id)
        self.state = GroupState.EMPTY
        self.state_since_ms = clock.now_ms()
        self.timeline = timeline or Timeline()
        self.replies: list[tuple[Token, Answer]] = []
        self.writes: list[ConsumerWrite] = []
        self._deadlines = Deadlines(clock)
        context = GroupContext(limits, clock, metadata, new_id, self._deadlines, self.timeline)
        self._context = context
        self._assignment = TargetAssignment(self.image, context)
        self.membership = GroupMembership(self.image, self._assignment, context)
        self._heartbeats = ConsumerHeartbeats(self.image, self.membership, context)
        self._classic = ClassicAdapter(self.image, self.membership, context)
        self._queue: list[tuple[Request, Token]] = []
        self._in_flight: ConsumerWrite | None = None
        self._retry_at: int | None = None

    # -- requests ---------------------------------------------------------------

    def consumer_heartbeat(self, beat: Beat, token: Token) -> None:
        """A member joins, is alive, says what it holds, or leaves."""
        self._ask(beat, token)

    def join(self, request: Join, token: Token) -> None:
        """A member that speaks the classic protocol joins, or joins again."""
        self._ask(request, token)

    def sync(self, request: Sync, token: Token) -> None:
        """Such a member asks for its assignment; what it brings is not used."""
        self._ask(request, token)

    def _ask(self, request: Request, token: Token) -> None:
        member = self.members.get(request.member_id)
        if member is not None:
            self.membership.touch(member)  # it is alive, however long the log takes
        self._queue.append((request, token))
        self._process()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A classic member is alive; the answer tells it whether to join again."""
        try:
            self._check_alive()
            return self._classic.heartbeat(member_id, instance_id, generation)
        except ApiError as error:
            return error.code

    def leave(self, member_id: str, instance_id: str | None = None, reason: str = "") -> ErrorCode:
        """A classic member leaves, or an operator removes a member (LeaveGroup)."""
        if instance_id is not None and not member_id:
            member_id = self.image.static.get(instance_id, "")
        try:
            self._check_alive()
            member = self.image.find(member_id, instance_id)
        except ApiError as error:
            return error.code
        self.membership.remove(member, "left", reason or "it left the group")
        self._process()
        return ErrorCode.NONE

    def refresh(self) -> None:
        """Topics have changed: there may be more or less to read."""
        self._assignment.topics_changed()
        self._process()

    def _check_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # -- serving what has come --------------------------------------------------

    def _process(self) -> None:
        """Serve the requests that wait, and write what has changed."""
        if self._in_flight is not None or self.state is GroupState.DEAD:
            return
        served: list[tuple[Request, Token]] = []
        answers: list[tuple[Token, Answer]] = []
        queue, self._queue = self._queue, []
        for request, token in queue:
            try:
                taken = self._take(request)
            except ApiError as error:
                self._note_refusal(request, error)
                self.replies.append((token, _refused(request, error)))
                continue
            if isinstance(taken, (Beat, Join, Sync)):
                served.append((taken, token))
            else:
                answers.append((token, taken))
        self._assignment.update()
        for request, token in served:
            try:
                answers.append((token, self._serve(request)))
            except ApiError as error:
                answers.append((token, _refused(request, error)))
        if self.image.dirty:  # if not, nothing has changed, and no member need be looked at
            self._set_state()
            self._write(answers)
        else:
            self.replies += answers

    def _take(self, request: Request) -> Answer | Request:
        """Before the assignor runs: the answer, or the request if it is to be served after it."""
        if isinstance(request, Beat):
            return self._heartbeats.take(request)
        return request if isinstance(request, Sync) else self._classic.take(request)

    def _serve(self, request: Request) -> Answer:
        """After the assignor has run."""
        if isinstance(request, Beat):
            return self._heartbeats.serve(request, self._interval())
        if isinstance(request, Sync):
            return self._classic.serve_sync(request)
        return self._classic.serve_join(request)

    def _note_refusal(self, request: Request, error: ApiError) -> None:
        if not isinstance(request, Sync) and error.code in _REFUSALS:
            client = f"client {request.client_id!r} at {request.client_host}"
            self._note("refused", f"{client}: {error.code.name}: {error.message}")

    def _interval(self) -> int:
        usual = self.limits.heartbeat_ms
        quiet_ms = self._deadlines.now() - self._assignment.updated_at
        if self.state is GroupState.STABLE and quiet_ms > 2 * usual:
            return usual
        return min(usual, _SOON_MS + _SOON_PER_MEMBER_MS * len(self.members))

    # -- the log ----------------------------------------------------------------

    def _write(self, answers: list[tuple[Token, Answer]]) -> None:
        dirty, self.image.dirty = frozenset(self.image.dirty), set()
        write = ConsumerWrite(consumer_records.records(self.image, dirty), dirty, answers)
        self._in_flight = write
        self._retry_at = None
        self.writes.append(write)

    def stored(self, write: ConsumerWrite, error: ErrorCode = ErrorCode.NONE) -> None:
        """Records of ours are in the log, or could not be written."""
        if write is self._in_flight:
            self._in_flight = None
        if not error:
            self.replies += write.answers
            self._process()
            return
        self.replies += [(token, _failed(answer, error)) for token, answer in write.answers]
        if self.state is not GroupState.DEAD:
            self.image.dirty |= write.dirty
            self._retry_at = self._deadlines.now() + _RETRY_MS
            self._deadlines.add(self._retry_at)

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record, while the shard is loaded."""
        consumer_records.replay(self.image, record)

    def loaded(self) -> None:
        """The whole partition is replayed: sessions begin now."""
        self.membership.loaded()
        self._note("loaded", "the coordinator read it from the log")
        self.refresh()
        self._set_state()

    def converted(self) -> None:
        """It was a classic group until now: everything is written, with the next write."""
        self.image.dirty |= self.image.everything()
        self.image.mark("", RecordKind.CLASSIC)
        self._assignment.topics_changed()
        self._note("upgraded", "a member came with the consumer protocol")

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete everything that the log says about the group."""
        return consumer_records.tombstones(self.image)

    def unload(self, error: ErrorCode) -> None:
        """The shard is unloaded, or the group is gone: answer the requests that wait."""
        self.state = GroupState.DEAD
        if self._in_flight is not None and self._in_flight in self.writes:
            self.writes.clear()
            self.stored(self._in_flight, error)
        queue, self._queue = self._queue, []
        for request, token in queue:
            self.replies.append((token, _refused(request, ApiError(error))))
        self.image.clear()
        self._retry_at = None
        self._deadlines.reset()

    # -- time -------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Nothing is due before this; ``tick`` then says when to look again."""
        return self._deadlines.next

    def tick(self) -> None:
        """Do everything whose time has come."""
        if self.state is GroupState.DEAD:
            return
        self.membership.expire()
        if self._retry_at is not None and self._retry_at <= self._deadlines.now():
            self._retry_at = None
        self._process()
        retry = () if self._retry_at is None else (self._retry_at,)
        self._deadlines.reset((*self.membership.deadlines(), *retry))

    # -- what others see ----------------------------------------------------------

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        return self.image.members

    @property
    def epoch(self) -> int:
        return self.image.epoch

    @property
    def generation(self) -> int:
        """The group epoch, as the classic protocol calls it."""
        return self.image.epoch

    @property
    def target_epoch(self) -> int:
        return self.image.target_epoch

    @property
    def assignor(self) -> str:
        return self._assignment.assignor

    @property
    def limits(self) -> ConsumerLimits:
        return self._context.limits

    @limits.setter
    def limits(self, limits: ConsumerLimits) -> None:
        self._context.limits = limits

    def subscribed(self) -> set[str]:
        """The topics that members subscribe to."""
        return self.image.subscribed()

    def classic_assignment(self, member: ConsumerMember) -> bytes:
        """What a member has, as the classic protocol says it."""
        return self._classic.assignment_of(member)

    def statuses(self) -> list[MemberStatus]:
        """Which members are alive, and which ones a rebalance waits for."""
        return self.membership.statuses()

    @property
    def pending(self) -> bool:
        """Are there requests, or members, of which nothing is written yet?"""
        return bool(self._queue) or self._in_flight is not None

    @property
    def untouched(self) -> bool:
        """It never had members: a request that led to nothing made it."""
        return self.epoch == 0 and not self.members and not self.pending

    @property
    def downgrades(self) -> bool:
        """Are only classic members left, so that it should be a classic group again?"""
        return (
            self.limits.downgrade
            and self.state is not GroupState.DEAD
            and bool(self.members)
            and all(member.classic is not None for member in self.members.values())
        )

    def _set_state(self) -> None:
        state = GroupState.STABLE
        if not self.members:
            state = GroupState.EMPTY
        elif not all(m.reconciled(self.target_epoch) for m in self.members.values()):
            state = GroupState.RECONCILING
        if state is not self.state:
            self.state = state
            self.state_since_ms = self._context.clock.now_ms()
            if state is GroupState.STABLE:
                self._note("stable", "every member has its assignment")
            elif state is GroupState.EMPTY:
                self._note("empty", "the last member is gone")

    def _note(self, kind: str, cause: str) -> None:
        self._context.note(self.image, kind, "", cause)


def _refused(request: Request, error: ApiError) -> Answer:
    if isinstance(request, Join):
        return JoinResult(error.code, request.member_id)
    if isinstance(request, Sync):
        return SyncResult(error.code)
    return BeatResult(error.code, error.message)


def _failed(answer: Answer, error: ErrorCode) -> Answer:
    """The answer to give if what it says could not be written."""
    if isinstance(answer, JoinResult):
        return JoinResult(error, answer.member_id)
    if isinstance(answer, SyncResult):
        return SyncResult(error)
    return BeatResult(error)
