"""The consumer protocol (KIP-848): what a ConsumerGroupHeartbeat does to a group.

``take`` runs before the assignor, ``serve`` after it.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.coordinators.groups.assignors import NO_SLOTS
from tidelog.coordinators.groups.consumer_assignment import GroupContext
from tidelog.coordinators.groups.consumer_image import ConsumerGroupImage, RecordKind
from tidelog.coordinators.groups.consumer_members import (
    LEFT,
    LEFT_FOR_A_WHILE,
    Beat,
    BeatResult,
    ConsumerMember,
    Current,
    MemberState,
)
from tidelog.coordinators.groups.consumer_membership import GroupMembership
from tidelog.coordinators.groups.topic_regex import check_pattern
from tidelog.errors import ApiError, ErrorCode


class ConsumerHeartbeats:
    """See the module."""

    def __init__(
        self, image: ConsumerGroupImage, membership: GroupMembership, context: GroupContext
    ) -> None:
        self._image = image
        self._membership = membership
        self._context = context

    def take(self, beat: Beat) -> Beat | BeatResult:
        """Join, leave or change the subscription.

        Returns the answer, or the request if it is to be served after the assignor.
        """
        if beat.epoch in (LEFT, LEFT_FOR_A_WHILE):
            return self._leave(beat)
        if beat.regex:
            check_pattern(beat.regex)  # a bad one is refused before anything has changed
        if beat.epoch == 0:
            beat = self._join(beat)
        else:
            _check_epoch(self._image.find(beat.member_id, beat.instance_id), beat)
        self._subscribe(beat)
        return beat

    def serve(self, beat: Beat, interval_ms: int) -> BeatResult:
        """The next step towards the target."""
        member = self._image.find(beat.member_id)
        before = member.assigned
        self._membership.step(member, beat.owned)
        given = member.assigned if beat.full or member.assigned != before else None
        return BeatResult(ErrorCode.NONE, None, member.member_id, member.epoch, interval_ms, given)

    def _leave(self, beat: Beat) -> BeatResult:
        member = self._image.find(beat.member_id, beat.instance_id)
        if beat.epoch == LEFT:
            self._membership.remove(member, "left", "it left the group")
        else:
            # Static: what it had is kept for it until its session is over.
            self._image.set_current(
                member, Current(LEFT_FOR_A_WHILE, MemberState.STABLE, member.assigned)
            )
            member.act_by = None  # what it had to give up, it has
            self._membership.touch(member)
            cause = "the static member stopped; its place is kept"
            self._membership.note("away", member, cause)
        return BeatResult(ErrorCode.NONE, None, beat.member_id, beat.epoch)

    def _join(self, beat: Beat) -> Beat:
        """A member joins, or joins again after it was fenced."""
        image = self._image
        member_id = beat.member_id or self._context.new_id()
        namesake = image.members.get(member_id)
        if namesake is not None and namesake.instance_id != beat.instance_id:
            message = f"member id {member_id} is that of instance {namesake.instance_id}"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        known = image.static_member(beat.instance_id)
        if known is not None and known.member_id != member_id:
            if known.classic is None and known.epoch != LEFT_FOR_A_WHILE:
                raise ApiError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"instance {beat.instance_id!r} is still in use by member {known.member_id}",
                )
            self._membership.replace_static(known, member_id)
        elif known is not None and known.epoch == LEFT_FOR_A_WHILE:
            image.set_current(known, Current(0, MemberState.STABLE, known.assigned))
        elif member_id not in image.members:
            self._membership.add(member_id, beat.instance_id, beat.client_id, beat.client_host)
        return replace(beat, member_id=member_id)

    def _subscribe(self, beat: Beat) -> None:
        """Take over what the member says about itself."""
        member = self._image.members[beat.member_id]
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
        for name, value in changes.items():
            setattr(member, name, value)
        if changes or member.classic is not None:
            self._image.mark(member.member_id, RecordKind.MEMBER)
        if member.classic is not None:
            member.classic, member.act_by = None, None
        self._membership.subscribed(member, before)


def _check_epoch(member: ConsumerMember, beat: Beat) -> None:
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
