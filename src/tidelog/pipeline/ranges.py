"""Ranges of offsets: what the driver plans and an executor reads, and sets of them.  No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidelog.topic_partition import TopicPartition
from tidelog.wire.schema import ZERO_UUID

# The columns of Spark's own Kafka connector, in its order; headers only if asked for.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets from ``start`` up to, not including, ``end``.

    ``topic_id`` is the topic's identity when the range was planned: a topic that was deleted
    and made again has another one.  Clusters before Kafka 2.8 have none (``ZERO_UUID``).
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = ZERO_UUID

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.tp}[{self.start}:{self.end}]"

    def between(self, start: int, end: int) -> OffsetRange:
        """The same partition, other offsets."""
        return replace(self, start=start, end=end)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a reader wants, in the order in which it wants them."""

    names: tuple[str, ...] = COLUMNS

    def __contains__(self, name: str) -> bool:
        return name in self.names


ALL = Columns()
ALL_WITH_HEADERS = Columns((*COLUMNS, HEADERS))


# -- sets of offsets: sorted, disjoint spans (start, end), the end exclusive ------------------

Span = tuple[int, int]
Spans = tuple[Span, ...]


def union(spans: Iterable[Span]) -> Spans:
    """All of them, in order; those that touch become one."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return tuple(result)


def subtract(span: Span, taken: Iterable[Span]) -> Spans:
    """What is left of a span when others are taken away."""
    position, last = span
    result = []
    for start, end in union(taken):
        if end <= position:
            continue
        if start >= last:
            break
        if start > position:
            result.append((position, start))
        position = max(position, end)
    if position < last:
        result.append((position, last))
    return tuple(result)


def overlap(span: Span, other: Span) -> Span | None:
    """What two spans share, if anything."""
    start, end = max(span[0], other[0]), min(span[1], other[1])
    return (start, end) if start < end else None


def count(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def spans_text(spans: Iterable[Span], limit: int = 5) -> str:
    """``3, 7 to 12 and 2 more`` for people."""
    listed = list(spans)
    shown = [str(a) if b == a + 1 else f"{a} to {b - 1}" for a, b in listed[:limit]]
    if len(listed) > limit:
        return ", ".join(shown) + f" and {len(listed) - limit} more"
    return ", ".join(shown)
