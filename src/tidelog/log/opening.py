"""Open the log of a partition directory: after a clean stop, or after a crash."""

from __future__ import annotations

import logging
import os
import re

from tidelog import files
from tidelog.files import remove
from tidelog.log import cleaner_swap, recovery, transaction_index
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.log import Log
from tidelog.log.producer_state import ProducerState, load_newest_snapshot
from tidelog.log.segment import FileRange, Segment
from tidelog.settings import LogConfig
from tidelog.wire.batch import is_valid

_SEGMENT = re.compile(r"[0-9]{20}\.log")

log = logging.getLogger(__name__)


def open_log(
    directory: str,
    config: LogConfig,
    now_ms: int,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int | None = None,
) -> Log:
    """The log in ``directory``; an empty one if there is none yet.

    ``clean``: the last stop flushed everything, only the tail is looked at.
    ``recovery_point``: up to here the log was flushed, and need not be checked.
    """
    files.makedirs(directory, exist_ok=True)
    _remove_leftovers(directory)
    segments = [Segment(directory, base) for base in _base_offsets(directory)]
    _remove_orphans(directory, segments)
    found = bool(segments)
    if not segments:
        first = Segment(directory, log_start_offset or 0, create=True)
        first.created_ms = now_ms
        segments = [first]
    result = Log(directory, config, segments)
    found_epochs: list[tuple[int, int]] = []
    if clean:
        end = _look_at_tail(segments[-1])
        if end is None:
            log.warning("%s: the newest segment is damaged; recovering", directory)
            clean = False
        else:
            result.end_offset = end
    if not clean:
        segments, result.end_offset, found_epochs = _recover(
            directory, segments, config, recovery_point
        )
        if result.end_offset < (log_start_offset or 0):
            # What stands was deleted already; its offsets must not be given out again.
            for segment in segments:
                for path in segment.files:
                    remove(path)
            segments = [Segment(directory, log_start_offset or 0, create=True)]
            segments[0].created_ms = now_ms
            result.end_offset = segments[0].base_offset
        result._set_segments(segments)
    active = segments[-1]
    active.created_ms = active.created_ms or files.modified_ms(active.path)
    active.offset_index.make_writable()
    active.time_index.make_writable()
    active.transaction_index.make_writable()
    active.index_entries = len(active.offset_index)
    result.configure(config)
    _check_transaction_indexes(directory, segments, result.end_offset)
    start = max(log_start_offset or 0, segments[0].base_offset)
    result.log_start_offset = min(start, result.end_offset)
    result.high_watermark = max(result.log_start_offset, 0)
    result.recovery_point = result.end_offset if clean else min(recovery_point, result.end_offset)
    result.epochs = _load_epochs(directory, segments, result, found_epochs)
    result.producers = _load_producers(directory, segments, result.end_offset)
    if clean:
        result._unsynced_names = not found  # a clean stop has synced them
    else:
        try:
            result.flush()  # what stands now is not checked again after the next crash
        except OSError as error:
            log.warning("%s: not flushed after recovery: %s", directory, error)
    return result


def create_log(directory: str, config: LogConfig, now_ms: int) -> Log:
    """A new log: nothing has to be looked for in its directory."""
    files.mkdir(directory)
    first = Segment(directory, 0, create=True)
    first.created_ms = now_ms
    result = Log(directory, config, [first])
    for index in (first.offset_index, first.time_index, first.transaction_index):
        index.make_writable()
    return result


def _remove_leftovers(directory: str) -> None:
    for name in files.listdir(directory):
        if name.endswith(".tmp"):
            remove(os.path.join(directory, name))
    cleaner_swap.recover(directory)


def _remove_orphans(directory: str, segments: list[Segment]) -> None:
    """Indexes whose log is gone: a deletion was interrupted."""
    known = {os.path.basename(path) for segment in segments for path in segment.files}
    for name in files.listdir(directory):
        if name.endswith((".index", ".timeindex", ".txnindex")) and name not in known:
            remove(os.path.join(directory, name))


def _base_offsets(directory: str) -> list[int]:
    return sorted(int(name[:-4]) for name in files.listdir(directory) if _SEGMENT.fullmatch(name))


def _look_at_tail(segment: Segment) -> int | None:
    """The log end after a clean stop: scan from the last index entry.  None: damaged."""
    last_offset, start = segment.offset_index.last()
    end, reached = segment.base_offset, start
    newest = segment.time_index.last()
    for position, header in segment.headers(start):
        if position == start and start and header.last_offset != last_offset:
            return None
        if header.base_offset < end:
            return None
        if not is_valid(FileRange(segment.file, position, header.size).read()):
            return None
        end = header.last_offset + 1
        if header.max_timestamp > newest[0]:
            newest = (header.max_timestamp, header.last_offset)
        reached = position + header.size
    if reached != segment.size or not segment.confirms(segment.time_index.last()):
        return None
    segment._max_timestamp = newest
    segment._bytes_since_entry = segment.size - start
    return end


def _recover(
    directory: str, segments: list[Segment], config: LogConfig, recovery_point: int
) -> tuple[list[Segment], int, list[tuple[int, int]]]:
    """Check the segments past the recovery point; returns those that stand, the end, and
    where leader epochs begin in them."""
    kept: list[Segment] = []
    epochs: list[tuple[int, int]] = []
    marked: list[Segment] = []
    expected = segments[0].base_offset
    for i, segment in enumerate(segments):
        following = segments[i + 1] if i + 1 < len(segments) else None
        if following is not None and following.base_offset <= recovery_point:
            kept.append(segment)
            expected = following.base_offset
            continue
        limit = following.base_offset if following else None
        found = recovery.recover_segment(segment, expected, config.index_interval_bytes, limit)
        kept.append(segment)
        epochs += found.epochs
        segment.transaction_index.reset()
        if found.markers:
            marked.append(segment)
        expected = found.next_offset
        if found.reason:
            log.warning(
                "%s: cut %d bytes at offset %d: %s",
                segment.path,
                found.cut_bytes,
                found.next_offset,
                found.reason,
            )
            for later in segments[i + 1 :]:
                log.warning("%s: removed, it follows the damage", later.path)
                for path in later.files:
                    remove(path)
            break
        if following is not None:
            # Its newest record must be in the index: retention goes by it.
            segment.time_index.add(*segment.max_timestamp)
    if expected > segments[0].base_offset:
        log.info("%s: recovered up to offset %d", directory, expected)
    if marked:
        recovery.rebuild_transaction_indexes(directory, kept, marked)
    return kept, expected, epochs


def _check_transaction_indexes(directory: str, segments: list[Segment], end: int) -> None:
    """Make those anew that cannot be right; a consumer must not be shown aborted records."""
    on_disk = {name for name in files.listdir(directory) if name.endswith(".txnindex")}
    damaged = []
    ends = [*(following.base_offset for following in segments[1:]), end]
    for segment, segment_end in zip(segments, ends, strict=True):
        path = segment.transaction_index.path
        if os.path.basename(path) in on_disk:
            content = files.read_file(path)
            fault = transaction_index.fault(content, segment.base_offset, segment_end)
            if fault:
                log.warning("%s: %s; rebuilt", path, fault)
                damaged.append(segment)
    if damaged:
        recovery.rebuild_transaction_indexes(directory, segments, damaged)


def _load_epochs(
    directory: str, segments: list[Segment], opened: Log, found: list[tuple[int, int]]
) -> LeaderEpochs:
    """The leader epochs; if their file is lost they are taken from the batches.

    The file is synced when the log is.  So it may lack epochs that recovery has ``found`` in
    what was not flushed.
    """
    epochs = LeaderEpochs.load(directory)
    changed = epochs is None
    if epochs is None:
        epochs = LeaderEpochs()
        for segment in segments:
            for _, header in segment.headers():
                if header.leader_epoch > epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
    changed |= epochs.truncate_from_end(opened.end_offset + 1)
    for epoch, start in found:
        changed |= epochs.assign(epoch, start)
    if epochs.entries and opened.log_start_offset < epochs.entries[0][1]:
        # Records were deleted, but a crash came before the new start of the log was written down.
        changed |= _put_before(epochs, segments, opened.log_start_offset)
    changed |= epochs.truncate_from_start(opened.log_start_offset)
    if changed and epochs.entries:
        try:
            epochs.save(directory)
        except OSError as error:
            log.warning("%s: leader epochs not saved: %s", directory, error)
    return epochs


def _put_before(epochs: LeaderEpochs, segments: list[Segment], start: int) -> bool:
    """Find the epochs of what is in the log before the first one that is known: without them a
    follower whose log parts from ours there would be told that it does not."""
    end = epochs.entries[0][1]
    older = LeaderEpochs()
    for segment in segments:
        found = segment.locate(start) if segment.base_offset < end else None
        for _, header in segment.headers(found[0]) if found else ():
            if header.base_offset >= end:
                break
            older.assign(header.leader_epoch, header.base_offset)
    for epoch, begin in epochs.entries:
        older.assign(epoch, begin)
    changed, epochs.entries = older.entries != epochs.entries, older.entries
    return changed


def _load_producers(directory: str, segments: list[Segment], end: int) -> ProducerState:
    start, state = load_newest_snapshot(directory, end)
    recovery.recall_batches(segments, state, start)
    if start < end:
        recovery.replay_producers(segments, state, max(start, segments[0].base_offset))
    return state
