"""A shard of the group coordinator: groups and offsets of a partition of ``__consumer_offsets``.

Requests of members go to its ``manager``.  Offsets, deletion and expiry are here: they count when
they are written, by ``replay``, which also loads the shard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tidelog.clock import Clock
from tidelog.coordinators.groups.consumer_members import ConsumerLimits
from tidelog.coordinators.groups.group_manager import GroupManager
from tidelog.coordinators.groups.members import GroupLimits
from tidelog.coordinators.groups.offset_store import OffsetStore
from tidelog.coordinators.groups.offsets import (
    Committed,
    LogStart,
    Usage,
    encode_commit,
    removal_record,
)
from tidelog.coordinators.groups.records import (
    ConsumerGroupKey,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.coordinators.groups.states import GroupState
from tidelog.coordinators.records import CoordinatorRecord
from tidelog.coordinators.timer import CoordinatorTimer
from tidelog.coordinators.writer import PartitionWriter
from tidelog.errors import ErrorCode
from tidelog.metadata import ClusterMetadata

log = logging.getLogger(__name__)

_DELETED = "the group was deleted"
_TOPIC_DELETED = "the topic was deleted"
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
        self.store = OffsetStore()
        self.offsets = self.store.groups
        committing: dict[str, int] = {}
        store = self.store
        self.manager = GroupManager(
            writer,
            timer,
            clock,
            limits,
            consumer_limits,
            metadata,
            lambda group_id: group_id in committing or store.uses(group_id),
        )
        self.groups = self.manager.groups
        self._committing = committing  # group -> commits on their way into the log
        self._deletions = 0  # how often topics were deleted
        self._writer = writer
        self._clock = clock
        self._metadata = metadata

    # -- offsets ----------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        offsets: Iterable[tuple[str, int, Committed]],
        done: Callable[[ErrorCode], None],
        outsider: str = "",
    ) -> None:
        """Write offsets; they count, and ``done`` is called, when they are committed.

        ``outsider`` names a client that commits without being a member: an administrator, or one
        that assigns partitions by hand.
        """
        if group_id not in self.groups:
            self.manager.make(group_id)
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
                    self.manager.make(group_id)  # it was forgotten or deleted meanwhile
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

        self.manager.append(records, stored)

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
                # A client that commits without joining leaves no trace of how long it is there.
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
        for group_id in sorted(self.store.users()):
            places = self.store.places(group_id)
            gone = [(*place, _TOPIC_DELETED) for place in places if place[0] in topics]
            if gone:
                self.remove_offsets(group_id, gone, _ignore)

    # -- the log ----------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, time_ms: int) -> None:
        """Apply a record."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self.store.replay(key, value, record.reason, time_ms)
        elif isinstance(key, (GroupMetadataKey, ConsumerGroupKey)):
            self.manager.replay(key, record, time_ms)
            if record.reason == _DELETED:
                group_id = key.group if isinstance(key, GroupMetadataKey) else key.group_id
                self.offsets.pop(group_id, None)

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

    def loaded(self) -> None:
        """Everything is replayed."""
        for group_id in sorted(self.store.users() - self.groups.keys()):
            self.manager.make(group_id)
        for group_id in sorted(self.store.pending.groups()):
            log.warning(
                "group %s: offsets are pending in the open transaction of producer %s: consumers "
                "that want stable offsets wait (UNSTABLE_OFFSET_COMMIT) until it ends, or until "
                "these offsets or the group are deleted",
                group_id,
                ", ".join(map(str, self.store.pending.producers(group_id))),
            )
        self.manager.loaded()

    def unload(self, error: ErrorCode) -> None:
        self.manager.unload(error)


def _ignore(_: ErrorCode) -> None:
    """Upkeep: what could not be written is tried again the next time."""
