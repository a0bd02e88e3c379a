"""A classic consumer group: a pure state machine.

    Empty                no members; there may be committed offsets
    PreparingRebalance   members are asked to join again; those who do wait for the others
    CompletingRebalance  a new generation: everybody waits for the leader's assignment
    Stable               everybody has an assignment
    Dead                 gone: deleted, or the shard has moved to another broker

    Empty -> Preparing             the first member joins
    Preparing -> Completing        all have joined, or the rebalance timeout is over
    Preparing -> Empty             nobody has
    Completing -> Stable           the leader's assignment is written to the log
    Completing, Stable -> Preparing  a member joins, leaves, dies or changes its subscription
    any -> Dead                    ``unload``

No sockets, no log, no awaiting.  A request that cannot be answered at once is a token; what
is to be told is put into ``replies``, what must be written first into ``writes``; the owner
takes both after each call, writes, and reports with ``stored``.  It calls ``tick`` when
``next_deadline`` has passed.  Deadlines are in milliseconds of the clock that never goes back.

Where clients depend on it this is what Kafka does, down to the error codes; see KIP-62
(rebalance timeout), KIP-134 (initial delay), KIP-345 (static members), KIP-389 (group size),
KIP-394 (member id first), KIP-814 (a static leader that restarts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog import ids
from tidelog.clock import Clock
from tidelog.coordinators.groups.classic_state import ClassicState, Pending, Write, same_topics
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

NEW_MEMBER_TIMEOUT_MS = 300_000  # how long a new member may wait in its first rebalance
# A live client comes back with its new id at once.  One that does not holds nobody up.
PENDING_HOLD_MS = 3_000
_NAME_IN_ID = 250  # characters of a client id; a string of the protocol has 32767 bytes


class ClassicGroup(ClassicState):
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
        super().__init__(group_id, limits, clock, timeline)
        self._new_id = new_id
        self._join_deadline: int | None = None
        self._initial_left = -1  # of the first rebalance: ms by which it may still be put off
        self._newcomers = False  # ... and whether somebody came since it was
        self._sync_deadline: int | None = None
        self._storing = False  # the leader's assignment is being written

    # -- joining ----------------------------------------------------------------

    def join(self, request: Join, token: Token) -> None:
        """A member wants in, or in again; it is answered when the generation begins."""
        error = self._refusal(request)
        if error:
            self._note_refusal(request, error)
            self._answer(token, JoinResult(error, request.member_id))
        elif not request.member_id:
            self._join_unknown(request, token)
        else:
            self._join_known(request, token)
        self._complete_if_all_joined()

    def _refusal(self, request: Join) -> ErrorCode:
        """Why nobody with such a request may join; NONE if one may."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self.limits.allow_session(request.session_ms):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not self._has_room(request):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.members and (
            request.protocol_type != self.protocol_type
            or not any(self._all_support(name, request) for name, _ in request.protocols)
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _note_refusal(self, request: Join, error: ErrorCode) -> None:
        causes = {
            ErrorCode.GROUP_MAX_SIZE_REACHED: f"group.max.size is {self.limits.max_size}",
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "no assignor in common with the others",
        }
        if error in causes:
            who = f"client {request.client_id!r} at {request.client_host}"
            self._note("refused", None, f"{who}: {error.name}: {causes[error]}")

    def _join_unknown(self, request: Join, token: Token) -> None:
        """Somebody without a member id: new, or a static member that has restarted."""
        name = request.client_id if request.instance_id is None else request.instance_id
        member_id = f"{name[:_NAME_IN_ID]}-{self._new_id()}"
        if request.instance_id is not None and request.instance_id in self.static:
            self._replace_static(request, member_id, token)
        elif request.instance_id is None and request.id_first:
            now = self._now()
            deadline = now + request.session_ms
            self.pending[member_id] = Pending(deadline, min(now + PENDING_HOLD_MS, deadline))
            self._wake(self.pending[member_id].holds_until)
            self._answer(token, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, token)

    def _join_known(self, request: Join, token: Token) -> None:
        if request.member_id in self.pending and request.instance_id is None:
            del self.pending[request.member_id]
            self._add(request, request.member_id, token)
            return
        member, error = self._find(request.member_id, request.instance_id)
        if member is None:
            self._answer(token, JoinResult(error, request.member_id))
            return
        changed = member.protocols != request.protocols
        if self.state is GroupState.COMPLETING and not changed:
            # It has lost our answer.
            self._answer(token, self._joined(member))
        elif self.state is GroupState.STABLE and not changed and member.member_id != self.leader:
            self._touch(member)
            self._answer(token, self._joined(member))
        else:
            cause = "the leader asks for a new assignment"
            if self.state is GroupState.COMPLETING or member.member_id != self.leader:
                cause = "its subscription has changed"
            if request.reason:
                cause = f"{cause}; it says: {request.reason}"
            self._update(member, request, token)
            self._prepare(member, cause)

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
            join_token=token,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self._insert(member)
        self._waiting += 1
        self.leader = self.leader or member_id
        member.deadline = self._now() + NEW_MEMBER_TIMEOUT_MS
        self._wake(member.deadline)
        if self.state is GroupState.PREPARING:
            self._newcomers = True
        self._note("joined", member, request.reason or member.shown)
        self._prepare(member, f"a new member joined: {member.shown}")

    def _replace_static(self, request: Join, member_id: str, token: Token) -> None:
        """A static member came back under its instance id: it takes the old one's place."""
        old_id = self.static[request.instance_id or ""]
        old = self.members[old_id]
        self._refuse_parked(old, ErrorCode.FENCED_INSTANCE_ID)
        old_leader = self.leader
        unchanged = same_topics(self.protocol_type, self.protocol, old, request.protocols)
        # In its old place, so that the order of members (and so the next leader) stays.
        members, self.members = self.members, {}
        self._supported.clear()
        self.static.clear()
        for member in members.values():
            if member is old:
                member.member_id = member_id
                member.protocols = request.protocols
                member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
                member.client_id, member.client_host = request.client_id, request.client_host
            self._insert(member)
        if old_leader == old_id:
            self.leader = member_id
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(member_id)
        self._note("replaced", old, f"the static member restarted; {old_id} is fenced")
        if (
            self.state is GroupState.STABLE
            and unchanged
            and self._select_protocol() == self.protocol
        ):
            self._touch(old)
            was_leader = old_leader == old_id
            answer = self._joined(old)
            if was_leader and request.may_skip:
                answer = answer._replace(skip_assignment=True)
            elif was_leader:
                # Told so, it takes itself for a follower and computes no assignment.
                answer = answer._replace(leader=old_id, members=())
            self._write(token=token, answer=answer)
            return
        old.join_token = token
        self._waiting += 1
        self._prepare(old, "a static member restarted with another subscription or too early")

    # -- the rebalance ----------------------------------------------------------

    def _prepare(self, member: Member | None, cause: str) -> None:
        """Ask everybody to join again."""
        if self.state is GroupState.PREPARING:
            return
        now, timeout = self._now(), self._rebalance_timeout()
        if self.state is GroupState.COMPLETING:
            self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is GroupState.EMPTY:
            delay = self.limits.initial_delay_ms
            self._initial_left = max(timeout - delay, 0)
            self._join_deadline = now + delay
        else:
            self._join_deadline = now + timeout
        self._newcomers = False
        self._sync_deadline = None
        self._storing = False
        self._become(GroupState.PREPARING)
        self._wake(self._join_deadline)
        self._note("rebalance", member, cause)

    def _complete_if_all_joined(self) -> None:
        if self.state is not GroupState.PREPARING or self._initial_left >= 0:
            return
        if self._waiting < len(self.members):
            return
        now = self._now()
        if self.members and any(p.holds_until > now for p in self.pending.values()):
            return
        self._complete_join()

    def _join_timed_out(self) -> None:
        """The time to join again is over."""
        if self._initial_left > 0 and self._newcomers:
            delay = min(self.limits.initial_delay_ms, self._initial_left)
            if delay > 0:
                self._newcomers = False
                self._initial_left -= delay
                self._join_deadline = self._now() + delay
                self._wake(self._join_deadline)
                return
        for member in list(self.members.values()):
            # A static member keeps its place until its session is over.
            if member.join_token is None and member.instance_id is None:
                self._remove(member, "removed", "it did not join again in time")
        if self.members and not self._waiting:
            self._join_deadline = self._now() + self._rebalance_timeout()
            self._wake(self._join_deadline)
            return
        self._complete_join()

    def _complete_join(self) -> None:
        """The next generation begins."""
        self._join_deadline = None
        self._initial_left = -1
        self.generation = 0 if self.generation >= 2**31 - 1 else self.generation + 1
        if not self.members:
            self._empty()
            return
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join_token is None:
            self.leader = next(
                m.member_id for m in self.members.values() if m.join_token is not None
            )
        self.protocol = self._select_protocol()
        self._become(GroupState.COMPLETING)
        count = "1 member" if len(self.members) == 1 else f"{len(self.members)} members"
        self._note("generation", None, f"{count}, protocol {self.protocol}")
        self._sync_deadline = self._now() + self._rebalance_timeout()
        self._wake(self._sync_deadline)
        self._unsynced = set(self.members)
        for member in self.members.values():
            if member.join_token is not None:
                token, member.join_token = member.join_token, None
                member.is_new = False
                self._touch(member)
                self._answer(token, self._joined(member))
        self._waiting = 0

    def _empty(self) -> None:
        self.protocol = self.leader = None
        self._waiting = 0
        self._become(GroupState.EMPTY)
        self._note("empty", None, "the last member is gone")
        self._write()

    # -- syncing ----------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
        token: Token,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> None:
        """A member asks for its assignment; the leader brings everybody's."""
        member, error = self._current(member_id, instance_id, generation)
        if member is None:
            self._answer(token, SyncResult(error))
        elif protocol_type not in (None, self.protocol_type) or protocol not in (
            None,
            self.protocol,
        ):
            self._answer(token, SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif self.state is GroupState.PREPARING:
            self._answer(token, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        elif self.state is GroupState.STABLE:
            self._has_synced(member)
            self._touch(member)
            self._answer(token, self._assigned(member))
        else:
            if member.sync_token is not None:
                self._answer(member.sync_token, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
            member.sync_token = token
            self._has_synced(member)
            if member.member_id == self.leader and not self._storing:
                self._storing = True
                self._write({name: assignments.get(name, b"") for name in self.members})

    def _has_synced(self, member: Member) -> None:
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            self._sync_deadline = None

    def stored(self, write: Write, error: ErrorCode = ErrorCode.NONE) -> None:
        """A record of ours is in the log, or could not be written."""
        if write.token is not None and write.answer is not None:
            answer = write.answer
            if error:
                answer = JoinResult(error, answer.member_id)
            self._answer(write.token, answer)
        if write.assignments is None:
            return
        if self.state is not GroupState.COMPLETING or write.generation != self.generation:
            return  # another rebalance has begun; who waited for this one knows
        self._storing = False
        if error:
            self._refuse_syncs(error)
            self._prepare(None, f"the assignment could not be written: {error.name}")
            return
        for name, member in self.members.items():
            member.assignment = write.assignments.get(name, b"")
        self._become(GroupState.STABLE)
        self._note("stable", None, "every member has its assignment")
        for member in self.members.values():
            if member.sync_token is not None:
                token, member.sync_token = member.sync_token, None
                self._touch(member)
                self._answer(token, self._assigned(member))

    # -- staying and leaving ----------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A member is alive; the answer tells it whether to join again."""
        member, error = self._current(member_id, instance_id, generation)
        if member is None:
            return error
        self._touch(member)
        if self.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def may_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """May this member commit offsets now?"""
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE  # somebody who assigns partitions by hand
        member, error = self._current(member_id, instance_id, generation)
        if member is None:
            return error
        if self.state is GroupState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._touch(member)
        return ErrorCode.NONE

    def leave(self, member_id: str, instance_id: str | None = None, reason: str = "") -> ErrorCode:
        """A member leaves; an operator may remove a static one by its instance id alone."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None and not member_id:
            member_id = self.static.get(instance_id, "")
        if member_id in self.pending:
            del self.pending[member_id]
            self._complete_if_all_joined()
            return ErrorCode.NONE
        member, error = self._find(member_id, instance_id)
        if member is None:
            return error
        self._leave(member, "left", reason or "it left the group")
        return ErrorCode.NONE

    def _leave(self, member: Member, kind: str, cause: str) -> None:
        self._remove(member, kind, cause)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(member, f"a member {kind}: {member.shown}: {cause}")
        self._complete_if_all_joined()

    # -- time -------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Nothing is due before this; ``tick`` then says when to look again."""
        return self._wake_at

    def tick(self) -> None:
        """Let everything happen whose time has come."""
        now = self._now()
        for member_id, pending in list(self.pending.items()):
            if pending.deadline <= now:
                del self.pending[member_id]
        for member in list(self.members.values()):
            if member.deadline <= now and not _kept_alive(member):
                cause = f"no heartbeat for {member.session_ms} ms"
                if member.is_new:
                    cause = "its first rebalance took too long"
                self._leave(member, "expired", cause)
        if self._join_deadline is not None and self._join_deadline <= now:
            self._join_timed_out()
        if self._sync_deadline is not None and self._sync_deadline <= now:
            self._sync_deadline = None
            late = [m for m in self.members.values() if m.member_id in self._unsynced]
            for member in late:
                self._remove(member, "removed", "it did not ask for its assignment in time")
            if late:
                self._prepare(late[0], "a member did not ask for its assignment in time")
        self._complete_if_all_joined()
        self._wake_at = min(self._deadlines(), default=None)

    def _deadlines(self) -> list[int]:
        now = self._now()
        found = [m.deadline for m in self.members.values() if not _kept_alive(m)]
        found += [
            p.holds_until if p.holds_until > now else p.deadline for p in self.pending.values()
        ]
        return found + [d for d in (self._join_deadline, self._sync_deadline) if d is not None]

    # -- the end, and the beginning after it -------------------------------------

    def unload(self, error: ErrorCode) -> None:
        """The shard has moved, or the group is deleted: nobody waits any longer."""
        for member in self.members.values():
            self._refuse_parked(member, error)
        for write in self.writes:
            self.stored(write, error)
        self.members.clear()
        self.static.clear()
        self.pending.clear()
        self._supported.clear()
        self.writes.clear()
        self._waiting = 0
        self._join_deadline = self._sync_deadline = self._wake_at = None
        self._become(GroupState.DEAD)

    def loaded(self) -> None:
        """The whole shard is replayed: sessions begin now."""
        for member in self.members.values():
            self._touch(member)
        self._note("loaded", None, f"the coordinator read it from the log: {self.state}")

    def converted(self, cause: str) -> None:
        """It was a consumer group until now: write it down, and let everybody join again."""
        self._write()
        self._prepare(None, cause)

    # -- small things -----------------------------------------------------------

    def statuses(self) -> list[MemberStatus]:
        """Who is alive, and who is waited for."""
        return [self._status(member) for member in self.members.values()]

    def _status(self, member: Member) -> MemberStatus:
        waited_for = self.state is GroupState.PREPARING and member.join_token is None
        if self.state is GroupState.COMPLETING and not self._storing:
            waited_for = member.member_id == self.leader
        shown = (member.member_id, member.instance_id, member.client_id, member.client_host)
        if _kept_alive(member) or member.is_new:
            return MemberStatus(*shown, waited_for)
        now, ends = self._now(), member.deadline
        if waited_for and self._join_deadline is not None:
            ends = min(ends, self._join_deadline)
        silent = now - (member.deadline - member.session_ms)
        return MemberStatus(
            *shown, waited_for, silent_ms=max(silent, 0), expires_in_ms=max(ends - now, 0)
        )

    @property
    def untouched(self) -> bool:
        """Nobody was ever in it: a request that led to nothing made it."""
        return self.state is GroupState.EMPTY and self.generation == 0 and not self.pending


def _kept_alive(member: Member) -> bool:
    """Whoever waits for our answer cannot send heartbeats."""
    if member.sync_token is not None:
        return True
    return member.join_token is not None and not member.is_new
