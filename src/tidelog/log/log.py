"""The log of one partition: append at the end, read anywhere, forget from the start.

Invariants, checked by ``check_invariants`` in tests after every step:

    log start offset <= high watermark <= log end offset
    log start offset <= last stable offset <= high watermark
    recovery point (flushed up to here) <= log end offset
    segments are sorted, do not overlap, and the last one is the active one

The partition is the only caller that writes.  The segment list is an immutable tuple
that is replaced, never changed: a reader that holds one reads on, whatever happens.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from tidelog import files, ids
from tidelog.errors import ApiError, ErrorCode
from tidelog.files import remove, sync_file
from tidelog.log import cleaner_swap, recovery, retention, timestamps
from tidelog.log.flush import Flush, RecordsLost
from tidelog.log.index import TimeIndex
from tidelog.log.leader_epochs import LeaderEpochs, epochs_path
from tidelog.log.producer_state import (
    ProducerState,
    load_newest_snapshot,
    save_between,
    save_snapshot,
    snapshot_offsets,
    snapshot_path,
)
from tidelog.log.segment import MAX_RELATIVE, FileRange, Segment
from tidelog.log.transaction_index import Aborted
from tidelog.settings import LogConfig
from tidelog.wire.batch import CONTROL, HEADER_SIZE, MAGIC, BatchHeader, place, read_header
from tidelog.wire.markers import Marker, read_marker
from tidelog.wire.records import split_batches

log = logging.getLogger(__name__)

_CHUNK = 256 * 1024  # what is read at a time by those who want all of it
_SNAPSHOT_BATCHES = 2000  # so many are read again, or twice that, to cut off the last one
_RECENT = 32  # batches whose position is remembered, for consumers at the tail
_new_tuple = tuple.__new__  # half the time of Appended(...)


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int
    last_offset: int
    duplicate: bool = False


class Log:
    """See the module.  Made by :func:`open_log`."""

    def __init__(self, directory: str, config: LogConfig, segments: list[Segment]) -> None:
        self.directory = directory
        self.config = config
        self.log_start_offset = segments[0].base_offset
        self.end_offset = segments[-1].base_offset
        self.high_watermark = self.log_start_offset
        self.recovery_point = self.log_start_offset
        self.producers = ProducerState()
        self.epochs = LeaderEpochs()
        self.cleaned_offset: int | None = None  # compaction has been through up to here
        self.uncleanable = ""  # why compaction cannot work on this log
        self.swapping: int | None = None  # see cleaner_swap.py
        self.truncations = self._flushed_truncations = 0
        self.first_unflushed_ms: int | None = None
        self.flush_wanted = False
        self.flush_failed = False  # since the last one that went well
        self.lost_records = False  # see flush.py: no more writes until a restart
        self._flushing = False
        self._recent: dict[int, tuple[int, int]] = {}
        self._unsnapped = 0  # batches since the latest snapshot
        self._unsynced_names = True  # the directory itself may be new
        self._unsynced_epochs = False
        self._unsaved_epochs = False
        self._set_segments(segments)

    def _set_segments(self, segments: list[Segment]) -> None:
        self.segments: tuple[Segment, ...] = tuple(segments)
        self._bases = tuple(segment.base_offset for segment in segments)
        self.active = segments[-1]
        self._recent.clear()
        self.configure(self.config)

    def configure(self, config: LogConfig) -> None:
        """Take new settings; what each append compares with is worked out here."""
        self.config = config
        self._max_entries = config.segment_index_bytes // TimeIndex.entry.size
        oldest = self.active.oldest_ms()
        start = oldest if oldest is not None and oldest >= 0 else self.active.created_ms
        self._roll_after = start + self._segment_ms()

    # -- writing ----------------------------------------------------------------

    def append(
        self, batch: bytearray | memoryview, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Give a checked batch the next offsets and write it.

        ``batch`` is changed in place (base offset and leader epoch).  On an OSError
        nothing has changed: not the file, not the offsets, not the producers.
        """
        marker: Marker | None = None
        if header.producer_id >= 0:
            if header.attributes & CONTROL:
                marker = read_marker(batch)
                if marker is not None:
                    self.producers.check_marker(header, marker)
            elif (duplicate := self.producers.check(header)) is not None:
                return Appended(duplicate.base_offset, duplicate.last_offset, duplicate=True)
        return self._put(batch, header, self.end_offset, leader_epoch, marker, now_ms)

    def append_replicated(
        self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int
    ) -> None:
        """Write a batch of the leader as it is: its offsets and its epoch are decided.

        There may be a hole before it, as compaction leaves them.  The producers' sequences
        were checked by the leader.
        """
        start = None
        if header.base_offset < self.end_offset:
            if self.end_offset > self.log_start_offset or header.last_offset < self.end_offset:
                raise ApiError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"a batch at offset {header.base_offset}, "
                    f"but the log ends at {self.end_offset}",
                )
            # We have nothing, and the leader's log starts within a batch (DeleteRecords).
            start = self.log_start_offset
            self.restart_at(header.base_offset)
        marker = None
        if header.producer_id >= 0 and header.attributes & CONTROL:
            marker = read_marker(batch)
        self._put(batch, header, header.base_offset, header.leader_epoch, marker, now_ms)
        if start is not None:
            self.high_watermark = start
            self.advance_start(start)

    def _put(
        self,
        batch: bytearray | memoryview,
        header: BatchHeader,
        base_offset: int,
        leader_epoch: int,
        marker: Marker | None,
        now_ms: int,
    ) -> Appended:
        delta, producer_id = header.last_offset_delta, header.producer_id
        size = len(batch)
        last_offset = base_offset + delta
        timestamp = header.max_timestamp
        active = self.active
        if active.size == 0:
            # The age of a segment counts from its first batch.
            self._roll_after = self._oldest(timestamp, now_ms) + self._segment_ms()
        elif (
            active.size + size > self.config.segment_bytes
            or (timestamp if timestamp >= 0 else now_ms) > self._roll_after
            or last_offset - active.base_offset > MAX_RELATIVE
            or active.index_entries >= self._max_entries
        ):
            self.roll(now_ms)
            self._roll_after = self._oldest(timestamp, now_ms) + self._segment_ms()
            active = self.active
        if leader_epoch > self.epochs.latest:
            self.assign_epoch(leader_epoch, base_offset)
        place(batch, base_offset, leader_epoch)
        position = active.size
        active.append(batch, last_offset, timestamp, self.config.index_interval_bytes)
        self.end_offset = last_offset + 1
        if marker is not None:
            self.producers.first_unstable(self.high_watermark)  # forgets what is stable now
            aborted = self.producers.end_transaction(header, marker, base_offset)
            if aborted is not None:
                active.transaction_index.add(aborted)
        elif producer_id >= 0:
            self.producers.update(header, base_offset)
        recent = self._recent
        if len(recent) >= _RECENT:
            recent.clear()
        recent[base_offset] = (position, size)
        self._unsnapped += 1
        if self._unsnapped >= _SNAPSHOT_BATCHES:
            self._unsnapped = 0
            save_between(self.directory, self.end_offset, self.producers, self._bases)
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms
        return _new_tuple(Appended, (base_offset, last_offset, False))

    def forget_empty_epochs(self) -> None:
        """Epochs that were assigned and then wrote nothing: a follower takes the leader's."""
        if self.epochs.truncate_from_end(self.end_offset):
            self._save_epochs()

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last batch; -1 if there is none."""
        end = self.end_offset
        return -1 if end == self.log_start_offset else self.epochs.epoch_at(end - 1)

    def begin_epoch(self, epoch: int) -> None:
        """A leader begins, at the end; also with a full disk, from which one may still read."""
        if self.epochs.assign(epoch, self.end_offset):
            self._save_epochs()

    def _save_epochs(self) -> None:
        """Write the epochs down, or else leave it to the next flush."""
        self._unsynced_epochs = True
        try:
            self.epochs.save(self.directory, sync=False)
        except OSError as error:
            self._unsaved_epochs = True
            log.warning("%s: leader epochs not saved yet: %s", self.directory, error)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """A new leader starts to write at ``start_offset``."""
        changed = LeaderEpochs(list(self.epochs.entries))
        if changed.assign(epoch, start_offset):
            # Synced by the next flush, not here, where a producer and all other clients wait:
            # up to then recovery finds the epoch in the batches.
            changed.save(self.directory, sync=False)
            self.epochs = changed
            self._unsynced_epochs = True

    def _oldest(self, timestamp: int, now_ms: int) -> int:
        return timestamp if timestamp >= 0 else now_ms

    def _segment_ms(self) -> int:
        jitter = self.config.segment_jitter_ms
        age = self.config.segment_ms
        if "compact" in self.config.cleanup_policy:  # the active segment is not compacted
            age = min(age, self.config.max_compaction_lag_ms)
        return age - (ids.number(0, min(jitter, age)) if jitter else 0)

    def roll(self, now_ms: int) -> None:
        """Close the active segment and start a new one at the log end."""
        new = Segment(self.directory, self.end_offset, create=True)
        new.created_ms = now_ms
        try:
            self.active.close_for_writing()
            save_snapshot(self.directory, self.end_offset, self.producers)
        except OSError as error:
            # Recovery can do without both; the append that follows decides.
            log.warning("%s: closing a segment: %s", self.directory, error)
        self._unsynced_names = True
        self.flush_wanted = True
        self._set_segments([*self.segments, new])

    # -- flushing ---------------------------------------------------------------

    def begin_flush(self) -> Flush:
        """Note what is to be flushed: everything up to now.

        It may be carried out in another thread; then :meth:`end_flush` is called, and before
        that no other flush begins.  The indexes of closed segments go to disk too: recovery
        will not make them anew once the recovery point has passed them.
        """
        assert not self._flushing
        flush = Flush(self.end_offset, self.truncations)
        for segment, end in zip(self.segments, [*self._bases[1:], None], strict=True):
            if end is None or end > self.recovery_point:
                segment.flush_indexes()
                flush.files.append(segment.file)
                if end is not None:
                    flush.files += segment.index_paths
                if self.flush_failed and self.end_offset > self.recovery_point:
                    found = segment.locate(self.recovery_point)
                    start = found[0] if found else 0  # none: it is no longer there
                    flush.again.append((segment.file, start, segment.size))
        if self._unsynced_epochs:
            if self.flush_failed or self._unsaved_epochs:
                self.epochs.save(self.directory, sync=False)
                self._unsaved_epochs = False
            flush.files.append(epochs_path(self.directory))
            flush.epochs = True
        if self._unsynced_names or self._unsynced_epochs:
            flush.directory = self.directory
        self._unsynced_names = self._unsynced_epochs = False
        self.flush_wanted = False
        self.first_unflushed_ms = None
        self._flushing = True
        return flush

    def end_flush(self, flush: Flush, error: BaseException | None = None) -> None:
        """It was carried out, and without an ``error`` everything in it is on disk."""
        if error is not None:
            self.cancel_flush(flush)
            self.flush_failed = True
            self.lost_records |= isinstance(error, RecordsLost)
            return
        self._flushing = False
        if flush.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, flush.end_offset)
            self.flush_failed = False
            self._flushed_truncations = flush.truncations

    def cancel_flush(self, flush: Flush) -> None:
        """It was not carried out: the next one has it all."""
        self._flushing = False
        self._unsynced_names |= flush.directory is not None
        self._unsynced_epochs |= flush.epochs

    def flush(self) -> None:
        """All of it, now."""
        flush = self.begin_flush()
        try:
            flush.carry_out()
        except BaseException as error:
            self.end_flush(flush, error)
            raise
        self.end_flush(flush)

    # -- reading ----------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, end: int, *, at_least_one: bool
    ) -> FileRange | None:
        """Whole batches from the one that holds ``offset``, below offset ``end``.

        The tail may be cut inside a batch.  With ``at_least_one`` the first batch is
        complete even if it is larger than ``max_bytes`` (KIP-74).
        """
        if offset >= end:
            return None
        segments, bases = self.segments, self._bases
        i = max(bisect_right(bases, offset) - 1, 0)
        while i < len(segments):
            segment = segments[i]
            found = None
            if segment is self.active:
                found = self._recent.get(offset)
            if found is None:
                found = segment.locate(offset)
            if found is not None:
                break
            if segment.damage is not None:
                message = f"{segment.path} is damaged at byte {segment.damage}"
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, message)
            i += 1  # a hole at the end of the segment: the next one begins after it
        else:
            return None
        position, first_size = found
        segment_end = bases[i + 1] if i + 1 < len(bases) else self.end_offset
        if end >= segment_end:
            limit = segment.size
        else:
            cut = segment.locate(end)
            limit = cut[0] if cut else segment.size
        length = min(max_bytes, limit - position)
        if length < first_size:
            # Part of a batch is of no use: clients take it for an error.
            if not at_least_one:
                return None
            length = first_size
        return FileRange(segment.file, position, length)

    def available(self, offset: int, end: int, max_bytes: int) -> int | None:
        """How many bytes there are from ``offset`` on, below offset ``end``, up to ``max_bytes``;
        None if they are in more than one segment."""
        if offset >= end:
            return 0
        if bisect_right(self._bases, offset) < bisect_right(self._bases, end):
            return None
        found = self.read(offset, max_bytes, end, at_least_one=True)
        return 0 if found is None else min(len(found), max_bytes)

    @property
    def last_stable_offset(self) -> int:
        """Every transaction that starts before this offset has ended."""
        producers = self.producers
        if not producers.transactions and not producers.undecided:
            return self.high_watermark
        first = producers.first_unstable(self.high_watermark)
        if first is None or first > self.high_watermark:
            return self.high_watermark
        return max(first, self.log_start_offset)

    def aborted_in(self, offset: int, found: FileRange) -> list[Aborted]:
        """The aborted transactions with records in ``found``, which was read at ``offset``."""
        segments, bases = self.segments, self._bases
        first = max(bisect_right(bases, offset) - 1, 0)
        ends = (*bases[1:], self.end_offset)
        end = self.end_offset
        for segment, segment_end in zip(segments[first:], ends[first:], strict=True):
            if segment.path == found.file.path:
                end = segment.offset_after(found.position + found.length, segment_end)
                break
        aborted: list[Aborted] = []
        # The marker may be in any later segment.
        for segment in segments[first:]:
            if segment.transaction_index.collect(offset, end, aborted):
                break
        return aborted

    def batches(self, start: int, end: int | None = None) -> Iterator[bytes]:
        """Whole batches from ``start`` on, for tools and coordinators."""
        end = self.end_offset if end is None else end
        while start < end:
            found = self.read(start, _CHUNK, end, at_least_one=True)
            if found is None:
                return
            for batch in split_batches(found.read()):
                if len(batch) < HEADER_SIZE or batch[16] != MAGIC:
                    break  # damaged: the next read says where
                start = read_header(batch).last_offset + 1
                yield bytes(batch)

    def offset_for_timestamp(self, timestamp: int, end: int) -> tuple[int, int] | None:
        """Time and offset of the first record at or after a time, below ``end``."""
        return timestamps.run(timestamps.search(self, timestamp, end))

    def newest_record(self) -> tuple[int, int] | None:
        """Time and offset of the record with the largest timestamp."""
        return timestamps.run(timestamps.search_newest(self))

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    # -- forgetting -------------------------------------------------------------

    def advance_start(self, offset: int) -> None:
        """Nothing below ``offset`` is served any more (DeleteRecords, retention)."""
        if offset <= self.log_start_offset:
            return
        if offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is above the high watermark {self.high_watermark}",
            )
        # The recovery point stays: after a power cut recovery begins at one that may be older than
        # the new start, and must not meet a segment that no flush has written.
        self.log_start_offset = offset
        if self.epochs.truncate_from_start(offset):
            try:
                self.epochs.save(self.directory, sync=False)
                self._unsynced_epochs = True
            except OSError as error:
                # Older epochs in the file do no harm, and a full disk must be able to shrink.
                log.warning("%s: leader epochs not saved: %s", self.directory, error)

    def apply_retention(self, now_ms: int) -> tuple[list[str], str]:
        """Drop the segments that the policies let go; returns files to remove, and why."""
        count, reason = retention.decide(self._facts(), now_ms)
        for segment, end in zip(self.segments, self._bases[1:], strict=False):
            if end <= self.recovery_point:  # else it is by this descriptor that a flush fails
                segment.release()  # those that were not used lately are not kept
        if count == len(self.segments):
            try:
                self.roll(now_ms)
            except OSError as error:
                log.warning("%s: the active segment stays: %s", self.directory, error)
                count -= 1
        if not count:
            return [], ""
        self.abandon_swap()
        doomed = self.segments[:count]
        self.advance_start(self.segments[count].base_offset)
        self._set_segments(list(self.segments[count:]))
        self._unsynced_names = True  # else a power cut after the next flush brings them back
        renamed = [path for segment in doomed for path in segment.rename_deleted()]
        for segment in doomed:
            segment.release()
        return renamed, reason

    def _facts(self) -> retention.LogFacts:
        ends = [*self._bases[1:], self.end_offset]
        return retention.LogFacts(
            [
                retention.SegmentFacts(s.base_offset, end, s.size, s.newest_ms(), s is self.active)
                for s, end in zip(self.segments, ends, strict=True)
            ],
            self.log_start_offset,
            self.high_watermark,
            self.config,
        )

    def truncate_to(self, offset: int) -> None:
        """Forget everything from ``offset`` on (a follower that went astray)."""
        if offset >= self.end_offset:
            return
        self.abandon_swap()
        self.truncations += 1
        keep = [segment for segment in self.segments if segment.base_offset <= offset]
        dropped = self.segments[len(keep) :]
        if not keep:  # older than all there is: start anew
            keep = [Segment(self.directory, offset, create=True)]
        # A power cut after the next flush must not bring a dropped segment back.
        self._unsynced_names |= bool(dropped)
        for segment in dropped:
            for path in segment.files:
                remove(path)
        end = keep[-1].truncate(offset)
        keep[-1].created_ms = keep[-1].created_ms or self.active.created_ms
        self._set_segments(keep)
        self.end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.high_watermark = min(self.high_watermark, end)
        self.recovery_point = min(self.recovery_point, end)
        if self.cleaned_offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, end)
        start, self.producers = load_newest_snapshot(self.directory, end)
        recovery.recall_batches(list(self.segments), self.producers, start)
        recovery.replay_producers(list(self.segments), self.producers, max(start, 0))
        if self.epochs.truncate_from_end(end):
            self.epochs.save(self.directory)  # last, as a full disk may refuse it

    def restart_at(self, offset: int) -> None:
        """Forget everything; the next batch is at ``offset`` (a follower that was away for so
        long that the leader no longer has what comes next)."""
        self.abandon_swap()
        self.truncations += 1
        for segment in self.segments:
            for path in segment.files:
                remove(path)
        fresh = Segment(self.directory, offset, create=True)
        fresh.created_ms = self.active.created_ms
        self._set_segments([fresh])
        self._unsynced_names = True
        self.end_offset = self.log_start_offset = offset
        self.high_watermark = self.recovery_point = offset
        self.cleaned_offset = None
        self.epochs = LeaderEpochs()
        self.epochs.save(self.directory)
        self.producers = ProducerState()
        for snapshot in snapshot_offsets(self.directory):
            remove(snapshot_path(self.directory, snapshot))

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Neighbours have become one segment (compaction)."""
        first = self.segments.index(old[0])
        assert list(self.segments[first : first + len(old)]) == old
        rest = self.segments[first + len(old) :]
        self._set_segments([*self.segments[:first], new, *rest])
        self._unsynced_names = True

    def move_to(self, directory: str) -> None:
        """Go on in a copy of all files (another log directory)."""
        self.truncations += 1  # what others have begun with the old files does not count
        self.directory = directory
        for segment in self.segments:
            segment.move_to(directory, active=segment is self.active)
        self._unsynced_names = True

    def abandon_swap(self) -> None:
        """Segments are about to go: a copy that was to take their place must not come."""
        if self.swapping is not None:
            cleaner_swap.abandon(self.directory, self.swapping)
            self.swapping = None

    # -- closing ----------------------------------------------------------------

    def close(self) -> None:
        """Flush everything and leave a snapshot, so that the next start needs no scan."""
        if self._nothing_to_close():
            return
        self.active.time_index.add(*self.active.max_timestamp)
        self.flush()
        for path in self.active.index_paths:
            sync_file(path)
        save_snapshot(self.directory, self.end_offset, self.producers)
        keep = {*self._bases, self.end_offset}
        for offset in snapshot_offsets(self.directory):
            if offset not in keep:
                remove(snapshot_path(self.directory, offset))

    def _nothing_to_close(self) -> bool:
        """Is all of it on disk as a clean stop leaves it?  Of ten thousand logs most are idle."""
        if self.end_offset == 0 and not self.truncations:
            self.active.flush_indexes()  # Kafka expects the files
            return True  # what was never written cannot be lost: a start makes it again
        unsynced = self._unsynced_names or self._unsynced_epochs or self._unsaved_epochs
        return (
            self.recovery_point == self.end_offset
            and self.truncations == self._flushed_truncations
            and not (unsynced or self.flush_wanted or self.flush_failed)
            and self.active.indexes_written
            and files.exists(snapshot_path(self.directory, self.end_offset))
        )

    def check_invariants(self) -> None:
        """For tests: every promise of the module's docstring."""
        assert self.log_start_offset <= self.high_watermark <= self.end_offset
        assert self.log_start_offset <= self.last_stable_offset <= self.high_watermark
        assert self.recovery_point <= self.end_offset
        assert list(self._bases) == sorted(set(self._bases))
        assert self.active is self.segments[-1]
        assert self._bases[0] <= self.log_start_offset
        expected = self._bases[0]
        for segment in self.segments:
            assert segment.base_offset >= expected
            for _, header in segment.headers():
                assert header.base_offset >= expected
                expected = header.last_offset + 1
        assert expected <= self.end_offset
