"""Members of a consumer group that still speak the classic protocol (KIP-848, live upgrade).

To them a member epoch is a generation.  A heartbeat tells them to join again when there is
something new; nobody of them leads, and what they get is in the answer to their SyncGroup.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidelog.coordinators.groups.consumer_members import Classic, ConsumerMember, MemberState
from tidelog.coordinators.groups.consumer_records import Kind
from tidelog.coordinators.groups.consumer_state import ConsumerState, unknown_member
from tidelog.coordinators.groups.members import Join, JoinResult, SyncResult
from tidelog.coordinators.groups.states import State
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    decode_consumer,
    encode_consumer,
)
from tidelog.wire.primitives import ProtocolError

_NEWEST_ASSIGNMENT = ConsumerProtocolAssignment.versions[1]


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup of a classic member."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None


class ClassicMembers(ConsumerState):
    """See the module."""

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A classic member is alive; the answer tells it whether to join again."""
        try:
            member = self._classic_member(member_id, instance_id, generation)
        except ApiError as error:
            return error.code
        self._touch(member)
        waits = member.state is MemberState.UNRELEASED and not all(
            self._is_free(slot, member) for slot in self._target(member) - member.assigned
        )
        if member.reconciled(self.epoch) or (waits and member.epoch == self.epoch):
            return ErrorCode.NONE
        if member.act_by is None:
            self._act_by(member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _take_join(self, request: Join) -> JoinResult | Join:
        known = self.members.get(self.static.get(request.instance_id or "", ""))
        is_member = request.member_id in self.members or (
            known is not None and not request.member_id
        )
        if not is_member:
            self._check_room()
        self._check_protocols(request)
        subscription = _subscription(request)
        member_id = request.member_id or f"{request.client_id[:250]}-{self._new_id()}"
        if not request.member_id and request.instance_id is None and request.id_first:
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        if request.instance_id is not None and request.member_id:
            self._find(request.member_id, request.instance_id)
        elif known is not None:
            self._replace_static(known, member_id)
        elif member_id not in self.members:
            self._add(member_id, request.instance_id, request.client_id, request.client_host)
        member = self.members[member_id]
        before = member.topics, member.regex or None, member.assignor
        member.classic = Classic(request.session_ms, request.protocols)
        member.rebalance_ms = request.rebalance_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        member.topics, member.regex = frozenset(subscription.topics), None
        member.rack_id = subscription.rack_id or member.rack_id
        self._dirty.add((Kind.MEMBER, member_id))
        self._subscribed(member, before)
        return replace(request, member_id=member_id)

    def _check_protocols(self, request: Join) -> None:
        """A classic member must be a consumer, and share a protocol with the others."""
        names = {name for name, _ in request.protocols}
        for member in self.members.values():
            if member.classic is not None and member.member_id != request.member_id:
                names &= {name for name, _ in member.classic.protocols}
        if request.protocol_type != PROTOCOL_TYPE or not names:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _serve_join(self, request: Join) -> JoinResult:
        member = self.members.get(request.member_id)
        if member is None or member.classic is None:
            raise unknown_member(request.member_id)
        topics = self._metadata().topics
        owned = frozenset(
            (topics[row.topic].topic_id, index)
            for row in _subscription(request).owned_partitions
            if row.topic in topics
            for index in row.partitions
        )
        self._step(member, owned)
        self._act_by(member)  # to sync
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            member.epoch,
            PROTOCOL_TYPE,
            member.classic.protocols[0][0],
        )

    def _serve_sync(self, request: Sync) -> SyncResult:
        member = self._classic_member(request.member_id, request.instance_id, request.generation)
        assert member.classic is not None
        protocol = member.classic.protocols[0][0]
        if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol not in (
            None,
            protocol,
        ):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._act_by(member)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.act_by = None
        if member.state is MemberState.UNREVOKED:
            self._act_by(member)
        return SyncResult(ErrorCode.NONE, self.classic_assignment(member), PROTOCOL_TYPE, protocol)

    def classic_assignment(self, member: ConsumerMember) -> bytes:
        """What a member has, as classic members are told it."""
        names = self._metadata().topic_names
        found: dict[str, list[int]] = {}
        for topic_id, index in sorted(member.assigned):
            if topic_id in names:
                found.setdefault(names[topic_id], []).append(index)
        version = _NEWEST_ASSIGNMENT
        if member.classic is not None:
            # The version in which it speaks is one that it understands.
            said = int.from_bytes(member.classic.protocols[0][1][:2], "big", signed=True)
            version = min(max(said, 0), version)
        rows = [TopicPartitions(topic=name, partitions=found[name]) for name in found]
        return encode_consumer(ConsumerProtocolAssignment(assigned_partitions=rows), version)

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ConsumerMember:
        member = self._find(member_id, instance_id)
        if member.classic is None:
            raise unknown_member(member_id)
        if member.epoch != generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    @property
    def downgrades(self) -> bool:
        """Are only classic members left, so that it should be a classic group again?"""
        return (
            self.limits.downgrade
            and self.state is not State.DEAD
            and bool(self.members)
            and all(member.classic is not None for member in self.members.values())
        )


def _subscription(request: Join) -> ConsumerProtocolSubscription:
    try:
        return decode_consumer(ConsumerProtocolSubscription, request.protocols[0][1])
    except ProtocolError as error:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, error.message) from error
