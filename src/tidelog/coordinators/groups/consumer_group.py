"""A consumer group of KIP-848: a pure state machine.

    Empty        no members
    Reconciling  some members are on their way to what the newest assignment gives them
    Stable       everybody has it
    Dead         gone: deleted, converted, or the shard has moved to another broker

Three numbers drive it.  The *group epoch* grows with every change of members, subscriptions
or topics.  The *target epoch* is the group epoch for which the assignor has said who should
have what.  A *member epoch* is how far a member has come.  Heartbeats carry a member from its
epoch to the target, giving up first (see ``consumer_members.reconcile``).  The assignor runs
as soon as the epoch grows; Kafka's state Assigning is never seen.

No sockets, no log, no awaiting.  A request is a token; answers are put into ``replies``, what
must be written first into ``writes``; the owner takes both after each call, writes, and
reports with ``stored``.  It calls ``tick`` when ``next_deadline`` has passed.

At most one write is under way.  Requests that come meanwhile wait and are served together,
with one run of the assignor: so a thousand members that start at once cost a few.  A write
has the newest value of everything that changed; if it fails, the same things are written
again with the next one, so the log never misses a step for long, and nobody is told what
is not in it.

Members that still speak the classic protocol are served too: see ``consumer_classic.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import uuid4

from tidelog.clock import Clock
from tidelog.coordinators.groups import consumer_records as stored_as
from tidelog.coordinators.groups.assignors import NO_SLOTS
from tidelog.coordinators.groups.consumer_classic import ClassicMembers, Sync
from tidelog.coordinators.groups.consumer_members import (
    LEFT,
    LEFT_FOR_A_WHILE,
    Beat,
    BeatResult,
    ConsumerLimits,
    ConsumerMember,
    Current,
    MemberState,
)
from tidelog.coordinators.groups.consumer_records import Dirty, Kind
from tidelog.coordinators.groups.consumer_state import unknown_member
from tidelog.coordinators.groups.members import Join, JoinResult, SyncResult, Token
from tidelog.coordinators.groups.states import State
from tidelog.coordinators.groups.topic_regex import check_pattern
from tidelog.coordinators.records import CoordinatorRecord
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata
from tidelog.wire.consumer_protocol import (
    PROTOCOL_TYPE,
)

_REFUSALS = frozenset({ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.UNRELEASED_INSTANCE_ID})
_RETRY_MS = 1_000  # after a failed write
# While something is going on members are asked to come sooner than every five seconds: who
# waits for a partition cannot be told that it is free.
_SOON_MS = 500
_SOON_PER_MEMBER_MS = 2

Answer = BeatResult | JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class ConsumerWrite:
    """Records that must be in the log; ``stored`` says whether they are."""

    records: list[CoordinatorRecord]
    dirty: frozenset[Dirty]
    answers: list[tuple[Token, Answer]]


class ConsumerGroup(ClassicMembers):
    """See the module."""

    group_type = "consumer"
    protocol_type = PROTOCOL_TYPE

    def __init__(
        self,
        group_id: str,
        limits: ConsumerLimits,
        clock: Clock,
        metadata: Callable[[], ClusterMetadata],
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        super().__init__(group_id, limits, clock, metadata, new_id)
        self.state_since_ms = clock.now_ms()
        self.replies: list[tuple[Token, Answer]] = []
        self.writes: list[ConsumerWrite] = []
        self._queue: list[tuple[Beat | Join | Sync, Token]] = []
        self._in_flight: ConsumerWrite | None = None
        self._retry_at: int | None = None

    # -- requests ---------------------------------------------------------------

    def consumer_heartbeat(self, beat: Beat, token: Token) -> None:
        """A member joins, is alive, says what it holds, or leaves."""
        self._ask(beat, token)

    def join(self, request: Join, token: Token) -> None:
        """A member that speaks the classic protocol joins, or joins again."""
        self._ask(request, token)

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],  # noqa: ARG002  (the assignor of the group decides)
        token: Token,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> None:
        """Such a member asks for its assignment; nobody brings one."""
        self._ask(Sync(member_id, instance_id, generation, protocol_type, protocol), token)

    def _ask(self, request: Beat | Join | Sync, token: Token) -> None:
        member = self.members.get(request.member_id)
        if member is not None:
            self._touch(member)  # it is alive, however long the log takes
        self._queue.append((request, token))
        self._process()

    def leave(self, member_id: str, instance_id: str | None = None, reason: str = "") -> ErrorCode:
        """A classic member leaves, or an operator removes a member (LeaveGroup)."""
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None and not member_id:
            member_id = self.static.get(instance_id, "")
        try:
            member = self._find(member_id, instance_id)
        except ApiError as error:
            return error.code
        self._remove(member, "left", reason or "it left the group")
        self._process()
        return ErrorCode.NONE

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

        Also in an older epoch, if it has had all of them since then: it has not yet heard of
        the newer one, and no other member can have read them meanwhile (KIP-1251).
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE  # somebody who assigns partitions by hand
        try:
            member = self._find(member_id, instance_id)
        except ApiError as error:
            return error.code
        if not member.classic and not knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        code = _compare_epochs(member, epoch)
        if epoch < member.epoch and self._has_had(member, epoch, places):
            code = ErrorCode.NONE
        if member.classic and not code:
            self._touch(member)
        return code

    def _has_had(
        self, member: ConsumerMember, epoch: int, places: Iterable[tuple[str, int]]
    ) -> bool:
        topics = self._metadata().topics
        slots = [(topics[name].topic_id, index) for name, index in places if name in topics]
        return all(member.assigned_at.get(slot, epoch + 1) <= epoch for slot in slots)

    def may_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """May this member read the committed offsets?"""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE  # somebody who looks from outside
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return _compare_epochs(member, epoch)

    def refresh(self) -> None:
        """Topics have changed: perhaps there is more or less to read."""
        self._refresh = True
        self._process()

    # -- serving what has come --------------------------------------------------

    def _process(self) -> None:
        """Serve whoever waits, and write what has changed."""
        if self._in_flight is not None or self.state is State.DEAD:
            return
        served: list[tuple[Beat | Join | Sync, Token]] = []
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
        self._grow()
        for request, token in served:
            try:
                answers.append((token, self._serve(request)))
            except ApiError as error:
                answers.append((token, _refused(request, error)))
        if self._dirty:  # if not, nothing has changed, and nobody need be looked at
            self._become()
            self._write(answers)
        else:
            self.replies += answers

    def _note_refusal(self, request: Beat | Join | Sync, error: ApiError) -> None:
        if not isinstance(request, Sync) and error.code in _REFUSALS:
            who = f"client {request.client_id!r} at {request.client_host}"
            self._note("refused", None, f"{who}: {error.code.name}: {error.message}")

    def _take(self, request: Beat | Join | Sync) -> Answer | Beat | Join | Sync:
        """First, before the assignor runs: who is there, and what it wants to read.

        Gives the answer, or the request if it is to be served after the assignor.
        """
        if isinstance(request, Sync):
            return request
        if isinstance(request, Join):
            return self._take_join(request)
        if request.epoch in (LEFT, LEFT_FOR_A_WHILE):
            return self._take_leave(request)
        if request.regex:
            check_pattern(request.regex)  # a bad one is refused before anything has changed
        if request.epoch == 0:
            request = self._take_new(request)
        else:
            member = self._find(request.member_id, request.instance_id)
            self._check_epoch(member, request)
        self._subscribe(request)
        return request

    def _take_leave(self, beat: Beat) -> BeatResult:
        member = self._find(beat.member_id, beat.instance_id)
        if beat.epoch == LEFT:
            self._remove(member, "left", "it left the group")
        else:
            # Static: what it had is kept for it until its session is over.
            self._set_current(
                member, Current(LEFT_FOR_A_WHILE, MemberState.STABLE, member.assigned)
            )
            member.act_by = None  # what it had to give up, it has
            self._touch(member)
            self._note("away", member, "the static member stopped; its place is kept")
        return BeatResult(ErrorCode.NONE, None, beat.member_id, beat.epoch)

    def _take_new(self, beat: Beat) -> Beat:
        """Somebody joins, or joins again after it was fenced."""
        member_id = beat.member_id or self._new_id()
        beat = replace(beat, member_id=member_id)
        namesake = self.members.get(member_id)
        if namesake is not None and namesake.instance_id != beat.instance_id:
            message = f"member id {member_id} is that of instance {namesake.instance_id}"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        known = self.members.get(self.static.get(beat.instance_id or "", ""))
        if known is not None and known.member_id != member_id:
            if known.classic is None and known.epoch != LEFT_FOR_A_WHILE:
                raise ApiError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"instance {beat.instance_id!r} is still in use by member {known.member_id}",
                )
            self._replace_static(known, member_id)
        elif known is not None and known.epoch == LEFT_FOR_A_WHILE:
            self._set_current(known, Current(0, MemberState.STABLE, known.assigned))
        elif member_id not in self.members:
            self._add(member_id, beat.instance_id, beat.client_id, beat.client_host)
        return beat

    def _check_epoch(self, member: ConsumerMember, beat: Beat) -> None:
        if member.classic is not None:
            message = f"member {member.member_id} speaks the classic protocol"
            raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, message)
        if beat.epoch == member.epoch:
            return
        # It may have missed our last answer.  Then it holds nothing that is not its own.
        late = beat.epoch == member.previous_epoch < member.epoch and beat.owned is not None
        if not late or not (beat.owned or NO_SLOTS) <= member.assigned:
            message = f"epoch {beat.epoch} is not that of the member, {member.epoch}: join again"
            raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, message)

    def _subscribe(self, beat: Beat) -> None:
        """Take over what the member says about itself."""
        member = self.members[beat.member_id]
        said = {
            "rack_id": beat.rack_id,
            "client_id": beat.client_id or None,
            "client_host": beat.client_host or None,
            "topics": beat.topics,
            "regex": beat.regex,
            "assignor": beat.assignor,
            "rebalance_ms": beat.rebalance_ms if beat.rebalance_ms != -1 else None,
        }
        before = member.topics, member.regex or None, member.assignor
        changes = {k: v for k, v in said.items() if v is not None and getattr(member, k) != v}
        if member.classic is not None:
            member.classic, member.act_by = None, None
            self._dirty.add((Kind.MEMBER, member.member_id))
        for name, value in changes.items():
            setattr(member, name, value)
        if changes:
            self._dirty.add((Kind.MEMBER, member.member_id))
        self._subscribed(member, before)

    def _serve(self, request: Beat | Join | Sync) -> Answer:
        """Afterwards: the next step towards the target."""
        if isinstance(request, Sync):
            return self._serve_sync(request)
        if isinstance(request, Join):
            return self._serve_join(request)
        member = self.members.get(request.member_id)
        if member is None:
            raise unknown_member(request.member_id)
        before = member.assigned
        self._step(member, request.owned)
        given = None
        if request.full or member.assigned != before:
            given = member.assigned
        return BeatResult(
            ErrorCode.NONE, None, member.member_id, member.epoch, self._interval(), given
        )

    def _interval(self) -> int:
        usual = self.limits.heartbeat_ms
        if self.state is State.STABLE and self._now() - self._grown_at > 2 * usual:
            return usual
        return min(usual, _SOON_MS + _SOON_PER_MEMBER_MS * len(self.members))

    # -- the log ----------------------------------------------------------------

    def _write(self, answers: list[tuple[Token, Answer]]) -> None:
        dirty, self._dirty = frozenset(self._dirty), set()
        write = ConsumerWrite(stored_as.records(self, dirty), dirty, answers)
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
        if self.state is not State.DEAD:
            self._dirty |= write.dirty
            self._retry_at = self._now() + _RETRY_MS
            self._wake(self._retry_at)

    def replay(self, record: CoordinatorRecord) -> None:
        """Be what a record says."""
        stored_as.replay(self, record)

    def loaded(self) -> None:
        """The whole shard is replayed: sessions begin now."""
        self.owners.clear()
        for member in self.members.values():
            self.owners.update(dict.fromkeys(member.assigned | member.revoking, member.member_id))
            self._touch(member)
            if member.state is MemberState.UNREVOKED:
                self._act_by(member)
        self._note("loaded", None, "the coordinator read it from the log")
        self.refresh()
        self._become()

    def adopt(self, member: ConsumerMember) -> None:
        """Take a member over from a classic group, with what it has."""
        self._insert(member)
        taken = self.owners.keys()
        member.assigned = frozenset(slot for slot in member.assigned if slot not in taken)
        member.assigned_at = dict.fromkeys(member.assigned, member.epoch)
        self.owners.update(dict.fromkeys(member.assigned, member.member_id))
        self.targets[member.member_id] = member.assigned
        self._touch(member)

    def converted(self) -> None:
        """It was a classic group until now: everything is written, with the next write."""
        self._dirty |= stored_as.everything(self)
        self._dirty.add((Kind.CLASSIC, ""))
        self._refresh = True
        self._note("upgraded", None, "a member came with the consumer protocol")

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete everything that the log says about the group."""
        return stored_as.tombstones(self)

    def unload(self, error: ErrorCode) -> None:
        """The shard has moved, or the group is gone: nobody waits any longer."""
        self.state = State.DEAD
        if self._in_flight is not None and self._in_flight in self.writes:
            self.writes.clear()
            self.stored(self._in_flight, error)
        queue, self._queue = self._queue, []
        for request, token in queue:
            self.replies.append((token, _refused(request, ApiError(error))))
        self.members.clear()
        self.static.clear()
        self.targets.clear()
        self.owners.clear()
        self._dirty.clear()
        self._wake_at = self._retry_at = None

    # -- time -------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Nothing is due before this; ``tick`` then says when to look again."""
        return self._wake_at

    def tick(self) -> None:
        """Let everything happen whose time has come."""
        if self.state is State.DEAD:
            return
        now = self._now()
        for member in list(self.members.values()):
            if member.deadline <= now:
                self._remove(member, "expired", f"no heartbeat for {self._session(member)} ms")
            elif member.act_by is not None and member.act_by <= now:
                what = "give up its partitions"
                if member.classic is not None:
                    what = "join again"
                cause = f"it did not {what} within {member.rebalance_ms} ms"
                self._remove(member, "removed", cause)
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
        self._process()
        self._wake_at = min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterable[int]:
        for member in self.members.values():
            yield member.deadline
            if member.act_by is not None:
                yield member.act_by
        if self._retry_at is not None:
            yield self._retry_at

    # -- small things -----------------------------------------------------------

    @property
    def generation(self) -> int:
        """The group epoch, as the classic protocol calls it."""
        return self.epoch

    @property
    def pending(self) -> bool:
        """Is there somebody of whom nothing is written yet?"""
        return bool(self._queue) or self._in_flight is not None

    @property
    def untouched(self) -> bool:
        """Nobody was ever in it: a request that led to nothing made it."""
        return self.epoch == 0 and not self.members and not self.pending

    def _become(self) -> None:
        state = State.STABLE
        if not self.members:
            state = State.EMPTY
        elif not all(m.reconciled(self.target_epoch) for m in self.members.values()):
            state = State.RECONCILING
        if state is not self.state:
            self.state = state
            self.state_since_ms = self._clock.now_ms()
            if state is State.STABLE:
                self._note("stable", None, "every member has its assignment")
            elif state is State.EMPTY:
                self._note("empty", None, "the last member is gone")


def _compare_epochs(member: ConsumerMember, epoch: int) -> ErrorCode:
    if member.epoch == epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.classic else ErrorCode.STALE_MEMBER_EPOCH


def _refused(request: Beat | Join | Sync, error: ApiError) -> Answer:
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
