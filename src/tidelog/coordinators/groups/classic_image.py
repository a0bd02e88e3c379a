"""The image of a classic group: what its record says, in memory.

The record is written when a generation begins, when the group becomes empty and when a static
member restarts; then a replay of the record gives the same image, which the random schedules check
after every step.  In between, a rebalance changes the members; they are then as good as new to the
next coordinator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.coordinators.groups.members import (
    Join,
    JoinedMember,
    JoinResult,
    Member,
    Protocols,
    Token,
)
from tidelog.coordinators.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from tidelog.coordinators.records import CoordinatorRecord
from tidelog.errors import ErrorCode
from tidelog.wire.consumer_protocol import PROTOCOL_TYPE, subscribed_topics


@dataclass(frozen=True, slots=True)
class ClassicWrite:
    """A record that must be in the log; ``stored`` says whether it is."""

    record: CoordinatorRecord
    generation: int
    assignments: Mapping[str, bytes] | None = None  # the leader's, to be given out afterwards
    token: Token | None = None  # a join that is answered afterwards
    answer: JoinResult | None = None

    @property
    def records(self) -> list[CoordinatorRecord]:
        return [self.record]


class ClassicGroupImage:
    """See the module."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self._supported: Counter[str] = Counter()  # protocol -> members that know it

    # -- members ----------------------------------------------------------------

    def insert(self, member: Member) -> None:
        self.members[member.member_id] = member
        self._supported.update(member.protocol_names)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def update(self, member: Member, request: Join) -> None:
        """A member joins again."""
        self._supported.subtract(member.protocol_names)
        member.update(request)
        self._supported.update(member.protocol_names)

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        self._supported.subtract(member.protocol_names)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if member.member_id == self.leader:
            self.leader = next(iter(self.members), None)

    def replace_static(self, member: Member, member_id: str, request: Join) -> None:
        """A static member came back under another member id."""
        # In its old place, so that the order of members (and so the next leader) stays.
        if self.leader == member.member_id:
            self.leader = member_id
        members = list(self.members.values())
        self.clear()
        member.member_id = member_id
        member.update(request)
        for other in members:
            self.insert(other)

    def find(self, member_id: str, instance_id: str | None) -> tuple[Member | None, ErrorCode]:
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

    def clear(self) -> None:
        self.members.clear()
        self.static.clear()
        self._supported.clear()

    def rebalance_timeout(self) -> int:
        return max((m.rebalance_ms for m in self.members.values()), default=0)

    # -- what they understand, and read ------------------------------------------

    def shares_protocol(self, request: Join) -> bool:
        """Do all the other members know one of these protocols?"""
        member_id = request.member_id or self.static.get(request.instance_id or "", "")
        member = self.members.get(member_id)
        own = set() if member is None else member.protocol_names
        others = len(self.members) - (member is not None)
        return any(self._supported[name] - (name in own) == others for name, _ in request.protocols)

    def select_protocol(self) -> str:
        """The protocol that most members prefer, of those that all know."""
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
            subscribed = subscribed_topics(data)
            if subscribed is None:
                return None
            topics |= subscribed
        return topics

    def same_topics(self, member: Member, protocols: Protocols) -> bool:
        """Does a restarted member read what it read before?  If we cannot know, it does."""
        if self.protocol_type != PROTOCOL_TYPE:
            return True
        before = subscribed_topics(member.metadata(self.protocol))
        data = next((data for name, data in protocols if name == self.protocol), b"")
        after = subscribed_topics(data)
        return before is None or after is None or before == after

    def joined(self, member: Member) -> JoinResult:
        """The answer to a JoinGroup in this generation."""
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
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
            members,
        )

    # -- the record ---------------------------------------------------------------

    def record(self, since_ms: int, assignments: Mapping[str, bytes] | None) -> CoordinatorRecord:
        """The group, with new assignments if there are any."""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=since_ms,
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
        return CoordinatorRecord(GroupMetadataKey(group=self.group_id), value)

    def tombstone(self) -> CoordinatorRecord:
        return CoordinatorRecord(GroupMetadataKey(group=self.group_id), None)

    def replay(self, value: GroupMetadataValue) -> None:
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol, self.leader = value.protocol, value.leader
        self.clear()
        for m in value.members:
            member = Member(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.session_timeout,
                m.session_timeout if m.rebalance_timeout < 0 else m.rebalance_timeout,
                ((value.protocol or "", m.subscription),),
                m.assignment,
            )
            self.insert(member)
