"""When a log is compacted, and which part of it.  Pure: facts about segments and a time.

    log start       first dirty          first uncleanable        log end
    |  clean        |  dirty             |  not yet               |

Clean is what earlier rounds have gone through.  Not yet: the active segment, what is
not flushed or not stable, and the first segment with a record that is younger than
``min.compaction.lag.ms`` together with all after it.  The dirty ratio is dirty / (clean +
dirty), in bytes.  A log is due when that is above ``min.cleanable.dirty.ratio``, or when
a dirty record is older than ``max.compaction.lag.ms``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.settings import LogConfig

MAX_RELATIVE = 0x7FFFFFFF  # offsets in the indexes have 31 bits
# Putting a group into place is a handful of renames for each of its segments, and the
# broker does nothing else meanwhile.
MAX_GROUP = 64


@dataclass(frozen=True, slots=True)
class CleanableSegment:
    """What is known of a closed segment.  Times are None where they are not needed."""

    base_offset: int
    end_offset: int  # the base offset of the next one
    size: int
    oldest_ms: int | None = None
    newest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cleanable:
    """What a round of compaction would do to a log."""

    first_dirty: int
    end: int  # the first uncleanable offset
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    held_back: str = ""  # what ends the cleanable part before the active segment

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def due(self, config: LogConfig) -> bool:
        if not self.dirty_bytes:
            return False
        return self.overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def assess(
    segments: Sequence[CleanableSegment],
    cleaned_to: int | None,
    log_start: int,
    log_end: int,
    stable_to: int,
    config: LogConfig,
    now_ms: int,
) -> Cleanable:
    """What could be cleaned now.  ``segments`` are the closed ones, oldest first.

    ``cleaned_to`` is where the last round ended (None: there was none), ``stable_to``
    the offset up to which the log is flushed, visible and free of open transactions.
    """
    first_dirty = log_start
    if cleaned_to is not None and log_start <= cleaned_to <= log_end:
        first_dirty = cleaned_to
    lag = config.min_compaction_lag_ms
    end = segments[0].base_offset if segments else log_start
    clean = dirty = 0
    held_back = ""
    oldest: int | None = None
    for segment in segments:
        if segment.end_offset > stable_to:
            held_back = "not flushed, or part of an open transaction"
            break
        is_dirty = segment.end_offset > first_dirty
        newest = segment.newest_ms
        if is_dirty and lag > 0 and newest is not None and newest > now_ms - lag:
            held_back = "min.compaction.lag.ms"
            break
        end = segment.end_offset
        if is_dirty:
            dirty += segment.size
            if segment.oldest_ms is not None and segment.oldest_ms > 0:
                oldest = segment.oldest_ms if oldest is None else min(oldest, segment.oldest_ms)
        else:
            clean += segment.size
    limit = now_ms - max(config.max_compaction_lag_ms, lag)
    overdue = oldest is not None and oldest < limit
    return Cleanable(min(first_dirty, end), end, clean, dirty, overdue, held_back)


def group_segments(
    segments: Sequence[tuple[int, int, int, int]], max_bytes: int, max_index_bytes: int
) -> list[range]:
    """Which neighbours become one segment: ranges of positions, in order.

    A segment is its base offset, end offset, size, and the size of its largest index.
    """
    groups: list[range] = []
    start = 0
    while start < len(segments):
        base, _, size, index = segments[start]
        stop = start + 1
        while stop < len(segments) and stop - start < MAX_GROUP:
            _, end, more, more_index = segments[stop]
            size += more
            index += more_index
            if size > max_bytes or index > max_index_bytes or end - base > MAX_RELATIVE:
                break
            stop += 1
        groups.append(range(start, stop))
        start = stop
    return groups
