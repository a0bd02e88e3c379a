"""Where coordinators meet the log: shards, their records, and time.

An internal topic is the memory of a coordinator.  Each partition of it that this broker
leads is a :class:`Shard` with a state machine of its own.  When leadership comes, the
partition is replayed into a new machine, in slices; requests meanwhile are answered
COORDINATOR_LOAD_IN_PROGRESS.  When it goes, whoever waits is answered NOT_COORDINATOR.

A machine writes with ``Shard.write``: the records of all requests that came together go into
one batch, and ``done`` is called when every in-sync replica has it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from tidelog.clock import Clock
from tidelog.controller.admin_protocol import Admin
from tidelog.coordinators.records import CoordinatorRecord, EncodedRecord, decode_record
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata
from tidelog.new_topic import NewTopic
from tidelog.partition.acknowledgement import Unacknowledged
from tidelog.partition.appending import ALL_ACKS
from tidelog.partition.partition import Partition
from tidelog.partition.purgatory import DelayedOperation
from tidelog.wire.batch import CONTROL, TRANSACTIONAL, read_header
from tidelog.wire.markers import read_marker
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.records import Headers, decode_batch, encode_batch

log = logging.getLogger(__name__)

Done = Callable[[ErrorCode], None]

_NEWEST_PRODUCE = 13  # what Partition.append is told about who writes
_LOAD_SLICE_S = 0.005  # then others have their turn
BATCH_BYTES = 512 * 1024  # of records in a batch; max.message.bytes is about twice that
_ROW_BYTES = 64  # of a record, beside key, value and headers

# What a failed append means to a client of a coordinator (as in Kafka).
_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


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


def size_of(row: EncodedRecord) -> int:
    """About how many bytes a record takes in a batch."""
    key, value, headers = row
    size = _ROW_BYTES + len(key) + (len(value) if value else 0)
    for name, data in headers:
        size += len(name) + len(data or b"")
    return size


class Machine(Protocol):
    """The state of one shard."""

    def replay(self, record: CoordinatorRecord, time_ms: int) -> None:
        """Be what a record says."""

    def replay_transactional(
        self, producer_id: int, record: CoordinatorRecord, offset: int, time_ms: int
    ) -> None:
        """Remember a record, at this offset of the log, until its transaction has ended."""

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Be what a marker says about the records of its transaction."""

    def loaded(self) -> None:
        """Everything is replayed; requests may come."""

    def unload(self, error: ErrorCode) -> None:
        """Leadership is gone: answer whoever waits."""


M = TypeVar("M", bound=Machine)


class Shard:
    """One partition of the internal topic, led by this broker."""

    def __init__(self, partition: Partition, clock: Clock, ack_timeout_ms: int) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.closed = False
        self._clock = clock
        self._ack_timeout_ms = ack_timeout_ms
        self._queue: list[tuple[Sequence[EncodedRecord], Done]] = []
        # Who waits until records are committed.
        self._uncommitted: dict[DelayedOperation, list[Done]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._deadlines: list[tuple[int, str]] = []
        self._wanted: dict[str, int] = {}  # key -> the deadline that counts
        self._on_deadline: Callable[[str], None] = _nobody

    @property
    def leads(self) -> bool:
        """Is the partition ours, as it was when the shard was loaded?

        Another leader may have written since if the epoch is not the same.
        """
        partition = self.partition
        return (
            not self.closed
            and not partition.deleted
            and partition.leads
            and partition.leader_epoch == self.epoch
        )

    # -- writing ----------------------------------------------------------------

    def write(self, rows: Sequence[EncodedRecord], done: Done) -> None:
        """Append records, all or none; ``done`` hears when they are safe, or why not."""
        if self.closed:
            done(ErrorCode.NOT_COORDINATOR)
            return
        if not self._queue:
            # Requests that arrive together share a batch.
            asyncio.get_running_loop().call_soon(self._flush)
        self._queue.append((rows, done))

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        now_ms = self._clock.now_ms()
        rows: list[tuple[int, bytes | None, bytes | None, Headers]] = []
        waiting: list[Done] = []
        size = 0
        for encoded, done in queue:
            more = sum(map(size_of, encoded))
            if rows and size + more > BATCH_BYTES:
                self._append(rows, waiting, now_ms)
                rows, waiting, size = [], [], 0
            rows += [(now_ms, key, value, headers) for key, value, headers in encoded]
            waiting.append(done)
            size += more
        if rows:
            self._append(rows, waiting, now_ms)

    def _append(
        self,
        rows: list[tuple[int, bytes | None, bytes | None, Headers]],
        waiting: list[Done],
        now_ms: int,
    ) -> None:
        partition = self.partition
        try:
            if not self.leads:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            batch = memoryview(bytearray(encode_batch(rows)))
            written = partition.append(batch, _NEWEST_PRODUCE, now_ms, acks=ALL_ACKS, own=True)
        except ApiError as error:
            if self.leads:
                log.warning("%s-%d: %s", partition.topic, partition.index, error.message)
            _tell(waiting, _APPEND_ERRORS.get(error.code, error.code))
            return
        except Exception:
            log.exception("%s-%d: append failed", partition.topic, partition.index)
            _tell(waiting, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._wait_until_committed(written.last_offset, waiting)

    def when_safe(self, done: Done) -> None:
        """Call ``done`` when everything that is written by now is committed, or with the reason
        why that is not known: this broker may be cut off, and another one coordinate by now.
        """
        if self.closed:
            done(ErrorCode.NOT_COORDINATOR)
        elif self.all_safe:
            done(ErrorCode.NONE)
        else:
            self._wait_until_committed(self.partition.log.end_offset - 1, [done])

    @property
    def all_safe(self) -> bool:
        """Can no other broker know more: the others have everything, or none of them is in sync,
        and then none can have become the coordinator."""
        partition = self.partition
        return partition.in_sync == 1 or partition.high_watermark >= partition.log.end_offset

    def _wait_until_committed(self, offset: int, waiting: list[Done]) -> None:
        if offset < self.partition.high_watermark:
            _tell(waiting, ErrorCode.NONE)
            return
        batch = Unacknowledged(self.partition, offset, self.epoch)

        def complete() -> None:
            del self._uncommitted[operation]
            error = batch.error()
            _tell(waiting, _APPEND_ERRORS.get(error, error))

        operation = DelayedOperation(lambda: not batch.undecided, complete)
        self._uncommitted[operation] = waiting
        operation.watch((self.partition,), self._ack_timeout_ms)

    # -- time -------------------------------------------------------------------

    def on_deadline(self, callback: Callable[[str], None]) -> None:
        """Who is called with a key whose deadline has come."""
        self._on_deadline = callback

    def wake_at(self, key: str, deadline: int | None) -> None:
        """Call back for ``key`` at a time of the clock that never goes back, in ms."""
        if deadline is None or self.closed:
            self._wanted.pop(key, None)
        elif self._wanted.get(key) != deadline:
            self._wanted[key] = deadline
            heapq.heappush(self._deadlines, (deadline, key))
            if self._deadlines[0] == (deadline, key):
                self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deadlines and not self.closed:
            # One ms later: the timer of the loop may be early by less.
            delay = self._deadlines[0][0] / 1000 - self._clock.monotonic() + 0.001
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._due)

    def _due(self) -> None:
        self._timer = None
        now = int(self._clock.monotonic() * 1000)
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, key = heapq.heappop(self._deadlines)
            if self._wanted.get(key) == deadline:
                del self._wanted[key]
                due.append(key)
        for key in due:
            try:
                self._on_deadline(key)
            except Exception:
                log.exception("%s-%d: %r", self.partition.topic, self.partition.index, key)
        if self._timer is None:
            self._set_timer()

    # -- the end ----------------------------------------------------------------

    def close(self, error: ErrorCode) -> None:
        """Leadership is gone, or the broker stops."""
        if self.closed:
            return
        self.closed = True
        self._on_deadline = _nobody  # no cycle: a log's files are closed when nobody holds it
        if self._timer is not None:
            self._timer.cancel()
        queue, self._queue = self._queue, []
        for _, done in queue:
            _tell([done], error)
        uncommitted, self._uncommitted = self._uncommitted, {}
        for operation, waiting in uncommitted.items():
            operation.cancel()
            _tell(waiting, error)


def _nobody(_: str) -> None:
    """Nobody has asked to be woken."""


def _tell(waiting: Iterable[Done], error: ErrorCode) -> None:
    for done in waiting:
        try:
            done(error)
        except Exception:
            # One that fails must not keep the others from hearing.
            log.exception("a coordinator's reply failed")


class Runtime(Generic[M]):
    """The shards of one internal topic on this broker."""

    def __init__(
        self,
        topic: str,
        make: Callable[[Shard], M],
        *,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        open_partition: Callable[[str, int], Partition],
        broker_id: int,
        ack_timeout_ms: int,
    ) -> None:
        self.topic = topic
        self.machines: dict[int, M] = {}  # the shards that are loaded
        self.partitions = 0  # of the topic; 0 while there is none
        self._make = make
        self._clock = clock
        self._spawn = spawn
        self._open_partition = open_partition
        self._broker_id = broker_id
        self._ack_timeout_ms = ack_timeout_ms
        self._shards: dict[int, tuple[Shard, M]] = {}
        self._failed: dict[int, str] = {}
        self._unopened: set[int] = set()  # led by us, but its files are not made yet

    # -- finding ----------------------------------------------------------------

    def machine(self, key: str) -> M:
        """The machine that knows ``key``, or the error to answer."""
        if self.partitions == 0:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"there is no topic {self.topic} yet")
        index = partition_for(key, self.partitions)
        found = self.machines.get(index)
        if found is not None:
            return found
        if index in self._unopened:
            self._take(index, self._open_partition(self.topic, index))
            self._unopened.discard(index)
            return self.machine(key)
        if index in self._failed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self._failed[index])
        if index in self._shards:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        raise ApiError(ErrorCode.NOT_COORDINATOR)

    def shard(self, key: str) -> Shard | None:
        """The shard of ``key``, if it is ours."""
        found = self._shards.get(partition_for(key, self.partitions)) if self.partitions else None
        return None if found is None else found[0]

    @property
    def loading(self) -> bool:
        return len(self.machines) < len(self._shards) - len(self._failed)

    # -- following the metadata ---------------------------------------------------

    def apply(
        self, metadata: ClusterMetadata, partitions: dict[tuple[str, int], Partition]
    ) -> None:
        """Load the shards that we lead now, let go of those that we do not."""
        topic = metadata.topics.get(self.topic)
        infos = topic.partitions if topic is not None else ()
        self.partitions = len(infos)
        led = {}
        self._unopened.clear()
        for index, info in enumerate(infos):
            partition = partitions.get((self.topic, index))
            if partition is not None and partition.leads:
                led[index] = partition
            elif partition is None and info.leader == self._broker_id:
                self._unopened.add(index)
        for index, (shard, _) in list(self._shards.items()):
            now = led.get(index)
            if now is not shard.partition or now.leader_epoch != shard.epoch:
                self._let_go(index, ErrorCode.NOT_COORDINATOR)
        for index, partition in led.items():
            if index not in self._shards:
                self._take(index, partition)

    def ordered(self, index: int, partition: Partition) -> None:
        """The controller of a cluster has said who leads; what clients are told comes later."""
        if index in self._shards and not self._shards[index][0].leads:
            self._let_go(index, ErrorCode.NOT_COORDINATOR)
        if partition.leads and index < self.partitions and index not in self._shards:
            self._take(index, partition)

    def _take(self, index: int, partition: Partition) -> None:
        shard = Shard(partition, self._clock, self._ack_timeout_ms)
        machine = self._make(shard)
        self._shards[index] = shard, machine
        if partition.log.log_start_offset == partition.log.end_offset:
            machine.loaded()  # a new topic: nothing to read
            self.machines[index] = machine
        else:
            self._spawn(self._load(index, shard, machine))

    async def _load(self, index: int, shard: Shard, machine: M) -> None:
        """Replay the partition, a slice at a time."""
        source, name = shard.partition.log, f"{self.topic}-{index}"
        count = bad = 0
        begun = slice_start = self._clock.monotonic()
        try:
            for batch in source.batches(source.log_start_offset):
                if shard.closed:
                    return
                header = read_header(batch)
                producer_id = header.producer_id
                if header.attributes & CONTROL:
                    if marker := read_marker(batch):
                        machine.end_transaction(producer_id, committed=marker.committed)
                    continue
                transactional = header.attributes & TRANSACTIONAL
                for row in decode_batch(batch):
                    count += 1
                    try:
                        record = decode_record(row.key or b"", row.value, row.headers)
                        if record is None:
                            continue
                        if transactional:
                            machine.replay_transactional(
                                producer_id, record, row.offset, row.timestamp
                            )
                        else:
                            machine.replay(record, row.timestamp)
                    except ProtocolError as error:
                        bad += 1
                        if bad == 1:
                            log.warning("%s: offset %d: %s", name, row.offset, error.message)
                if self._clock.monotonic() - slice_start > _LOAD_SLICE_S:
                    await asyncio.sleep(0)
                    slice_start = self._clock.monotonic()
        except Exception as error:
            # Half of it would be a past that nobody acknowledged.
            if shard.closed:
                return
            self._failed[index] = f"{name} cannot be read: {error}"
            log.error("%s; its groups are not served.  See `tidelog log check`", error)
            if not isinstance(error, (ApiError, OSError)):
                log.exception("%s: a bug of ours", name)
            return
        if shard.closed:
            return
        machine.loaded()
        self.machines[index] = machine
        if bad:
            log.warning("%s: %d of %d records could not be read", name, bad, count)
        took = self._clock.monotonic() - begun
        if took > 1:
            log.info("%s: loaded %d records in %.1f s", name, count, took)

    def _let_go(self, index: int, error: ErrorCode) -> None:
        shard, machine = self._shards.pop(index)
        self.machines.pop(index, None)
        self._failed.pop(index, None)
        shard.close(error)
        machine.unload(error)

    def close(self) -> None:
        """The broker stops."""
        for index in list(self._shards):
            self._let_go(index, ErrorCode.NOT_COORDINATOR)


async def create_internal_topic(
    controller: Admin, name: str, partitions: int, replicas: int, config: dict[str, str]
) -> None:
    """Make the topic on first use, with no more replicas than there are brokers."""
    try:
        replicas = min(replicas, len(controller.metadata.brokers))
        await controller.create_topic(NewTopic(name, partitions, replicas, config=config))
        log.info("%s: created, %d partitions", name, partitions)
    except ApiError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
