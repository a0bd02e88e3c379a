"""Between a log and its compaction: what there is to do, and who does it in what order.

The broker asks :func:`assess_log` and :func:`make_job`, has another process clean, and puts
each group into place with a ``Swap``.  :func:`clean_log` does all of it at once, for tools
and measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.files import remove, sync_directory
from tidelog.log.cleaner import Cleaned, CleaningJob, Finished, clean
from tidelog.log.cleaner_swap import Swap, abandon
from tidelog.log.compaction import Cleanable, CleanableSegment, assess
from tidelog.log.log import Log
from tidelog.log.segment import Segment
from tidelog.settings_table import LONG_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """What the cleaner may take of the machine; the settings ``log.cleaner.*``."""

    buffer_bytes: int = 128 * 1024 * 1024
    load_factor: float = 0.9
    chunk_bytes: int = 512 * 1024
    bytes_per_second: float = float("inf")


def assess_log(log: Log, now_ms: int) -> Cleanable:
    """What a round of compaction would find."""
    config = log.config
    closed = log.segments[:-1]
    ends = [segment.base_offset for segment in log.segments[1:]]
    cleaned_to = log.log_start_offset if log.cleaned_offset is None else log.cleaned_offset
    facts = []
    for segment, end in zip(closed, ends, strict=True):
        dirty = end > cleaned_to
        young = dirty and config.min_compaction_lag_ms > 0
        old = dirty and config.max_compaction_lag_ms != LONG_MAX
        facts.append(
            CleanableSegment(
                segment.base_offset,
                end,
                segment.size,
                segment.oldest_ms() if old else None,
                segment.newest_ms() if young else None,
            )
        )
    stable_to = min(log.last_stable_offset, log.recovery_point)
    start, end = log.log_start_offset, log.end_offset
    return assess(facts, log.cleaned_offset, start, end, stable_to, config, now_ms)


class Round:
    """One round over one log: the job, and the segments as they were when it was made."""

    def __init__(self, log: Log, found: Cleanable, now_ms: int, limits: Limits) -> None:
        self.log = log
        self._truncations = log.truncations
        ends = [segment.base_offset for segment in log.segments[1:]]
        rows = [
            (segment, end)
            for segment, end in zip(log.segments[:-1], ends, strict=True)
            if end <= found.end
        ]
        self._segments = {segment.base_offset: segment for segment, _ in rows}
        config = log.config
        self.job = CleaningJob(
            log.directory,
            [(segment.base_offset, end, segment.size) for segment, end in rows],
            found.first_dirty,
            now_ms,
            config.delete_retention_ms,
            config.segment_bytes,
            config.segment_index_bytes,
            config.index_interval_bytes,
            [
                (producer_id, producer.epoch, producer.batches[-1].last_offset)
                if producer.batches
                else (producer_id, producer.epoch, -1)
                for producer_id, producer in log.producers.producers.items()
            ],
            [entry for segment in log.segments for entry in segment.transaction_index.entries()],
            int(limits.buffer_bytes * limits.load_factor),
            limits.chunk_bytes,
            limits.bytes_per_second,
            config.compression_type,
            config.compression_level,
        )

    def swap(self, group: Cleaned) -> Swap | None:
        """The way in for a group that is ready; None if its segments are not there any more."""
        old: list[Segment] = [self._segments[base] for base in group.bases]
        present = set(self.log.segments[:-1])
        if self.log.truncations != self._truncations or not present.issuperset(old):
            return None
        return Swap(self.log, old)

    def sync(self) -> None:
        """All groups are in place: let that be on disk before the checkpoint says so.

        A power cut that took the last renames back would leave old records in segments that
        count as clean, and bring them back to life when their tombstones have gone.
        """
        sync_directory(self.log.directory)

    def finish(self, result: Finished) -> None:
        """What the groups held is clean."""
        if self.log.truncations == self._truncations:
            self.log.cleaned_offset = min(result.end_offset, self.log.end_offset)

    def abandon(self) -> None:
        """Remove the copies that were made."""
        for base in self._segments:
            abandon(self.log.directory, base)


def clean_log(log: Log, now_ms: int, limits: Limits | None = None) -> Finished | None:
    """One round in this process, whatever the dirty ratio; None if there is nothing to do."""
    found = assess_log(log, now_ms)
    if not found.dirty_bytes:
        return None
    work = Round(log, found, now_ms, limits or Limits())
    for item in clean(work.job):
        if isinstance(item, Finished):
            work.sync()
            work.finish(item)
            return item
        if item.changed:
            swap = work.swap(item)
            assert swap is not None
            swap.begin()
            swap.sync()
            for path in swap.finish() or ():
                remove(path)
    return None
