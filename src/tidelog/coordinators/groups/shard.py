"""The groups and offsets of one partition of ``__consumer_offsets``.

It owns the groups whose id hashes to the partition: it calls them, writes what they want
written, answers whom they answer, and wakes them when a deadline has passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidelog.clock import Clock
from tidelog.coordinators.groups.classic_group import ClassicGroup
from tidelog.coordinators.groups.classic_image import ClassicWrite
from tidelog.coordinators.groups.consumer_group import ConsumerGroup, ConsumerWrite
from tidelog.coordinators.groups.consumer_members import Beat, BeatResult, ConsumerLimits
from tidelog.coordinators.groups.members import GroupLimits, Join, JoinResult, SyncResult
from tidelog.coordinators.groups.migration import downgrade, upgrade
from tidelog.coordinators.groups.offset_store import OffsetStore
from tidelog.coordinators.groups.offsets import (
    Committed,
    LogStart,
    Usage,
    encode_commit,
    removal_record,
)
from tidelog.coordinators.groups.records import (
    SERDE,
    ConsumerGroupKey,
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.coordinators.groups.states import GroupState
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.coordinators.groups.topic_regex import check_pattern
from tidelog.coordinators.records import CoordinatorRecord, EncodedRecord
from tidelog.coordinators.timer import CoordinatorTimer
from tidelog.coordinators.writer import BATCH_BYTES, PartitionWriter, size_of
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata

log = logging.getLogger(__name__)

Reply = Callable[[Any], None]
Group = ClassicGroup | ConsumerGroup

_DELETED = "the group was deleted"
_TOPIC_DELETED = "the topic was deleted"
_FIRST_WITH_EPOCHS = 9  # version of OffsetCommit (KIP-848)
_GONE_KEPT = 1000  # groups of which only the reasons are left why their offsets went


class GroupShard:
    """See the module."""

    def __init__(
        self,
        writer: PartitionWriter,
        timer: CoordinatorTimer,
        clock: Clock,
        limits: GroupLimits,
        consumer_limits: Callable[[str], ConsumerLimits],
        metadata: Callable[[], ClusterMetadata],
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.store = OffsetStore()
        self.offsets = self.store.groups
        self._committing: dict[str, int] = {}  # group -> commits on their way into the log
        self._deletions = 0  # how often topics were deleted
        self._writer = writer
        self._timer = timer
        self._clock = clock
        self._limits = limits
        self._consumer_limits = consumer_limits
        self._metadata = metadata
        timer.on_expired(self._tick)

    # -- members ----------------------------------------------------------------

    def join(self, group_id: str, request: Join, reply: Reply) -> None:
        group = self.groups.get(group_id)
        if group is None:
            if request.member_id:
                # No group, so nobody in it; and no group is made for a stranger.
                reply(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
                return
            group = self._make(group_id)
        elif not self._limits.allow_session(request.session_ms):
            reply(JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id))
            return
        elif isinstance(group, ConsumerGroup) and not group.members and not group.pending:
            # Whoever comes first to an empty group says which protocol it speaks.
            self._append(group.tombstones(), _ignore)
            self._forget(group)
            timeline = group.timeline
            group = self._make(group_id, timeline)
        group.join(request, reply)
        self._after(group)
        self._forget_if_untouched(group)

    def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
        protocol_type: str | None,
        protocol: str | None,
        reply: Reply,
    ) -> None:
        group = self.groups.get(group_id)
        if group is None:
            reply(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        group.sync(member_id, instance_id, generation, assignments, reply, protocol_type, protocol)
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
        self._append(group.tombstones(), _ignore)
        group.unload(ErrorCode.REBALANCE_IN_PROGRESS)
        self._after(group)
        self.groups[group.group_id] = classic
        self._after(classic)

    def may_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """May this member read the offsets?  Only members of consumer groups are asked."""
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return ErrorCode.NONE
        return group.may_fetch(member_id, epoch)

    def topics_changed(self, topics: set[str]) -> None:
        """Topics came, went or grew: consumer groups that read them are assigned anew."""
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

    # -- offsets ----------------------------------------------------------------

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
            code = group.may_commit(
                member_id, instance_id, generation, places, knows_epochs=knows_epochs
            )
        else:
            code = group.may_commit(member_id, instance_id, generation)
        self._after(group)
        return code

    def commit(
        self,
        group_id: str,
        offsets: Iterable[tuple[str, int, Committed]],
        done: Callable[[ErrorCode], None],
        outsider: str = "",
    ) -> None:
        """Write offsets down; they count, and ``done`` hears, when they are safe.

        ``outsider`` is who commits without being a member: an administrator, or a client
        that assigns partitions by hand.
        """
        if group_id not in self.groups:
            self._make(group_id)
        rows = list(offsets)
        committing = self._committing
        committing[group_id] = committing.get(group_id, 0) + 1
        deletions = self._deletions

        def stored(error: ErrorCode) -> None:
            left = committing.pop(group_id) - 1
            if left:
                committing[group_id] = left
            if not error:
                if group_id not in self.groups:
                    self._make(group_id)  # it was forgotten or deleted meanwhile
                self.store.commit(group_id, rows)
                if outsider:
                    self._note_commit(group_id, rows, outsider)
                if deletions != self._deletions:
                    topics = self._metadata().topics
                    gone = [row[:2] for row in rows if row[0] not in topics]
                    if gone:
                        self.remove_offsets(
                            group_id, [(*row, _TOPIC_DELETED) for row in gone], _ignore
                        )
            done(error)

        self._writer.write([encode_commit(group_id, *row) for row in rows], stored)

    def _note_commit(
        self, group_id: str, rows: list[tuple[str, int, Committed]], outsider: str
    ) -> None:
        group = self.groups[group_id]
        named = ", ".join(f"{topic}-{index} to {at.offset}" for topic, index, at in rows[:3])
        more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
        cause = f"{outsider}, which is no member, set {named}{more}"
        group.timeline.add(self._clock.now_ms(), "committed", group.generation, "", cause)

    def remove_offsets(
        self,
        group_id: str,
        places: Iterable[tuple[str, int, str]],
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Forget offsets: topic, partition, and why."""
        self._write([removal_record(group_id, *place) for place in places], done)

    def delete(self, group_id: str, done: Callable[[ErrorCode], None]) -> None:
        """Forget a group without members, and all its offsets."""
        group = self.groups.get(group_id)
        if group is None:
            done(ErrorCode.GROUP_ID_NOT_FOUND)
            return
        if group.state is not GroupState.EMPTY or group_id in self._committing:
            done(ErrorCode.NON_EMPTY_GROUP)
            return
        records = [removal_record(group_id, *place, "") for place in self.store.places(group_id)]
        records += group.tombstones()
        records[-1] = records[-1]._replace(reason=_DELETED)
        self._write(records, done)

    def _write(self, records: list[CoordinatorRecord], done: Callable[[ErrorCode], None]) -> None:
        now_ms = self._clock.now_ms()

        def stored(error: ErrorCode) -> None:
            if not error:
                for record in records:
                    self.replay(record, now_ms)
            done(error)

        self._append(records, stored)

    # -- upkeep -----------------------------------------------------------------

    def expire(self, retention_ms: int | None, log_start: LogStart) -> None:
        """Let go of offsets whose time is over, and of groups that have nothing left."""
        now_ms = self._clock.now_ms()
        gone_groups = [group_id for group_id in self.offsets if group_id not in self.groups]
        for group_id in gone_groups[:-_GONE_KEPT]:
            del self.offsets[group_id]
        for group_id, group in list(self.groups.items()):
            if group_id in self._committing:
                continue  # what it has is about to be newer
            offsets = self.offsets.get(group_id)
            gone = []
            if offsets:
                empty = group.state is GroupState.EMPTY
                # Who commits without joining leaves no trace of how long it is there.
                since_ms = group.state_since_ms if group.protocol_type else 0
                usage = Usage(empty, since_ms, group.subscribed())
                gone = offsets.expired(now_ms, retention_ms, usage, log_start)
                pending = self.store.pending.places(group_id)
                gone = [row for row in gone if row[:2] not in pending]
                for topic, partition, reason in gone:
                    place = f"{topic}-{partition}"
                    log.info("group %s: offset of %s removed: %s", group_id, place, reason)
            if gone:
                self.remove_offsets(group_id, gone, _ignore)
            elif (
                group.state is GroupState.EMPTY
                and not group.pending
                and not self.store.uses(group_id)
            ):
                self._write(group.tombstones(), _ignore)

    def topics_deleted(self, topics: set[str]) -> None:
        """Offsets do not outlive their topic: a new one of the same name begins at its start."""
        self._deletions += 1
        for group_id in self.store.users():
            places = self.store.places(group_id)
            gone = [(*place, _TOPIC_DELETED) for place in places if place[0] in topics]
            if gone:
                self.remove_offsets(group_id, gone, _ignore)

    # -- the log ----------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, time_ms: int) -> None:
        """Be what a record says."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self.store.replay(key, value, record.reason, time_ms)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            group = self.groups.get(key.group)
            if value is not None:
                if not isinstance(group, ClassicGroup):
                    group = self._make(key.group)
                group.restore(value)
            elif (
                isinstance(group, ClassicGroup)
                and group.state is GroupState.EMPTY
                and not group.pending
            ):
                self._forget(group)
            if record.reason == _DELETED:
                self.offsets.pop(key.group, None)
        elif isinstance(key, ConsumerGroupKey):
            self._replay_consumer(key, record, time_ms)

    def replay_transactional(
        self, producer_id: int, record: CoordinatorRecord, offset: int, time_ms: int
    ) -> None:
        """An offset counts when its transaction is committed; nothing else is in transactions."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
            self.store.replay_transactional(producer_id, key, value, offset)
        else:
            self.replay(record, time_ms)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.store.end_transaction(producer_id, committed=committed)

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
        if record.value is None:
            if not group.members and not group.pending:
                self._forget(group)
            if record.reason == _DELETED:
                self.offsets.pop(key.group_id, None)

    def loaded(self) -> None:
        """Everything is replayed."""
        for group_id in self.store.users() - self.groups.keys():
            self._make(group_id)
        for group_id in sorted(self.store.pending.groups()):
            log.warning(
                "group %s: offsets are pending in the open transaction of producer %s: consumers "
                "that want stable offsets wait (UNSTABLE_OFFSET_COMMIT) until it ends, or until "
                "these offsets or the group are deleted",
                group_id,
                ", ".join(map(str, self.store.pending.producers(group_id))),
            )
        for group in self.groups.values():
            group.loaded()
            self._after(group)

    def unload(self, error: ErrorCode) -> None:
        for group in self.groups.values():
            group.unload(error)
            self._after(group)

    # -- what groups want ---------------------------------------------------------

    def _make(self, group_id: str, timeline: Timeline | None = None) -> ClassicGroup:
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
        used = group_id in self._committing or self.store.uses(group_id)
        if known and group.untouched and not used:
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

        self._append(write.records, stored)

    def _append(
        self, records: Iterable[CoordinatorRecord], done: Callable[[ErrorCode], None]
    ) -> None:
        """Write records, in as many batches as they need; ``done`` hears once, of all."""
        parts = _parts([SERDE.encode(record) for record in records])
        errors: list[ErrorCode] = []

        def stored(error: ErrorCode) -> None:
            errors.append(error)
            if len(errors) == len(parts):
                done(max(errors, key=lambda e: e != ErrorCode.NONE))

        for part in parts:
            self._writer.write(part, stored)


def _parts(rows: list[EncodedRecord]) -> list[list[EncodedRecord]]:
    """Records in pieces that a batch can hold; nearly always one."""
    parts: list[list[EncodedRecord]] = [[]]
    size = 0
    for row in rows:
        more = size_of(row)
        if parts[-1] and size + more > BATCH_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += more
    return parts


def _ignore(_: ErrorCode) -> None:
    """Upkeep: what could not be written is tried again the next time."""
