"""Raw batches from many partitions, from whichever brokers lead them.

    fetcher = Fetcher(cluster)
    fetcher.assign(TopicPartition("hello", 0), 0)
    for fetched in fetcher.poll(1.0):
        for batch in fetched.batches: ...

One request to each leader is always under way, on a connection of its own: the next one
leaves before the caller looks at the last answer.  A moved leader is followed without a
word.  What only the caller can decide is returned as an error (an offset that is gone, a
deleted topic); a broken connection is raised, and the next poll tries again from the same
positions.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.cluster import LEADER_MOVED, NO_LEADER, TOPIC_GONE, Cluster, TopicView, error_of
from tidelog.client.connection import BrokerConnection
from tidelog.clock import Clock, SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.topic_partition import TopicPartition
from tidelog.wire.batch import CONTROL, MAGIC, is_valid, read_header
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.wire.records import Record, decode_batch, split_batches
from tidelog.wire.schema import ZERO_UUID

_LAST_WITH_NAMES = 12  # from Fetch 13 on, topics go by their ids
_RETRY_PAUSE = 0.1


class FetchedBatches(NamedTuple):
    """What came of one partition: whole batches, or an error."""

    partition: TopicPartition
    offset: int  # as asked for: the first batch may begin before it
    batches: list[memoryview]
    high_watermark: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class _Request:
    """A fetch that is under way, and the offsets that it asked for."""

    connection: BrokerConnection
    offsets: dict[TopicPartition, int]
    topics: dict[bytes, str] = field(default_factory=dict)


class Fetcher:
    """See the module."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._clock = clock or SystemClock()
        self.positions: dict[TopicPartition, int] = {}
        self._ids: dict[str, bytes] = {}  # topic ids, to notice a topic that was recreated
        self._leaders: dict[TopicPartition, int] = {}
        self._connections: dict[int, BrokerConnection] = {}
        self._requests: dict[int, _Request] = {}
        self._gone: list[FetchedBatches] = []
        self._refresh_at: float | None = 0.0

    def assign(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on; also moves one that is being read."""
        if partition not in self.positions:
            self._refresh_at = 0.0
        self.positions[partition] = offset

    def drop(self, partition: TopicPartition) -> None:
        """Read it no more."""
        self.positions.pop(partition, None)
        self._leaders.pop(partition, None)

    def poll(self, timeout: float) -> list[FetchedBatches]:
        """What has come, within so many seconds; often nothing."""
        try:
            self._refresh()
            if self._gone:
                gone, self._gone = self._gone, []
                return gone
            self._ask()
            waiting = [request.connection for request in self._requests.values()]
            if self._refresh_at is not None:
                timeout = min(timeout, _RETRY_PAUSE)
            readable = _readable(waiting, timeout)
            result: list[FetchedBatches] = []
            for leader, request in list(self._requests.items()):
                if request.connection.fileno() in readable:
                    del self._requests[leader]
                    response = request.connection.receive()
                    assert isinstance(response, FetchResponse)
                    result += self._take(response, request)
            if result:
                self._ask()
        except ApiError:
            self.close()
            raise
        return result

    def close(self) -> None:
        """Let go of the connections; another poll opens them again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._requests.clear()
        self._refresh_at = 0.0

    # -- asking -----------------------------------------------------------------

    def _refresh(self) -> None:
        """Find the leaders again, if there is reason to."""
        if self._refresh_at is None or self._clock.monotonic() < self._refresh_at:
            return
        self._refresh_at = None
        if not self.positions:
            return
        names = dict.fromkeys(partition.topic for partition in self.positions)
        topics = self._cluster.metadata(names).topics
        for partition, offset in list(self.positions.items()):
            topic = topics[partition.topic]
            if self._is_gone(topic, partition):
                self.drop(partition)
                self._ids.pop(partition.topic, None)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                self._gone.append(FetchedBatches(partition, offset, [], -1, code))
                continue
            self._ids.setdefault(partition.topic, topic.topic_id)
            leader = NO_LEADER if topic.error else topic.leader_of(partition.partition)
            self._leaders[partition] = leader
            if leader == NO_LEADER:
                self._refresh_soon()

    def _is_gone(self, topic: TopicView, partition: TopicPartition) -> bool:
        if topic.error:
            if topic.error not in LEADER_MOVED | TOPIC_GONE:
                raise error_of(topic.error, None, f"topic {partition.topic!r}")
            return topic.error in TOPIC_GONE
        known = self._ids.get(partition.topic, topic.topic_id)
        return known != topic.topic_id or partition.partition >= len(topic.partitions)

    def _refresh_soon(self) -> None:
        self._refresh_at = self._clock.monotonic() + _RETRY_PAUSE

    def _ask(self) -> None:
        """Send a fetch to every leader that has none under way."""
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in self.positions.items():
            leader = self._leaders.get(partition, NO_LEADER)
            if leader != NO_LEADER and leader not in self._requests:
                by_leader.setdefault(leader, {})[partition] = offset
        for leader, offsets in by_leader.items():
            self._requests[leader] = self._send(leader, offsets)

    def _send(self, leader: int, offsets: dict[TopicPartition, int]) -> _Request:
        topics: dict[str, FetchTopic] = {}
        for partition, offset in offsets.items():
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = FetchTopic(
                    topic=partition.topic, topic_id=self._ids[partition.topic], partitions=[]
                )
            topic.partitions.append(
                FetchPartition(
                    partition=partition.partition,
                    fetch_offset=offset,
                    partition_max_bytes=self._partition_max_bytes,
                )
            )
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            topics=list(topics.values()),
        )
        by_name = any(self._ids[name] == ZERO_UUID for name in topics)
        connection = self._connections.get(leader)
        if connection is None:
            connection = self._connections[leader] = self._cluster.open(leader)
        connection.send(request, FetchResponse, at_most=_LAST_WITH_NAMES if by_name else None)
        return _Request(connection, offsets, {self._ids[name]: name for name in topics})

    # -- answers ----------------------------------------------------------------

    def _take(self, response: FetchResponse, request: _Request) -> list[FetchedBatches]:
        if response.error_code:
            self._refresh_soon()
            if response.error_code not in LEADER_MOVED | TOPIC_GONE:
                raise error_of(response.error_code)
            return []
        result = []
        for topic in response.responses:
            name = topic.topic or request.topics.get(topic.topic_id, "")
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                asked = request.offsets.get(partition)
                # The caller may have moved or dropped it while the answer was under way.
                if asked is None or self.positions.get(partition) != asked:
                    continue
                found = self._take_partition(partition, asked, data)
                if found is not None:
                    result.append(found)
        return result

    def _take_partition(
        self, partition: TopicPartition, asked: int, data: PartitionData
    ) -> FetchedBatches | None:
        code = error_of(data.error_code).code if data.error_code else ErrorCode.NONE
        if code in LEADER_MOVED or code in TOPIC_GONE or code == ErrorCode.KAFKA_STORAGE_ERROR:
            self._refresh_soon()
            self._leaders[partition] = NO_LEADER
            return None
        if code:
            return FetchedBatches(partition, asked, [], data.high_watermark, code)
        batches = list(split_batches(data.records or b""))
        if batches:
            position = max(asked, read_header(batches[-1]).last_offset + 1)
            # To the end of the line: what the size limit left out comes first next time.
            del self.positions[partition]
            self.positions[partition] = position
        elif data.records:
            # Less than one batch although the first one is always whole: not magic 2.
            batches = [memoryview(data.records)]
        return FetchedBatches(partition, asked, batches, data.high_watermark) if batches else None


def records_of(batch: memoryview) -> Iterator[Record]:
    """The records of a batch that a consumer may see; an ApiError if it is damaged."""
    if len(batch) <= 16 or batch[16] != MAGIC:
        raise ApiError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            "the batch is older than Kafka 0.11 (magic 2), or damaged",
        )
    if not is_valid(batch):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its CRC")
    if read_header(batch).attributes & CONTROL:
        return iter(())
    return decode_batch(batch)


def _readable(connections: Iterable[BrokerConnection], timeout: float) -> set[int]:
    """The files of those with an answer.  Not ``select``: it knows only 1024 files."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection.fileno(), select.POLLIN)
    return {fd for fd, _ in poll.poll(max(0.0, timeout) * 1000)}
