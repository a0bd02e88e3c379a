"""Which offsets a load reads, which of them are gone, and which go to one task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tidelog.client.offsets import Extent, Position, PositionKind
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.ledger import RangeEntry, State
from tidelog.pipeline.lake.options import LoadOptions
from tidelog.pipeline.planner import DEFAULT_BYTES_PER_OFFSET, Logs, Sizes, cut
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.ranges import OffsetRange, Span, overlap, spans_text, subtract
from tidelog.pipeline.where import Where
from tidelog.topic_partition import TopicPartition

_LEAST_TASK_BYTES = 8 << 20


class Work(NamedTuple):
    """What a load has to do; the fields are as in a manifest."""

    ranges: Sequence[OffsetRange]
    lost: Sequence[RangeEntry] = ()
    begins: tuple[tuple[str, int, int], ...] = ()


def find_ranges(options: LoadOptions, state: State, positions: Positions, logs: Logs) -> Work:
    """What is to be read, what is lost, and where the others begin."""
    ends = {tp: state.end(tp) or 0 for tp in logs.extents}
    beyond = {tp: end for tp, end in ends.items() if end > logs.extents[tp].end}
    logs = positions.reaching(logs, beyond)
    first, last = _resolved(options, positions, logs)
    if options.start is not None and first is not None:
        _check_absolute(options.start, first, logs.extents)
    spans = wanted(state, logs.extents, first, last)
    there, lost = without_lost(spans, logs.extents)
    if lost and options.on_loss == "fail":
        shown = "; ".join(f"{row.tp}: {spans_text([(row.start, row.end)])}" for row in lost[:5])
        raise LakeError(
            f"retention was faster than the loads: offsets that are not in the destination are "
            f"no longer in the topic ({shown}); --on-loss skip goes on without them"
        )
    ranges = [
        OffsetRange(*tp, start, end, logs.ids[tp.topic])
        for tp, rows in sorted(there.items())
        for start, end in rows
    ]
    return Work(ranges, lost, beginnings(state, logs.extents, last, spans))


def why_nothing(options: LoadOptions, positions: Positions, logs: Logs) -> str:
    """Where a part of the topics was asked for: is it empty, or was it loaded before?"""
    first, last = _resolved(options, positions, logs)
    if first is None and last is None:
        return ""
    asked = " ".join(
        f"--{name} {_shown(position)}"
        for name, position in (("from", options.start), ("until", options.until))
        if position is not None
    )
    for tp, log in logs.extents.items():
        start = max(log.start, first[tp]) if first else log.start
        end = min(log.end, last[tp]) if last else log.end
        if start < end:
            return f"all that {asked} names is there already"
    return f"{asked} names no records: that part of the topics is empty"


def _resolved(
    options: LoadOptions, positions: Positions, logs: Logs
) -> tuple[dict[TopicPartition, int] | None, dict[TopicPartition, int] | None]:
    first = last = None
    if options.start is not None:
        first = positions.resolve(Where("--from", options.start), options.start, logs)
    if options.until is not None:
        last = positions.resolve(Where("--until", options.until), options.until, logs)
    return first, last


def _shown(position: Position) -> str:
    if position.kind is not PositionKind.TIME:
        return str(position)
    moment = datetime.fromtimestamp(position.value / 1000, UTC)
    return f"@{moment.isoformat().replace('+00:00', 'Z')}"


def _check_absolute(
    position: Position,
    found: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, Extent],
) -> None:
    if position.kind is not PositionKind.ABSOLUTE:
        return
    for tp, offset in found.items():
        if not logs[tp].start <= offset <= logs[tp].end:
            raise LakeError(
                f"--from {offset}: {tp} has offsets {logs[tp].start} to {logs[tp].end - 1}"
            )


# -- without I/O ----------------------------------------------------------------------


def wanted(
    state: State,
    logs: Mapping[TopicPartition, Extent],
    first: Mapping[TopicPartition, int] | None,
    last: Mapping[TopicPartition, int] | None,
) -> dict[TopicPartition, tuple[Span, ...]]:
    """What to read of each partition: without what is there already.

    Without ``first`` it goes on after the last offset that is there, and begins at
    the start of the log in a new destination.
    """
    result = {}
    for tp, log in logs.items():
        known = state.end(tp)
        if known is not None and known > log.end:
            raise LakeError(
                f"{tp} ends at offset {log.end}, and the destination holds offsets up to "
                f"{known - 1}: the log was cut, or it is not the same one; nothing was loaded"
            )
        begins = log.start if known is None else known
        start = begins if first is None else first[tp]
        end = log.end if last is None else min(last[tp], log.end)
        result[tp] = subtract((start, end), state.covered.get(tp, ()))
    return {tp: spans for tp, spans in result.items() if spans}


def beginnings(
    state: State,
    logs: Mapping[TopicPartition, Extent],
    last: Mapping[TopicPartition, int] | None,
    spans: Mapping[TopicPartition, Sequence[Span]],
) -> tuple[tuple[str, int, int], ...]:
    """Partitions that have nothing to load yet, and where they begin.

    If this were not noted, records that came and were deleted between two loads would be lost
    without a trace.
    """
    return tuple(
        (*tp, log.end if last is None else max(log.start, min(last[tp], log.end)))
        for tp, log in sorted(logs.items())
        if tp not in spans and tp not in state.covered and tp not in state.begins
    )


def without_lost(
    spans: Mapping[TopicPartition, Iterable[Span]],
    logs: Mapping[TopicPartition, Extent],
) -> tuple[dict[TopicPartition, list[Span]], list[RangeEntry]]:
    """What can be read, and what retention has taken before it was."""
    there: dict[TopicPartition, list[Span]] = {}
    lost = []
    for tp, rows in spans.items():
        log = logs[tp]
        for row in rows:
            gone = overlap(row, (0, log.start))
            if gone is not None:
                lost.append(RangeEntry(*tp, *gone, rows=0, lost=(gone,)))
            left = overlap(row, (log.start, log.end))
            if left is not None:
                there.setdefault(tp, []).append(left)
    return there, lost


def pack(
    ranges: Sequence[OffsetRange], sizes: Sizes, target: int, cores: int
) -> list[tuple[OffsetRange, ...]]:
    """Tasks that read about a file's worth each, or less if that keeps more cores at work.

    What is larger is cut, what is smaller shares a task, and therefore a file.
    """
    weights = {part.tp: sizes.get(part.tp, DEFAULT_BYTES_PER_OFFSET) for part in ranges}
    total = sum(len(part) * weights[part.tp] for part in ranges)
    size = max(_LEAST_TASK_BYTES, min(target, math.ceil(total / max(1, cores))))
    tasks: list[tuple[OffsetRange, ...]] = []
    shared: list[OffsetRange] = []
    filled = 0.0
    for part in cut(ranges, sizes, max_bytes=size):
        weight = len(part) * weights[part.tp]
        if shared and filled + weight > 1.1 * size:
            tasks.append(tuple(shared))
            shared, filled = [], 0.0
        shared.append(part)
        filled += weight
    return [*tasks, tuple(shared)] if shared else tasks
