"""What the driver plans and an executor reads: a range of offsets of one partition."""

from __future__ import annotations

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
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.place}[{self.start}:{self.end}]"

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
