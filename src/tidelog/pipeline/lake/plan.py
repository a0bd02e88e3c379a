"""Which offsets a load reads, and which of them go to one task.  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.client.offsets import Extent
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.ledger import RangeEntry, State
from tidelog.pipeline.lake.spans import Span, overlap, subtract
from tidelog.pipeline.planner import DEFAULT_BYTES_PER_OFFSET, Sizes, cut
from tidelog.pipeline.ranges import OffsetRange
from tidelog.topic_partition import TopicPartition

_LEAST_TASK_BYTES = 8 << 20


class Found(NamedTuple):
    """What a load has to do; the fields are as in a manifest."""

    ranges: Sequence[OffsetRange]
    lost: Sequence[RangeEntry] = ()
    begins: tuple[tuple[str, int, int], ...] = ()


def wanted(
    state: State,
    logs: Mapping[TopicPartition, Extent],
    first: Mapping[TopicPartition, int] | None,
    last: Mapping[TopicPartition, int] | None,
) -> dict[TopicPartition, tuple[Span, ...]]:
    """What to read of each partition: without what is there already.

    Where ``first`` does not say, it goes on after the last offset that is there, and begins at
    the start of the log in a new destination.
    """
    result = {}
    for place, log in logs.items():
        known = state.end(place)
        if known is not None and known > log.end:
            raise LakeError(
                f"{place} ends at offset {log.end}, and the destination holds offsets up to "
                f"{known - 1}: the log was cut, or it is not the same one; nothing was loaded"
            )
        begins = log.start if known is None else known
        start = begins if first is None else first[place]
        end = log.end if last is None else min(last[place], log.end)
        result[place] = subtract((start, end), state.covered.get(place, ()))
    return {place: spans for place, spans in result.items() if spans}


def beginnings(
    state: State,
    logs: Mapping[TopicPartition, Extent],
    last: Mapping[TopicPartition, int] | None,
    spans: Mapping[TopicPartition, Sequence[Span]],
) -> tuple[tuple[str, int, int], ...]:
    """Partitions that have nothing to load yet, and where they begin.

    If this were not noted, records that came and were deleted between two loads would be lost
    and nobody would know.
    """
    return tuple(
        (*place, log.end if last is None else max(log.start, min(last[place], log.end)))
        for place, log in sorted(logs.items())
        if place not in spans and place not in state.covered and place not in state.begins
    )


def without_lost(
    spans: Mapping[TopicPartition, Iterable[Span]],
    logs: Mapping[TopicPartition, Extent],
) -> tuple[dict[TopicPartition, list[Span]], list[RangeEntry]]:
    """What can be read, and what retention has taken before it was."""
    there: dict[TopicPartition, list[Span]] = {}
    lost = []
    for place, rows in spans.items():
        log = logs[place]
        for row in rows:
            gone = overlap(row, (0, log.start))
            if gone is not None:
                lost.append(RangeEntry(*place, *gone, rows=0, lost=(gone,)))
            left = overlap(row, (log.start, log.end))
            if left is not None:
                there.setdefault(place, []).append(left)
    return there, lost


def pack(
    ranges: Sequence[OffsetRange], sizes: Sizes, target: int, cores: int
) -> list[tuple[OffsetRange, ...]]:
    """Tasks that read about a file's worth each, or less if that keeps more cores at work.

    What is larger is cut, what is smaller shares a task, and therefore a file.
    """
    weights = {part.place: sizes.get(part.place, DEFAULT_BYTES_PER_OFFSET) for part in ranges}
    total = sum(len(part) * weights[part.place] for part in ranges)
    size = max(_LEAST_TASK_BYTES, min(target, math.ceil(total / max(1, cores))))
    tasks: list[tuple[OffsetRange, ...]] = []
    shared: list[OffsetRange] = []
    filled = 0.0
    for part in cut(ranges, sizes, max_bytes=size):
        weight = len(part) * weights[part.place]
        if shared and filled + weight > 1.1 * size:
            tasks.append(tuple(shared))
            shared, filled = [], 0.0
        shared.append(part)
        filled += weight
    return [*tasks, tuple(shared)] if shared else tasks
