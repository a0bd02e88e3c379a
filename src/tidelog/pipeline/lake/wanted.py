"""Which offsets of the topics a load is to read, and which of these are gone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from tidelog.client.offsets import Extent, Position, PositionKind
from tidelog.pipeline.lake import plan
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.ledger import State
from tidelog.pipeline.lake.options import LoadOptions
from tidelog.pipeline.lake.spans import spans_text
from tidelog.pipeline.planner import Logs
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.ranges import OffsetRange
from tidelog.pipeline.where import Where
from tidelog.topic_partition import TopicPartition


def find_ranges(options: LoadOptions, state: State, positions: Positions, logs: Logs) -> plan.Found:
    """What is to be read, what is lost, and where the others begin."""
    ends = {place: state.end(place) or 0 for place in logs.extents}
    beyond = {place: end for place, end in ends.items() if end > logs.extents[place].end}
    logs = positions.reaching(logs, beyond)
    first, last = _resolved(options, positions, logs)
    if options.start is not None and first is not None:
        _check_absolute(options.start, first, logs.extents)
    spans = plan.wanted(state, logs.extents, first, last)
    there, lost = plan.without_lost(spans, logs.extents)
    if lost and options.on_loss == "fail":
        shown = "; ".join(f"{row.place}: {spans_text([(row.start, row.end)])}" for row in lost[:5])
        raise LakeError(
            f"retention was faster than the loads: offsets that are not in the destination are "
            f"no longer in the topic ({shown}); --on-loss skip goes on without them"
        )
    ranges = [
        OffsetRange(*place, start, end, logs.ids[place.topic])
        for place, rows in sorted(there.items())
        for start, end in rows
    ]
    return plan.Found(ranges, lost, plan.beginnings(state, logs.extents, last, spans))


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
    for place, log in logs.extents.items():
        start = max(log.start, first[place]) if first else log.start
        end = min(log.end, last[place]) if last else log.end
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
    for place, offset in found.items():
        if not logs[place].start <= offset <= logs[place].end:
            raise LakeError(
                f"--from {offset}: {place} has offsets {logs[place].start} to {logs[place].end - 1}"
            )
