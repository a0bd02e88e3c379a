"""What a classic group knows: its members, what they understand, and its record in the log.

When it changes, and who is told, is the business of ``classic_group.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.coordinators.groups.members import (
    GroupLimits,
    Join,
    JoinedMember,
    JoinResult,
    Member,
    Protocols,
    SyncResult,
    Token,
)
from tidelog.coordinators.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from tidelog.coordinators.groups.states import GroupState
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.coordinators.records import CoordinatorRecord
from tidelog.errors import ErrorCode
from tidelog.wire.consumer_protocol import PROTOCOL_TYPE, subscribed_topics


@dataclass(frozen=True, slots=True)
class Write:
    """A record that must be in the log; ``stored`` says whether it is."""

    record: CoordinatorRecord
    generation: int
    assignments: Mapping[str, bytes] | None = None  # the leader's, to be given out afterwards
    token: Token | None = None  # a join that is answered afterwards
    answer: JoinResult | None = None

    @property
    def records(self) -> list[CoordinatorRecord]:
        return [self.record]


@dataclass(slots=True)
class Pending:
    """A member id that was given out and has not joined yet."""

    deadline: int
    holds_until: int


class ClassicState:
    """See the module."""

    def __init__(
        self,
        group_id: str,
        limits: GroupLimits,
        clock: Clock,
        timeline: Timeline | None,
    ) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = GroupState.EMPTY
        self.state_since_ms = clock.now_ms()
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.pending: dict[str, Pending] = {}
        self.timeline = timeline or Timeline()
        self.replies: list[tuple[Token, JoinResult | SyncResult]] = []
        self.writes: list[Write] = []
        self._clock = clock
        self._supported: Counter[str] = Counter()  # protocol -> members that know it
        self._waiting = 0  # members that have joined again
        self._unsynced: set[str] = set()  # members that have not asked for their assignment
        self._wake_at: int | None = None  # nothing is due before this

    # -- members ----------------------------------------------------------------

    def _insert(self, member: Member) -> None:
        self.members[member.member_id] = member
        self._supported.update(member.protocol_names)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def _update(self, member: Member, request: Join, token: Token) -> None:
        """A member joins again."""
        self._supported.subtract(member.protocol_names)
        member.protocols = request.protocols
        self._supported.update(member.protocol_names)
        member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        if member.join_token is None:
            self._waiting += 1
        else:
            # Its connection broke and it asks again; the first request leads nowhere.
            self._answer(
                member.join_token, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            )
        member.join_token = token

    def _remove(self, member: Member, kind: str, cause: str) -> None:
        self._refuse_parked(member, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        self._unsynced.discard(member.member_id)
        self._supported.subtract(member.protocol_names)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if member.member_id == self.leader:
            self.leader = next(iter(self.members), None)
        self._note(kind, member, cause)

    def _find(self, member_id: str, instance_id: str | None) -> tuple[Member | None, ErrorCode]:
        """The member, or what is wrong with its ids."""
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                return None, ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return None, ErrorCode.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        if member is None:
            return None, ErrorCode.UNKNOWN_MEMBER_ID
        return member, ErrorCode.NONE

    def _current(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Member | None, ErrorCode]:
        """The member, if it is of this generation."""
        if self.state is GroupState.DEAD:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        member, error = self._find(member_id, instance_id)
        if member is not None and generation != self.generation:
            return None, ErrorCode.ILLEGAL_GENERATION
        return member, error

    def _has_room(self, request: Join) -> bool:
        member = self.members.get(request.member_id)
        if member is None and request.instance_id in self.static:
            return True  # it takes a place that it has
        if member is None:
            # Ids that were given out do not count: who dies with one would shut others out.
            return len(self.members) < self.limits.max_size
        if self.state is GroupState.PREPARING and member.join_token is None:
            return self._waiting < self.limits.max_size  # the limit was lowered since
        return True

    def _rebalance_timeout(self) -> int:
        return max((m.rebalance_ms for m in self.members.values()), default=0)

    # -- what they understand, and read ------------------------------------------

    def _all_support(self, name: str, request: Join) -> bool:
        """Do all the others know this protocol?"""
        member_id = request.member_id or self.static.get(request.instance_id or "", "")
        member = self.members.get(member_id)
        others = len(self.members) - (member is not None)
        own = member is not None and name in member.protocol_names
        return self._supported[name] - own == others

    def _select_protocol(self) -> str:
        """The protocol that most members like best, of those that all know."""
        count = len(self.members)
        votes = Counter(
            next(name for name, _ in member.protocols if self._supported[name] == count)
            for member in self.members.values()
        )
        leader = self.members.get(self.leader or "") or next(iter(self.members.values()))
        order = [name for name, _ in leader.protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def subscribed(self) -> set[str] | None:
        """The topics that members ask for; None if that cannot be known."""
        if self.protocol_type != PROTOCOL_TYPE:
            return None if self.members else set()
        topics: set[str] = set()
        for member in self.members.values():
            # Before the first generation there is no protocol; any of its own says the same.
            data = member.metadata(self.protocol) or member.protocols[0][1]
            found = subscribed_topics(data)
            if found is None:
                return None
            topics |= found
        return topics

    # -- what they are told -------------------------------------------------------

    def _answer(self, token: Token, result: JoinResult | SyncResult) -> None:
        self.replies.append((token, result))

    def _joined(self, member: Member) -> JoinResult:
        rows: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            rows = tuple(
                JoinedMember(m.member_id, m.instance_id, m.metadata(self.protocol))
                for m in self.members.values()
            )
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            rows,
        )

    def _assigned(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol)

    def _refuse_parked(self, member: Member, error: ErrorCode) -> None:
        if member.join_token is not None:
            token, member.join_token = member.join_token, None
            self._waiting -= 1
            self._answer(token, JoinResult(error, member.member_id))
        if member.sync_token is not None:
            token, member.sync_token = member.sync_token, None
            self._answer(token, SyncResult(error))

    def _refuse_syncs(self, error: ErrorCode) -> None:
        for member in self.members.values():
            if member.sync_token is not None:
                token, member.sync_token = member.sync_token, None
                self._touch(member)
                self._answer(token, SyncResult(error))

    # -- the log ----------------------------------------------------------------

    def _write(
        self,
        assignments: Mapping[str, bytes] | None = None,
        token: Token | None = None,
        answer: JoinResult | None = None,
    ) -> None:
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.state_since_ms,
            members=[
                MemberMetadata(
                    member_id=m.member_id,
                    group_instance_id=m.instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    rebalance_timeout=m.rebalance_ms,
                    session_timeout=m.session_ms,
                    subscription=m.metadata(self.protocol),
                    assignment=m.assignment if assignments is None else assignments[m.member_id],
                )
                for m in self.members.values()
            ],
        )
        record = CoordinatorRecord(GroupMetadataKey(group=self.group_id), value)
        self.writes.append(Write(record, self.generation, assignments, token, answer))

    def restore(self, value: GroupMetadataValue) -> None:
        """Be what a record says: after a start or a move there is nothing else."""
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol, self.leader = value.protocol, value.leader
        self.members.clear()
        self.static.clear()
        self._supported.clear()
        for row in value.members:
            member = Member(
                row.member_id,
                row.group_instance_id,
                row.client_id,
                row.client_host,
                row.session_timeout,
                row.session_timeout if row.rebalance_timeout < 0 else row.rebalance_timeout,
                ((value.protocol or "", row.subscription),),
                row.assignment,
            )
            self._insert(member)
            self._touch(member)
        self._become(GroupState.STABLE if self.members else GroupState.EMPTY)
        if value.current_state_timestamp >= 0:
            self.state_since_ms = value.current_state_timestamp

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete everything that the log says about the group."""
        return [CoordinatorRecord(GroupMetadataKey(group=self.group_id), None)]

    # -- time, and what happened ------------------------------------------------

    def _become(self, state: GroupState) -> None:
        if state is not self.state:
            self.state = state
            self.state_since_ms = self._clock.now_ms()

    def _note(self, kind: str, member: Member | None, cause: str) -> None:
        member_id = member.member_id if member is not None else ""
        self.timeline.add(self._clock.now_ms(), kind, self.generation, member_id, cause)

    def _touch(self, member: Member) -> None:
        """The member is alive: its session begins anew."""
        member.deadline = self._now() + member.session_ms
        self._wake(member.deadline)

    def _wake(self, deadline: int) -> None:
        # A deadline that moves away leaves an early tick behind, which finds nothing to do.
        if self._wake_at is None or deadline < self._wake_at:
            self._wake_at = deadline

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)


def same_topics(
    protocol_type: str | None, protocol: str | None, old: Member, new: Protocols
) -> bool:
    """Does a restarted member read what it read before?  If we cannot know, it does."""
    if protocol_type != PROTOCOL_TYPE:
        return True
    before = subscribed_topics(old.metadata(protocol))
    after = subscribed_topics(next((data for name, data in new if name == protocol), b""))
    return before is None or after is None or before == after
