"""The writer of a coordinator shard: appends records to its partition, and waits for the replicas.

The records of all requests that came together go into one batch; ``done`` is called when every
in-sync replica has it, or with the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from tidelog.clock import Clock
from tidelog.coordinators.records import EncodedRecord
from tidelog.errors import ApiError, ErrorCode
from tidelog.partition.acknowledgement import Unacknowledged
from tidelog.partition.leader import ALL_ACKS
from tidelog.partition.partition import Partition
from tidelog.partition.purgatory import DelayedOperation
from tidelog.wire.records import Headers, encode_batch

log = logging.getLogger(__name__)

Done = Callable[[ErrorCode], None]

_NEWEST_PRODUCE = 13  # the version of Produce that Leader.append is to check for
BATCH_BYTES = 512 * 1024  # of records in a batch; max.message.bytes is about twice that
_RECORD_BYTES = 64  # of a record, beside key, value and headers

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


def size_of(record: EncodedRecord) -> int:
    """About how many bytes a record takes in a batch."""
    key, value, headers = record
    size = _RECORD_BYTES + len(key) + (len(value) if value else 0)
    for name, data in headers:
        size += len(name) + len(data or b"")
    return size


class PartitionWriter:
    """Writes to one partition of an internal topic, in one leader epoch."""

    def __init__(self, partition: Partition, clock: Clock, ack_timeout_ms: int) -> None:
        self.partition = partition
        self.leader = partition.require_leader()
        self.closed = False
        self._clock = clock
        self._ack_timeout_ms = ack_timeout_ms
        self._queue: list[tuple[Sequence[EncodedRecord], int, Done]] = []  # records, bytes, done
        # Requests that wait until records are committed.
        self._uncommitted: dict[DelayedOperation, list[Done]] = {}

    @property
    def leads(self) -> bool:
        """Is the partition ours, as it was when the shard was loaded?

        Another leader may have written since if the epoch is not the same.
        """
        return not self.closed and self.leader.leads

    # -- writing ----------------------------------------------------------------

    def write(
        self, records: Sequence[EncodedRecord], done: Done, *, in_one_batch: bool = True
    ) -> None:
        """Append records; ``done`` is called when they are committed, or with the reason why not.

        In one batch all or none of them are written; otherwise they may go into several, and after
        an error some may be written.
        """
        if self.closed:
            done(ErrorCode.NOT_COORDINATOR)
            return
        if not self._queue:
            # Requests that arrive together share a batch.
            asyncio.get_running_loop().call_soon(self._flush)
        size = sum(map(size_of, records))
        if in_one_batch or size <= BATCH_BYTES:
            self._queue.append((records, size, done))
            return
        pieces = _split(records)
        done = _when_all(len(pieces), done)
        self._queue += [(piece, sum(map(size_of, piece)), done) for piece in pieces]

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        now_ms = self._clock.now_ms()
        rows: list[tuple[int, bytes | None, bytes | None, Headers]] = []
        waiting: list[Done] = []
        size = 0
        for encoded, more, done in queue:
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
            written = self.leader.append(batch, _NEWEST_PRODUCE, now_ms, acks=ALL_ACKS, own=True)
        except ApiError as error:
            if self.leads:
                log.warning("%s-%d: %s", partition.topic, partition.index, error.message)
            _call(waiting, _APPEND_ERRORS.get(error.code, error.code))
            return
        except Exception:
            log.exception("%s-%d: append failed", partition.topic, partition.index)
            _call(waiting, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._wait_until_committed(written.last_offset, waiting)

    def when_committed(self, done: Done) -> None:
        """Call ``done`` when everything that is written by now is committed, or with the reason
        why that is not known: this broker may be cut off, and another one coordinate by now.
        """
        if self.closed:
            done(ErrorCode.NOT_COORDINATOR)
        elif self.all_committed:
            done(ErrorCode.NONE)
        else:
            self._wait_until_committed(self.partition.log.end_offset - 1, [done])

    @property
    def all_committed(self) -> bool:
        """Can no other broker know more: the others have everything, or none of them is in sync,
        and then none can have become the coordinator."""
        partition = self.partition
        return self.leader.in_sync == 1 or partition.high_watermark >= partition.log.end_offset

    def _wait_until_committed(self, offset: int, waiting: list[Done]) -> None:
        if offset < self.partition.high_watermark:
            _call(waiting, ErrorCode.NONE)
            return
        batch = Unacknowledged(self.leader, offset)

        def complete() -> None:
            del self._uncommitted[operation]
            error = batch.error()
            _call(waiting, _APPEND_ERRORS.get(error, error))

        operation = DelayedOperation(lambda: not batch.undecided, complete)
        self._uncommitted[operation] = waiting
        operation.watch((self.partition,), self._ack_timeout_ms)

    # -- the end ----------------------------------------------------------------

    def close(self, error: ErrorCode) -> None:
        """Leadership is gone, or the broker stops."""
        if self.closed:
            return
        self.closed = True
        queue, self._queue = self._queue, []
        for _, _, done in queue:
            _call([done], error)
        uncommitted, self._uncommitted = self._uncommitted, {}
        for operation, waiting in uncommitted.items():
            operation.cancel()
            _call(waiting, error)


def _split(records: Sequence[EncodedRecord]) -> list[list[EncodedRecord]]:
    """Records in pieces that a batch can hold."""
    pieces: list[list[EncodedRecord]] = [[]]
    size = 0
    for record in records:
        more = size_of(record)
        if pieces[-1] and size + more > BATCH_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(record)
        size += more
    return pieces


def _when_all(count: int, done: Done) -> Done:
    """Calls ``done`` once, after ``count`` calls, with an error if there was one."""
    errors: list[ErrorCode] = []

    def one_done(error: ErrorCode) -> None:
        errors.append(error)
        if len(errors) == count:
            done(next(filter(None, errors), ErrorCode.NONE))

    return one_done


def _call(waiting: Iterable[Done], error: ErrorCode) -> None:
    for done in waiting:
        try:
            done(error)
        except Exception:
            # The others are still called.
            log.exception("a coordinator's reply failed")
