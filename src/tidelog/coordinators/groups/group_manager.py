"""The groups of one partition of ``__consumer_offsets``, and the requests of their members.

It calls the groups, writes what they want written, sends their answers, and wakes them when a
deadline has passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from tidelog.clock import Clock
from tidelog.coordinators.groups.classic_group import ClassicGroup
from tidelog.coordinators.groups.classic_image import ClassicWrite
from tidelog.coordinators.groups.consumer_group import ConsumerGroup, ConsumerWrite
from tidelog.coordinators.groups.consumer_members import Beat, BeatResult, ConsumerLimits
from tidelog.coordinators.groups.members import GroupLimits, Join, JoinResult, Sync, SyncResult
from tidelog.coordinators.groups.migration import downgrade, upgrade
from tidelog.coordinators.groups.records import (
    SERDE,
    ConsumerGroupKey,
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
)
from tidelog.coordinators.groups.states import GroupState
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.coordinators.groups.topic_regex import check_pattern
from tidelog.coordinators.records import CoordinatorRecord
from tidelog.coordinators.timer import CoordinatorTimer
from tidelog.coordinators.writer import PartitionWriter
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata

log = logging.getLogger(__name__)

Reply = Callable[[Any], None]
Group = ClassicGroup | ConsumerGroup

_FIRST_WITH_EPOCHS = 9  # version of OffsetCommit (KIP-848)


class GroupManager:
    """See the module."""

    def __init__(
        self,
        writer: PartitionWriter,
        timer: CoordinatorTimer,
        clock: Clock,
        limits: GroupLimits,
        consumer_limits: Callable[[str], ConsumerLimits],
        metadata: Callable[[], ClusterMetadata],
        has_offsets: Callable[[str], bool],
    ) -> None:
        self.groups: dict[str, Group] = {}
        self._writer = writer
        self._timer = timer
        self._clock = clock
        self._limits = limits
        self._consumer_limits = consumer_limits
        self._metadata = metadata
        self._has_offsets = has_offsets
        timer.on_expired(self._tick)

    # -- members ----------------------------------------------------------------

    def join(self, group_id: str, request: Join, reply: Reply) -> None:
        group = self.groups.get(group_id)
        if group is None:
            if request.member_id:
                # No group, so no members; and none is created for an unknown member id.
                reply(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
                return
            group = self.make(group_id)
        elif not self._limits.allow_session(request.session_ms):
            reply(JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id))
            return
        elif isinstance(group, ConsumerGroup) and not group.members and not group.pending:
            # The first member of an empty group decides which protocol it speaks.
            self.append(group.tombstones(), _ignore)
            self._forget(group)
            timeline = group.timeline
            group = self.make(group_id, timeline)
        group.join(request, reply)
        self._after(group)
        self._forget_if_untouched(group)

    def sync(self, group_id: str, request: Sync, reply: Reply) -> None:
        group = self.groups.get(group_id)
        if group is None:
            reply(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        group.sync(request, reply)
        self._after(group)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = group.heartbeat(member_id, instance_id, generation)
        self._after(group)
        return code

    def leave(
        self, group_id: str, member_id: str, instance_id: str | None, reason: str
    ) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = group.leave(member_id, instance_id, reason)
        self._after(group)
        return code

    def consumer_heartbeat(self, group_id: str, beat: Beat, reply: Reply) -> None:
        """A member of a consumer group; the first one makes it, or upgrades a classic one."""
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if beat.epoch != 0:
                message = f"there is no consumer group {group_id!r}: join with epoch 0"
                reply(BeatResult(ErrorCode.UNKNOWN_MEMBER_ID, message))
                return
            try:
                if beat.regex:
                    check_pattern(beat.regex)  # no group is converted for a bad request
                group = self._make_consumer(group_id) if group is None else self._upgrade(group)
            except ApiError as error:
                reply(BeatResult(error.code, error.message))
                return
        group.consumer_heartbeat(beat, reply)
        self._after(group)
        self._forget_if_untouched(group)

    def _upgrade(self, classic: ClassicGroup) -> ConsumerGroup:
        group = upgrade(classic, self._new_consumer, self._metadata())
        classic.unload(ErrorCode.REBALANCE_IN_PROGRESS)
        self._after(classic)
        self.groups[group.group_id] = group
        group.converted()
        return group

    def _downgrade(self, group: ConsumerGroup) -> None:
        classic = downgrade(group, self._new_classic)
        self.append(group.tombstones(), _ignore)
        group.unload(ErrorCode.REBALANCE_IN_PROGRESS)
        self._after(group)
        self.groups[group.group_id] = classic
        self._after(classic)

    def may_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """May this member read the offsets?  Only members of consumer groups are asked."""
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return ErrorCode.NONE
        return group.membership.may_fetch(member_id, epoch)

    def topics_changed(self, topics: set[str]) -> None:
        """Topics came, went or grew: consumer groups that read them get a new assignment."""
        for group in list(self.groups.values()):
            if isinstance(group, ConsumerGroup) and (
                group.image.regexes or not topics.isdisjoint(group.subscribed())
            ):
                group.refresh()
                self._after(group)

    def limits_changed(self, group_ids: Iterable[str]) -> None:
        """Consumer groups may be something else from now on."""
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                group.limits = self._consumer_limits(group_id)

    def may_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        places: Iterable[tuple[str, int]] = (),
    ) -> ErrorCode:
        """May this member commit offsets of these, with this version of OffsetCommit?

        A group that is not there is made by the first commit.
        """
        group = self.groups.get(group_id)
        knows_epochs = version >= _FIRST_WITH_EPOCHS
        if group is None:
            if generation < 0:
                return ErrorCode.NONE
            return ErrorCode.GROUP_ID_NOT_FOUND if knows_epochs else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ConsumerGroup):
            code = group.membership.may_commit(
                member_id, instance_id, generation, places, knows_epochs=knows_epochs
            )
        else:
            code = group.may_commit(member_id, instance_id, generation)
        self._after(group)
        return code

    # -- the log ----------------------------------------------------------------

    def replay(
        self, key: GroupMetadataKey | ConsumerGroupKey, record: CoordinatorRecord, time_ms: int
    ) -> None:
        """Apply a record."""
        if isinstance(key, GroupMetadataKey):
            self._replay_classic(key, record)
        else:
            self._replay_consumer(key, record, time_ms)

    def _replay_classic(self, key: GroupMetadataKey, record: CoordinatorRecord) -> None:
        group, value = self.groups.get(key.group), record.value
        if isinstance(value, GroupMetadataValue):
            if not isinstance(group, ClassicGroup):
                group = self.make(key.group)
            group.restore(value)
        elif isinstance(group, ClassicGroup) and _is_empty(group):
            self._forget(group)

    def _replay_consumer(
        self, key: ConsumerGroupKey, record: CoordinatorRecord, time_ms: int
    ) -> None:
        group = self.groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if record.value is None:
                return  # it is a classic group by now, or nothing
            group = self._make_consumer(key.group_id)
        group.replay(record)
        if not isinstance(key, ConsumerGroupMetadataKey):
            return
        group.state_since_ms = time_ms  # if it is empty, since its last epoch
        if record.value is None and not group.members and not group.pending:
            self._forget(group)

    def loaded(self) -> None:
        """Everything is replayed."""
        for group in self.groups.values():
            group.loaded()
            self._after(group)

    def unload(self, error: ErrorCode) -> None:
        """Leadership is gone: answer the requests that wait."""
        for group in self.groups.values():
            group.unload(error)
            self._after(group)

    # -- what groups want ---------------------------------------------------------

    def make(self, group_id: str, timeline: Timeline | None = None) -> ClassicGroup:
        group = self.groups[group_id] = self._new_classic(group_id, timeline)
        return group

    def _make_consumer(self, group_id: str) -> ConsumerGroup:
        group = self.groups[group_id] = self._new_consumer(group_id)
        return group

    def _new_classic(self, group_id: str, timeline: Timeline | None = None) -> ClassicGroup:
        return ClassicGroup(group_id, self._limits, self._clock, timeline=timeline)

    def _new_consumer(self, group_id: str, timeline: Timeline | None = None) -> ConsumerGroup:
        limits = self._consumer_limits(group_id)
        return ConsumerGroup(group_id, limits, self._clock, self._metadata, timeline=timeline)

    def _forget(self, group: Group) -> None:
        group.unload(ErrorCode.GROUP_ID_NOT_FOUND)
        self._after(group)
        del self.groups[group.group_id]

    def _forget_if_untouched(self, group: Group) -> None:
        """A join that was refused, or never came, leaves no group behind."""
        group_id = group.group_id
        known = self.groups.get(group_id) is group
        if known and group.untouched and not self._has_offsets(group_id):
            self._forget(group)

    def _tick(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return
        group.tick()
        self._after(group)
        self._forget_if_untouched(group)

    def _after(self, group: Group) -> None:
        """Do what the group wants done.  Replies last: they may bring the next request."""
        if group.writes:
            writes, group.writes = group.writes, []
            for write in writes:
                self._store(group, write)
        if self.groups.get(group.group_id) is group:  # not one that was converted meanwhile
            self._timer.schedule(group.group_id, group.next_deadline())
        if group.replies:
            replies = group.replies.copy()
            group.replies.clear()
            for reply, result in replies:
                assert callable(reply)
                try:
                    reply(result)
                except Exception:
                    log.exception("group %s: a reply failed", group.group_id)
        if isinstance(group, ConsumerGroup) and group.downgrades:
            self._downgrade(group)

    def _store(self, group: Group, write: ClassicWrite | ConsumerWrite) -> None:
        def stored(error: ErrorCode) -> None:
            if isinstance(group, ConsumerGroup):
                assert isinstance(write, ConsumerWrite)
                group.stored(write, error)
            else:
                assert isinstance(write, ClassicWrite)
                group.stored(write, error)
            self._after(group)

        self.append(write.records, stored)

    def append(
        self, records: Iterable[CoordinatorRecord], done: Callable[[ErrorCode], None]
    ) -> None:
        self._writer.write([SERDE.encode(record) for record in records], done, in_one_batch=False)


def _is_empty(group: ClassicGroup) -> bool:
    return group.state is GroupState.EMPTY and not group.pending


def _ignore(_: ErrorCode) -> None:
    """What could not be deleted is deleted with the group's next record, or expires."""
