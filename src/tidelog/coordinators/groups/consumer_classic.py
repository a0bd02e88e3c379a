"""The classic protocol in a consumer group (KIP-848, live upgrade): an adapter.

To members that still speak it a member epoch is a generation.  A heartbeat tells them to join
again when there is something new; none of them leads, and what they get is in the answer to their
SyncGroup.  ``take`` runs before the assignor, ``serve_join`` and ``serve_sync`` after it.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.coordinators.groups.consumer_assignment import GroupContext
from tidelog.coordinators.groups.consumer_image import (
    ConsumerGroupImage,
    RecordKind,
    unknown_member,
)
from tidelog.coordinators.groups.consumer_members import Classic, ConsumerMember, MemberState
from tidelog.coordinators.groups.consumer_membership import GroupMembership
from tidelog.coordinators.groups.members import Join, JoinResult, Sync, SyncResult
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    SubscribedPartitions,
    decode_consumer,
    encode_consumer,
)
from tidelog.wire.primitives import ProtocolError

_NEWEST_ASSIGNMENT = ConsumerProtocolAssignment.versions[1]


class ClassicAdapter:
    """See the module."""

    def __init__(
        self, image: ConsumerGroupImage, membership: GroupMembership, context: GroupContext
    ) -> None:
        self._image = image
        self._membership = membership
        self._context = context

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A member is alive; the answer tells it whether to join again."""
        image = self._image
        member = self._find(member_id, instance_id, generation)
        self._membership.touch(member)
        waits = member.state is MemberState.UNRELEASED and not all(
            image.is_free(slot, member) for slot in image.target(member) - member.assigned
        )
        if member.reconciled(image.epoch) or (waits and member.epoch == image.epoch):
            return ErrorCode.NONE
        if member.act_by is None:
            self._membership.must_act(member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def take(self, request: Join) -> JoinResult | Join:
        """Join, or change the subscription."""
        image = self._image
        known = image.static_member(request.instance_id)
        is_member = request.member_id in image.members or (
            known is not None and not request.member_id
        )
        if not is_member:
            self._membership.check_room()
        self._check_protocols(request)
        subscription = _subscription(request)
        member_id = request.member_id or f"{request.client_id[:250]}-{self._context.new_id()}"
        if not request.member_id and request.instance_id is None and request.id_first:
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        if request.instance_id is not None and request.member_id:
            image.find(request.member_id, request.instance_id)
        elif known is not None:
            self._membership.replace_static(known, member_id)
        elif member_id not in image.members:
            self._membership.add(
                member_id, request.instance_id, request.client_id, request.client_host
            )
        member = image.members[member_id]
        before = member.topics, member.regex or None, member.assignor
        member.classic = Classic(request.session_ms, request.protocols)
        member.rebalance_ms = request.rebalance_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        member.topics, member.regex = frozenset(subscription.topics), None
        member.rack_id = subscription.rack_id or member.rack_id
        image.mark(member_id, RecordKind.MEMBER)
        self._membership.subscribed(member, before)
        return replace(request, member_id=member_id)

    def _check_protocols(self, request: Join) -> None:
        """A classic member must be a consumer, and share a protocol with the others."""
        names = {name for name, _ in request.protocols}
        for member in self._image.members.values():
            if member.classic is not None and member.member_id != request.member_id:
                names &= {name for name, _ in member.classic.protocols}
        if request.protocol_type != PROTOCOL_TYPE or not names:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def serve_join(self, request: Join) -> JoinResult:
        member = self._image.members.get(request.member_id)
        if member is None or member.classic is None:
            raise unknown_member(request.member_id)
        topics = self._context.metadata().topics
        owned = frozenset(
            (topics[owned.topic].topic_id, index)
            for owned in _subscription(request).owned_partitions
            if owned.topic in topics
            for index in owned.partitions
        )
        self._membership.step(member, owned)
        self._membership.must_act(member)  # to sync
        protocol = member.classic.protocols[0][0]
        return JoinResult(ErrorCode.NONE, member.member_id, member.epoch, PROTOCOL_TYPE, protocol)

    def serve_sync(self, request: Sync) -> SyncResult:
        member = self._find(request.member_id, request.instance_id, request.generation)
        assert member.classic is not None
        protocol = member.classic.protocols[0][0]
        if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol not in (
            None,
            protocol,
        ):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self._image.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._membership.must_act(member)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        member.act_by = None
        if member.state is MemberState.UNREVOKED:
            self._membership.must_act(member)
        assignment = self.assignment_of(member)
        return SyncResult(ErrorCode.NONE, assignment, PROTOCOL_TYPE, protocol)

    def assignment_of(self, member: ConsumerMember) -> bytes:
        """What a member has, as the classic protocol says it."""
        names = self._context.metadata().topic_names
        by_name: dict[str, list[int]] = {}
        for topic_id, index in sorted(member.assigned):
            if topic_id in names:
                by_name.setdefault(names[topic_id], []).append(index)
        version = _NEWEST_ASSIGNMENT
        if member.classic is not None:
            # The version in which it speaks is one that it understands.
            said = int.from_bytes(member.classic.protocols[0][1][:2], "big", signed=True)
            version = min(max(said, 0), version)
        assigned = [SubscribedPartitions(topic=name, partitions=by_name[name]) for name in by_name]
        return encode_consumer(ConsumerProtocolAssignment(assigned_partitions=assigned), version)

    def _find(self, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
        member = self._image.find(member_id, instance_id)
        if member.classic is None:
            raise unknown_member(member_id)
        if member.epoch != generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member


def _subscription(request: Join) -> ConsumerProtocolSubscription:
    try:
        return decode_consumer(ConsumerProtocolSubscription, request.protocols[0][1])
    except ProtocolError as error:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, error.message) from error
