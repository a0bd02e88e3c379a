"""What to read next, and how to cut it into tasks.  No I/O.

A stream goes on in three steps: ``follow`` says where each partition continues and what was
lost, ``advance`` how far this micro-batch may go, and ``ranges_between`` what it must read;
``cut`` makes tasks of any list of ranges.

Sizes are estimates: a log knows its bytes and its offsets, so an offset has an average size.
Holes (compaction, transactions) only make that average smaller.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidelog.client.offsets import Extent
from tidelog.pipeline.offsets import Lost, Offsets, StreamOffset, same_topic
from tidelog.pipeline.ranges import OffsetRange
from tidelog.topic_partition import TopicPartition
from tidelog.wire.schema import ZERO_UUID

# For logs of unknown size: neither tiny nor huge.
DEFAULT_BYTES_PER_OFFSET = 1024.0

DELETED = "retention or DeleteRecords deleted them before they were read"
TRUNCATED = "they were read before and are gone: the log was cut, and grows again in their place"
TOPIC_REPLACED = "the topic was deleted and made again"
TOPIC_GONE = "the topic or the partition is not there any more"
Sizes = Mapping[TopicPartition, float]


@dataclass(frozen=True, slots=True)
class Logs:
    """The partitions that a query reads, as they are now."""

    ids: Mapping[str, bytes]
    extents: Mapping[TopicPartition, Extent]
    leaders: Mapping[TopicPartition, int] = field(default_factory=dict)

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: log.end for tp, log in self.extents.items()}


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where each partition goes on after an offset of the stream."""

    begins: Offsets
    began: Offsets
    lost: tuple[Lost, ...]
    gone: Offsets = field(default_factory=dict)


def follow(
    start: StreamOffset, logs: Logs, wanted: Mapping[str, bool], *, from_pattern: bool
) -> Continuation:
    """Compare how far a stream has read with the logs as they are now.

    ``wanted`` is, for each topic of ``start``, whether the query still asks for it: what the
    user has left out is not lost.  A partition that the stream did not know begins at the
    start of its log.  If that is not zero, records were deleted that the stream should have
    seen; but a topic that the user has just added to ``subscribe`` begins wherever it begins.
    One that was gone and is there again, the same by its id, goes on where it was.
    """
    begins: dict[TopicPartition, int] = {}
    began: dict[TopicPartition, int] = {}
    lost: list[Lost] = []
    known_topics = {tp.topic for tp in (*start.offsets, *start.gone)}
    for tp, log in sorted(logs.extents.items()):
        position = start.offsets.get(tp)
        same = same_topic(start.id_of(tp.topic), logs.ids.get(tp.topic, ZERO_UUID))
        if same and tp in start.gone:
            position = start.gone[tp]
            began[tp] = min(max(position, log.start), log.end)
        if position is not None and same:
            begins[tp] = min(max(position, log.start), log.end)
            if position < log.start:
                lost.append(Lost(tp, position, log.start, DELETED))
            elif position > log.end:
                lost.append(Lost(tp, log.end, position, TRUNCATED))
            continue
        if position is not None:
            lost.append(Lost(tp, position, None, TOPIC_REPLACED))
        begins[tp] = began[tp] = log.start
        if log.start > 0 and (tp.topic in known_topics or from_pattern):
            lost.append(Lost(tp, 0, log.start, DELETED))
    gone: dict[TopicPartition, int] = {}
    for tp, position in sorted({**start.gone, **start.offsets}.items()):
        if tp in logs.extents or not wanted.get(tp.topic, False):
            continue
        same = same_topic(start.id_of(tp.topic), logs.ids.get(tp.topic, ZERO_UUID))
        replaced = tp.topic in logs.ids and not same
        if tp in start.offsets:
            lost.append(Lost(tp, position, None, TOPIC_REPLACED if replaced else TOPIC_GONE))
        if not replaced and start.id_of(tp.topic) != ZERO_UUID:
            gone[tp] = position  # without an id it might be another topic of that name
    return Continuation(begins, began, tuple(lost), gone)


# -- how much -------------------------------------------------------------------


def advance(
    begins: Offsets, ends: Offsets, sizes: Sizes, *, max_offsets: int | None, max_bytes: int | None
) -> dict[TopicPartition, int]:
    """Ends that respect the limits: every partition gets the same part of what it has.

    No partition starves: each that has something advances by one offset at least.
    """
    counts = {tp: max(0, end - begins[tp]) for tp, end in ends.items()}
    offsets = sum(counts.values())
    total = round(sum(count * _size(sizes, tp) for tp, count in counts.items()))
    # The smaller one of the two parts, as a fraction, so that large numbers stay exact.
    above, below = 1, 1
    for limit, sum_ in ((max_offsets, offsets), (max_bytes, total)):
        if limit is not None and limit * below < above * sum_:
            above, below = limit, sum_
    return {
        tp: begins[tp] + (count and max(1, count * above // below)) for tp, count in counts.items()
    }


def enough(begins: Offsets, ends: Offsets, least: int) -> bool:
    """Whether there are at least so many offsets."""
    return sum(max(0, end - begins[tp]) for tp, end in ends.items()) >= least


def _size(sizes: Sizes, tp: TopicPartition) -> float:
    return sizes.get(tp, DEFAULT_BYTES_PER_OFFSET)


# -- ranges ---------------------------------------------------------------------


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
    """What a batch must read; the same whenever it is asked."""
    after_loss: dict[TopicPartition, int] = {}
    for lost in end.lost:
        if lost.end is not None and lost.reason == DELETED:
            after_loss[lost.tp] = max(lost.end, after_loss.get(lost.tp, 0))
    result = []
    for tp in sorted(end.offsets):
        begin = end.began.get(tp, start.offsets.get(tp, 0))
        begin = max(begin, after_loss.get(tp, 0))
        if begin < end.offsets[tp]:
            topic_id = end.id_of(tp.topic)
            result.append(OffsetRange(*tp, begin, end.offsets[tp], topic_id))
    return result


def cut(
    ranges: Iterable[OffsetRange],
    sizes: Sizes,
    *,
    max_bytes: int,
    max_records: int | None = None,
    min_parts: int | None = None,
) -> list[OffsetRange]:
    """Tasks: no larger than the limits, no fewer than ``min_parts`` if there are offsets enough.

    Whatever is still too few is made more by cutting the largest piece again.
    """
    rows = [row for row in ranges if len(row)]
    counts = [_parts(row, _size(sizes, row.tp), max_bytes, max_records) for row in rows]
    missing = (min_parts or 0) - sum(counts)
    heap = [
        (-len(row) * _size(sizes, row.tp) / count, i)
        for i, (row, count) in enumerate(zip(rows, counts, strict=True))
        if count < len(row)
    ]
    heapq.heapify(heap)
    while missing > 0 and heap:
        _, i = heapq.heappop(heap)
        counts[i] += 1
        missing -= 1
        if counts[i] < len(rows[i]):
            size = len(rows[i]) * _size(sizes, rows[i].tp)
            heapq.heappush(heap, (-size / counts[i], i))
    return [
        row.between(row.start + len(row) * i // count, row.start + len(row) * (i + 1) // count)
        for row, count in zip(rows, counts, strict=True)
        for i in range(count)
    ]


def _parts(row: OffsetRange, size: float, max_bytes: int, max_records: int | None) -> int:
    by_bytes = -(-round(len(row) * size) // max_bytes)
    by_records = -(-len(row) // max_records) if max_records else 1
    return min(len(row), max(1, by_bytes, by_records))
