"""Records of partitions, for ``tidelog consume`` without a group: fetched with our own client.

A broker that restarts is waited for, records that are deleted before they are read are
reported and passed over, and a deleted topic is dropped.  New partitions (and, with a pattern,
new topics) are found every two seconds, and are read from their start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from tidelog.client.cluster import Cluster, TopicView, error_of
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.fetcher import FetchedBatches, Fetcher, records_of
from tidelog.client.partitions import extents
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.tools.output import note
from tidelog.tools.reading import RecordChunk
from tidelog.tools.stop_signal import StopSignal
from tidelog.topic_partition import TopicPartition
from tidelog.wire.records import Record

_DISCOVERY_SECONDS = 2.0
_RETRY_SECONDS = 0.3


class PartitionSource:
    """See the module."""

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        until: dict[TopicPartition, int] | None,
        *,
        retry_seconds: float = 60.0,
        discover: Callable[[], Iterable[TopicView]] | None = None,
        waits: bool = False,
    ) -> None:
        """``discover`` finds the topics again; ``waits``: for new ones, even if there is none."""
        self._cluster = cluster
        self._fetcher = fetcher
        self._until = until
        self._retry_seconds = retry_seconds
        self._discover = discover
        self._waits = discover is not None and waits
        self._known: set[TopicPartition] = set()
        self._deleted: set[str] = set()
        self._clock = SystemClock()
        self._down_since: float | None = None
        self._discovered_at = self._clock.monotonic()

    def assign(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on, unless it is at its end already."""
        self._known.add(partition)
        self._fetcher.assign(partition, offset)
        self.written(partition, offset)

    @property
    def at_end(self) -> bool:
        return not (self._fetcher.positions or self._waits)

    @property
    def disconnected(self) -> bool:
        return self._down_since is not None

    def poll(self, wait: float, room: int | None, stop: StopSignal) -> Iterator[RecordChunk]:  # noqa: ARG002
        now = self._clock.monotonic()
        if now - self._discovered_at >= _DISCOVERY_SECONDS and not self.disconnected:
            self._discovered_at = now
            self._find_new_partitions()
        with stop.raising():
            fetched = self._fetch(wait)
        for part in fetched:
            if part.error:
                self._handle(part)
                continue
            end = None if self._until is None else self._until[part.partition]
            batches = [
                (int.from_bytes(batch[:8], "big"), _decoded(batch)) for batch in part.batches
            ]
            yield RecordChunk(part.partition, part.offset, end, batches)
            position = self._fetcher.positions.get(part.partition)
            if position is not None:
                self.written(part.partition, position)

    def _fetch(self, wait: float) -> list[FetchedBatches]:
        try:
            if not self._fetcher.positions:
                time.sleep(max(0.0, min(wait, _RETRY_SECONDS)))
                return []
            result = self._fetcher.poll(wait)
            if self._down_since is not None:
                self._down_since = None
                note("the broker is back; going on")
            return result
        except BrokerUnreachable as error:
            now, seconds = self._clock.monotonic(), f"{self._retry_seconds:g} seconds"
            if self._down_since is None:
                self._down_since = now
                note(f"{error}; trying again for {seconds}")
            if now - self._down_since >= self._retry_seconds:
                raise BrokerUnreachable(f"{error}; gave up after {seconds}") from error
            time.sleep(_RETRY_SECONDS)
            return []

    def written(self, partition: TopicPartition, offset: int) -> None:
        if self._until is not None and offset >= self._until.get(partition, 0):
            self._fetcher.drop(partition)

    def close(self) -> None:
        self._fetcher.close()

    def _handle(self, fetched: FetchedBatches) -> None:
        partition, position = fetched.partition, fetched.offset
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            log = extents(self._cluster, [partition])[partition]
            if position < log.start:
                gone = f"offsets {position} to {log.start - 1}"
                note(f"{partition}: {gone} were deleted before they were read")
            elif position > log.end:
                note(f"{partition}: the log was truncated to offset {log.end}, before {position}")
            self.assign(partition, min(max(position, log.start), log.end))
            return
        if fetched.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error_of(fetched.error, None, f"{partition}@{position}")
        topic = partition.topic
        self._fetcher.drop(partition)
        if topic not in self._deleted:
            self._deleted.add(topic)
            message = f"topic {topic!r} was deleted while it was read"
            if self.at_end:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            note(message)
        self._known = {known for known in self._known if known.topic != topic}

    def _find_new_partitions(self) -> None:
        if self._discover is None:
            return
        try:
            new = [
                partition
                for topic in self._discover()
                for part in topic.partitions
                if (partition := TopicPartition(topic.name, part.index)) not in self._known
            ]
            for partition, log in extents(self._cluster, new).items():
                self._deleted.discard(partition.topic)
                self.assign(partition, log.start)
        except BrokerUnreachable:
            return  # the next fetch deals with it
        except ApiError as error:
            if error.code not in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.LEADER_NOT_AVAILABLE,
            ):
                raise


def _decoded(batch: memoryview) -> Iterator[Record]:
    """Decoded when its first record is asked for."""
    yield from records_of(batch)
