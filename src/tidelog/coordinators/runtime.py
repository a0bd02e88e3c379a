"""The coordinator runtime: what coordinators share.

An internal topic holds the state of a coordinator.  Each of its partitions that this broker leads
has a shard (:class:`CoordinatorShard`), a state machine that owns the groups, or the transactional
ids, that hash to the partition; a :class:`PartitionWriter`, through which the shard writes records;
and a :class:`CoordinatorTimer`.  When leadership comes, the partition is replayed into a new shard,
in slices; requests meanwhile are answered COORDINATOR_LOAD_IN_PROGRESS.  When it goes, requests
that wait are answered NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from tidelog.clock import Clock
from tidelog.coordinators.records import CoordinatorRecord, RecordSerde
from tidelog.coordinators.timer import CoordinatorTimer
from tidelog.coordinators.writer import PartitionWriter
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata
from tidelog.new_topic import NewTopic
from tidelog.partition.partition import Partition
from tidelog.wire.batch import CONTROL, TRANSACTIONAL, read_header
from tidelog.wire.markers import read_marker
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.records import decode_batch

log = logging.getLogger(__name__)

_LOAD_SLICE_S = 0.005  # then other work has its turn


@lru_cache(maxsize=4096)
def partition_for(key: str, count: int) -> int:
    """The partition of a group or a transactional id: Java's ``String.hashCode``."""
    data = key.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for i in range(0, len(data), 2):
        hashed = (31 * hashed + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    if hashed >= 0x80000000:
        hashed -= 0x100000000
    # Kafka's Utils.abs: the one number without a positive twin becomes 0.
    return (0 if hashed == -0x80000000 else abs(hashed)) % count


class CoordinatorShard(Protocol):
    """The state of one partition of the topic.  ``replay`` is how records become state."""

    def replay(self, record: CoordinatorRecord, time_ms: int) -> None:
        """Apply a record, of this time."""

    def replay_transactional(
        self, producer_id: int, record: CoordinatorRecord, offset: int, time_ms: int
    ) -> None:
        """Keep a record, at this offset of the log, until its transaction has ended."""

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply or drop the records of a transaction: its marker."""

    def loaded(self) -> None:
        """Everything is replayed; requests may come."""

    def unload(self, error: ErrorCode) -> None:
        """Leadership is gone: answer the requests that wait."""


S = TypeVar("S", bound=CoordinatorShard)


@dataclass(frozen=True, slots=True)
class _Led(Generic[S]):
    """A partition that this broker leads."""

    shard: S
    writer: PartitionWriter
    timer: CoordinatorTimer


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic on this broker."""

    def __init__(
        self,
        topic: str,
        make: Callable[[PartitionWriter, CoordinatorTimer], S],
        serde: RecordSerde,
        *,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        open_partition: Callable[[str, int], Partition],
        broker_id: int,
        ack_timeout_ms: int,
    ) -> None:
        self.topic = topic
        self.shards: dict[int, S] = {}  # those that are loaded
        self.partitions = 0  # of the topic; 0 while it does not exist
        self._make = make
        self._serde = serde
        self._clock = clock
        self._spawn = spawn
        self._open_partition = open_partition
        self._broker_id = broker_id
        self._ack_timeout_ms = ack_timeout_ms
        self._led: dict[int, _Led[S]] = {}
        self._failed: dict[int, str] = {}
        self._unopened: set[int] = set()  # led by this broker, but its files are not created yet

    # -- finding ----------------------------------------------------------------

    def shard(self, key: str) -> S:
        """The shard that owns ``key``.  Raises the error to answer."""
        if self.partitions == 0:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"there is no topic {self.topic} yet")
        index = partition_for(key, self.partitions)
        shard = self.shards.get(index)
        if shard is not None:
            return shard
        if index in self._unopened:
            self._load(index, self._open_partition(self.topic, index))
            self._unopened.discard(index)
            return self.shard(key)
        if index in self._failed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._failed[index])
        if index in self._led:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        raise ApiError(ErrorCode.NOT_COORDINATOR)

    def writer(self, key: str) -> PartitionWriter | None:
        """The writer for ``key``, if this broker leads its partition."""
        led = self._led.get(partition_for(key, self.partitions)) if self.partitions else None
        return None if led is None else led.writer

    @property
    def loading(self) -> bool:
        return len(self.shards) < len(self._led) - len(self._failed)

    # -- following leadership -----------------------------------------------------

    def apply(
        self, metadata: ClusterMetadata, partitions: Mapping[tuple[str, int], Partition]
    ) -> None:
        """Load the partitions that this broker leads now, unload the others."""
        topic = metadata.topics.get(self.topic)
        infos = topic.partitions if topic is not None else ()
        self.partitions = len(infos)
        ours = {}
        self._unopened.clear()
        for index, info in enumerate(infos):
            partition = partitions.get((self.topic, index))
            if partition is not None and partition.leads:
                ours[index] = partition
            elif partition is None and info.leader == self._broker_id:
                self._unopened.add(index)
        for index, writer in [(i, led.writer) for i, led in self._led.items()]:
            now = ours.get(index)
            if now is not writer.partition or not writer.leads:
                self._unload(index, ErrorCode.NOT_COORDINATOR)
        for index, partition in ours.items():
            if index not in self._led:
                self._load(index, partition)

    def leadership_changed(self, index: int, partition: Partition) -> None:
        """The controller has changed a leader; the metadata of clients follows later."""
        if index in self._led and not self._led[index].writer.leads:
            self._unload(index, ErrorCode.NOT_COORDINATOR)
        if partition.leads and index < self.partitions and index not in self._led:
            self._load(index, partition)

    def _load(self, index: int, partition: Partition) -> None:
        writer = PartitionWriter(partition, self._clock, self._ack_timeout_ms)
        timer = CoordinatorTimer(self._clock)
        shard = self._make(writer, timer)
        self._led[index] = _Led(shard, writer, timer)
        if partition.log.log_start_offset == partition.log.end_offset:
            shard.loaded()  # a new topic: nothing to read
            self.shards[index] = shard
        else:
            self._spawn(self._replay(index, writer, shard))

    async def _replay(self, index: int, writer: PartitionWriter, shard: S) -> None:
        """Replay the partition, a slice at a time."""
        source, name = writer.partition.log, f"{self.topic}-{index}"
        count = bad = 0
        begun = slice_start = self._clock.monotonic()
        try:
            for batch in source.batches(source.log_start_offset):
                if writer.closed:
                    return
                header = read_header(batch)
                producer_id = header.producer_id
                if header.attributes & CONTROL:
                    if marker := read_marker(batch):
                        shard.end_transaction(producer_id, committed=marker.committed)
                    continue
                transactional = header.attributes & TRANSACTIONAL
                for row in decode_batch(batch):
                    count += 1
                    try:
                        record = self._serde.decode(row.key or b"", row.value, row.headers)
                        if record is None:
                            continue
                        if transactional:
                            shard.replay_transactional(
                                producer_id, record, row.offset, row.timestamp
                            )
                        else:
                            shard.replay(record, row.timestamp)
                    except ProtocolError as error:
                        bad += 1
                        if bad == 1:
                            log.warning("%s: offset %d: %s", name, row.offset, error.message)
                if self._clock.monotonic() - slice_start > _LOAD_SLICE_S:
                    await asyncio.sleep(0)
                    slice_start = self._clock.monotonic()
        except Exception as error:
            # Half of the records would be a state that never was.
            if writer.closed:
                return
            self._failed[index] = f"{name} cannot be read: {error}"
            log.error("%s; what it coordinates is not served.  See `tidelog log check`", error)
            if not isinstance(error, (ApiError, OSError)):
                log.exception("%s: a bug of ours", name)
            return
        if writer.closed:
            return
        shard.loaded()
        self.shards[index] = shard
        if bad:
            log.warning("%s: %d of %d records could not be read", name, bad, count)
        took = self._clock.monotonic() - begun
        if took > 1:
            log.info("%s: loaded %d records in %.1f s", name, count, took)

    def _unload(self, index: int, error: ErrorCode) -> None:
        led = self._led.pop(index)
        self.shards.pop(index, None)
        self._failed.pop(index, None)
        led.timer.close()
        led.writer.close(error)
        led.shard.unload(error)

    def close(self) -> None:
        """The broker stops."""
        for index in list(self._led):
            self._unload(index, ErrorCode.NOT_COORDINATOR)


async def create_internal_topic(
    create: Callable[[NewTopic], Awaitable[object]], new: NewTopic
) -> None:
    """Create the topic on first use, unless another broker just did."""
    try:
        await create(new)
        log.info("%s: created, %d partitions", new.name, new.partitions)
    except ApiError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
