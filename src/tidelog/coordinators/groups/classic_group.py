"""A classic consumer group: a state machine without I/O.

    Empty                no members; there may be committed offsets
    PreparingRebalance   members are asked to join again; those who do wait for the others
    CompletingRebalance  a new generation: all members wait for the leader's assignment
    Stable               every member has an assignment
    Dead                 gone: deleted, or the shard was unloaded

This file serves the requests.  What the record says is in ``classic_image.py``; how a rebalance
goes from one state to the next in ``classic_rebalance.py``.

No sockets, no log, no awaiting.  A request that cannot be answered at once is a token; answers
are put into ``replies``, what must be written first into ``writes``; the shard takes both after
each call, writes, and reports with ``stored``.  It calls ``tick`` when ``next_deadline`` has
passed.  Deadlines are in milliseconds of the monotonic clock.

Where clients depend on it this is what Kafka does, down to the error codes; see KIP-62
(rebalance timeout), KIP-134 (initial delay), KIP-345 (static members), KIP-389 (group size),
KIP-394 (member id first), KIP-814 (a static leader that restarts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog import ids
from tidelog.clock import Clock
from tidelog.coordinators.groups.classic_image import ClassicGroupImage, ClassicWrite
from tidelog.coordinators.groups.classic_rebalance import PendingMember, Rebalance
from tidelog.coordinators.groups.deadlines import Deadlines
from tidelog.coordinators.groups.members import (
    GroupLimits,
    Join,
    JoinResult,
    Member,
    MemberStatus,
    Sync,
    SyncResult,
    Token,
)
from tidelog.coordinators.groups.records import GroupMetadataValue
from tidelog.coordinators.groups.states import GroupState
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.coordinators.records import CoordinatorRecord
from tidelog.errors import ErrorCode

NEW_MEMBER_TIMEOUT_MS = 300_000  # how long a new member may wait in its first rebalance
# A live client comes back with its new id at once.  One that does not holds up no rebalance.
PENDING_HOLD_MS = 3_000
_NAME_IN_ID = 250  # characters of a client id; a string of the protocol has 32767 bytes


class ClassicGroup:
    """See the module."""

    group_type = "classic"

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        clock: Clock,
        new_id: Callable[[], str] = ids.random_name,
        timeline: Timeline | None = None,
    ) -> None:
        self.group_id = group_id
        self.image = ClassicGroupImage(group_id)
        self.timeline = timeline or Timeline()
        self.writes: list[ClassicWrite] = []
        self._limits = limits
        self._new_id = new_id
        self._deadlines = Deadlines(clock)
        self._rebalance = Rebalance(
            self.image, limits, clock, self._deadlines, self.timeline, self._write
        )

    # -- joining ----------------------------------------------------------------

    def join(self, request: Join, token: Token) -> None:
        """A member joins, or joins again; it is answered when the generation begins."""
        error = self._rebalance.admit(request)
        if error:
            self._answer(token, JoinResult(error, request.member_id))
        elif not request.member_id:
            self._join_unknown(request, token)
        else:
            self._join_known(request, token)
        self._rebalance.complete_if_all_joined()

    def _join_unknown(self, request: Join, token: Token) -> None:
        """A client without a member id: new, or a static member that has restarted."""
        name = request.client_id if request.instance_id is None else request.instance_id
        member_id = f"{name[:_NAME_IN_ID]}-{self._new_id()}"
        if request.instance_id is not None and request.instance_id in self.image.static:
            self._replace_static(request, member_id, token)
        elif request.instance_id is None and request.id_first:
            now = self._deadlines.now()
            deadline = now + request.session_ms
            pending = PendingMember(deadline, min(now + PENDING_HOLD_MS, deadline))
            self.pending[member_id] = pending
            self._deadlines.add(pending.holds_until)
            self._answer(token, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, token)

    def _join_known(self, request: Join, token: Token) -> None:
        if request.member_id in self.pending and request.instance_id is None:
            del self.pending[request.member_id]
            self._add(request, request.member_id, token)
            return
        member, error = self.image.find(request.member_id, request.instance_id)
        if member is None:
            self._answer(token, JoinResult(error, request.member_id))
            return
        changed = member.protocols != request.protocols
        leads = member.member_id == self.leader
        if self.state is GroupState.COMPLETING and not changed:
            # It has lost our answer.
            self._answer(token, self.image.joined(member))
        elif self.state is GroupState.STABLE and not changed and not leads:
            self._rebalance.touch(member)
            self._answer(token, self.image.joined(member))
        else:
            cause = "the leader asks for a new assignment"
            if self.state is GroupState.COMPLETING or not leads:
                cause = "its subscription has changed"
            if request.reason:
                cause = f"{cause}; it says: {request.reason}"
            self.image.update(member, request)
            self._rebalance.park_join(member, token)
            self._rebalance.prepare(member, cause)

    def _add(self, request: Join, member_id: str, token: Token) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_ms,
            request.rebalance_ms,
            request.protocols,
            is_new=True,
            deadline=self._deadlines.now() + NEW_MEMBER_TIMEOUT_MS,
        )
        image = self.image
        if not image.members:
            image.protocol_type = request.protocol_type
        image.insert(member)
        image.leader = image.leader or member_id
        self._deadlines.add(member.deadline)
        self._rebalance.park_join(member, token)
        self._rebalance.newcomer()
        self._rebalance.note("joined", member, request.reason or member.shown)
        self._rebalance.prepare(member, f"a new member joined: {member.shown}")

    def _replace_static(self, request: Join, member_id: str, token: Token) -> None:
        """A static member came back under its instance id: it gets what it had."""
        image, rebalance = self.image, self._rebalance
        old_id = image.static[request.instance_id or ""]
        member = image.members[old_id]
        led = image.leader == old_id
        unchanged = image.same_topics(member, request.protocols)
        rebalance.replace_static(member, member_id, request)
        stable = self.state is GroupState.STABLE
        if stable and unchanged and image.select_protocol() == image.protocol:
            rebalance.touch(member)
            answer = image.joined(member)
            if led and request.may_skip:
                answer = answer._replace(skip_assignment=True)
            elif led:
                # Then it takes itself for a follower and computes no assignment.
                answer = answer._replace(leader=old_id, members=())
            self._write(token=token, answer=answer)
            return
        rebalance.park_join(member, token)
        cause = "a static member restarted with another subscription or too early"
        rebalance.prepare(member, cause)

    # -- syncing ----------------------------------------------------------------

    def sync(self, request: Sync, token: Token) -> None:
        """A member asks for its assignment; the leader brings all of them."""
        member, error = self._current(request.member_id, request.instance_id, request.generation)
        if member is None:
            self._answer(token, SyncResult(error))
        elif request.protocol_type not in (None, self.protocol_type) or request.protocol not in (
            None,
            self.protocol,
        ):
            self._answer(token, SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif self.state is GroupState.PREPARING:
            self._answer(token, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        elif self.state is GroupState.STABLE:
            self._rebalance.has_synced(member)
            self._rebalance.touch(member)
            self._answer(token, self._rebalance.assigned(member))
        else:
            self._rebalance.park_sync(member, token)
            if member.member_id == self.leader and not self._rebalance.storing:
                self._rebalance.storing = True
                self._write({name: request.assignments.get(name, b"") for name in self.members})

    def _current(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Member | None, ErrorCode]:
        """The member, if it is of this generation."""
        if self.state is GroupState.DEAD:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        member, error = self.image.find(member_id, instance_id)
        if member is not None and generation != self.generation:
            return None, ErrorCode.ILLEGAL_GENERATION
        return member, error

    # -- staying and leaving ----------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A member is alive; the answer tells it whether to join again."""
        member, error = self._current(member_id, instance_id, generation)
        if member is None:
            return error
        self._rebalance.touch(member)
        if self.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def may_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """May this member commit offsets now?"""
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE  # a client that assigns partitions by hand
        member, error = self._current(member_id, instance_id, generation)
        if member is None:
            return error
        if self.state is GroupState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._rebalance.touch(member)
        return ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None = None, reason: str = "") -> ErrorCode:
        """A member leaves; an operator may remove a static one by its instance id alone."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None and not member_id:
            member_id = self.image.static.get(instance_id, "")
        if member_id in self.pending:
            del self.pending[member_id]
            self._rebalance.complete_if_all_joined()
            return ErrorCode.NONE
        member, error = self.image.find(member_id, instance_id)
        if member is None:
            return error
        self._leave(member, "left", reason or "it left the group")
        return ErrorCode.NONE

    def _leave(self, member: Member, kind: str, cause: str) -> None:
        self._rebalance.remove(member, kind, cause)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._rebalance.prepare(member, f"a member {kind}: {member.shown}: {cause}")
        self._rebalance.complete_if_all_joined()

    # -- time -------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Nothing is due before this; ``tick`` then says when to look again."""
        return self._deadlines.next

    def tick(self) -> None:
        """Do everything whose time has come."""
        now = self._deadlines.now()
        for member in list(self.members.values()):
            if member.deadline <= now and not member.waits:
                cause = f"no heartbeat for {member.session_ms} ms"
                if member.is_new:
                    cause = "its first rebalance took too long"
                self._leave(member, "expired", cause)
        self._rebalance.tick()
        self._deadlines.reset(self._rebalance.deadlines())

    # -- the log ------------------------------------------------------------------

    def _write(
        self,
        assignments: Mapping[str, bytes] | None = None,
        token: Token | None = None,
        answer: JoinResult | None = None,
    ) -> None:
        record = self.image.record(self.state_since_ms, assignments)
        self.writes.append(ClassicWrite(record, self.generation, assignments, token, answer))

    def stored(self, write: ClassicWrite, error: ErrorCode = ErrorCode.NONE) -> None:
        """A record of ours is in the log, or could not be written."""
        if write.token is not None and write.answer is not None:
            answer = write.answer
            if error:
                answer = JoinResult(error, answer.member_id)
            self._answer(write.token, answer)
        if write.assignments is None:
            return
        if self.state is not GroupState.COMPLETING or write.generation != self.generation:
            return  # another rebalance has begun; those that waited for this one are answered
        if error:
            self._rebalance.answer_syncs(error)
            self._rebalance.prepare(None, f"the assignment could not be written: {error.name}")
            return
        self._rebalance.assign(write.assignments)

    def restore(self, value: GroupMetadataValue) -> None:
        """Apply a record, while the shard is loaded."""
        self.image.replay(value)
        for member in self.members.values():
            self._rebalance.touch(member)
        self._rebalance.become(GroupState.STABLE if self.members else GroupState.EMPTY)
        if value.current_state_timestamp >= 0:
            self._rebalance.state_since_ms = value.current_state_timestamp

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete everything that the log says about the group."""
        return [self.image.tombstone()]

    def unload(self, error: ErrorCode) -> None:
        """The shard is unloaded, or the group is deleted: answer the requests that wait."""
        self._rebalance.end(error)
        for write in self.writes:
            self.stored(write, error)
        self.writes.clear()
        self.image.clear()

    def loaded(self) -> None:
        """The whole partition is replayed: sessions begin now."""
        for member in self.members.values():
            self._rebalance.touch(member)
        self._rebalance.note("loaded", None, f"the coordinator read it from the log: {self.state}")

    def converted(self, cause: str) -> None:
        """It was a consumer group until now: write it down, and let all members join again."""
        self._write()
        self._rebalance.prepare(None, cause)

    # -- what others see ----------------------------------------------------------

    @property
    def state(self) -> GroupState:
        return self._rebalance.state

    @property
    def state_since_ms(self) -> int:
        return self._rebalance.state_since_ms

    @property
    def generation(self) -> int:
        return self.image.generation

    @property
    def protocol_type(self) -> str | None:
        return self.image.protocol_type

    @property
    def protocol(self) -> str | None:
        return self.image.protocol

    @property
    def leader(self) -> str | None:
        return self.image.leader

    @property
    def members(self) -> Mapping[str, Member]:
        return self.image.members

    @property
    def pending(self) -> dict[str, PendingMember]:
        """Member ids that were given out, to clients that have not joined with them yet."""
        return self._rebalance.pending

    @property
    def replies(self) -> list[tuple[Token, JoinResult | SyncResult]]:
        return self._rebalance.replies

    def subscribed(self) -> set[str] | None:
        """The topics that members ask for; None if that cannot be known."""
        return self.image.subscribed()

    @property
    def untouched(self) -> bool:
        """It never had members: a request that led to nothing made it."""
        return self.state is GroupState.EMPTY and self.generation == 0 and not self.pending

    def statuses(self) -> list[MemberStatus]:
        """Which members are alive, and which ones a rebalance waits for."""
        return [self._rebalance.status(member) for member in self.members.values()]

    def _answer(self, token: Token, result: JoinResult | SyncResult) -> None:
        self._rebalance.answer(token, result)
