"""Idempotence: what each producer wrote last, so that a retry is not written twice.

Pure but for load and save.  For each producer id: the epoch and the last five batches
(a producer has at most five in flight), and where its open transaction starts.  A batch is

    new          the next sequence, or the first of a new epoch      -> append
    a duplicate  exactly one of the last five                        -> answer its offset
    a gap        anything else                                       -> refuse

A transaction is open from its first batch to its marker.  It stays *unstable* until the
high watermark has passed the marker: a marker that may yet be lost decides nothing.

Snapshot file ``<offset>.snapshot`` (state just before that offset; big-endian):
int16 version = 1, uint32 CRC-32C of the rest, int32 count, then for each producer
int64 id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta,
int64 timestamp, int32 coordinator epoch, int64 first offset of an open transaction.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from crc32c import crc32c

from tidelog import files
from tidelog.errors import ApiError, ErrorCode
from tidelog.files import remove, write_atomically
from tidelog.log.transaction_index import Aborted
from tidelog.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader, add_sequence
from tidelog.wire.markers import Marker

KEPT_BATCHES = 5
_PREFIX = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
NO_TRANSACTION = -1

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Batch:
    """One batch that a producer wrote."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class Producer:
    """One producer id."""

    epoch: int
    batches: list[Batch] = field(default_factory=list)  # oldest first, at most five
    last_timestamp: int = -1
    coordinator_epoch: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerState:
    """All producers of one log."""

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self.transactions: dict[int, int] = {}  # open ones: their first offsets, which grow
        self.undecided: list[tuple[int, int]] = []  # ended: first offset, marker

    def check(self, header: BatchHeader) -> Batch | None:
        """None: append it.  A batch: it is a duplicate of that one.  Else an error."""
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return None  # its history has expired, or it is new: any sequence may start
        if header.producer_epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch} now; "
                f"epoch {header.producer_epoch} is fenced",
            )
        if header.producer_id in self.transactions and not header.attributes & TRANSACTIONAL:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction; "
                "it cannot write outside of it",
            )
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise self._out_of_order(header, 0)
            return None
        last = header.last_sequence
        for batch in producer.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
                return batch
        expected = add_sequence(producer.last_sequence, 1)  # 0, if nothing of its epoch is known
        if header.base_sequence != expected:
            raise self._out_of_order(header, expected)
        return None

    def _out_of_order(self, header: BatchHeader, expected: int) -> ApiError:
        return ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {header.base_sequence}, "
            f"expected {expected}: a batch before it was lost",
        )

    def check_marker(self, header: BatchHeader, marker: Marker) -> None:
        """May this marker be appended?  Else an error: its writer has been replaced."""
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch} now; "
                f"a marker of epoch {header.producer_epoch} is fenced",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the coordinator of producer {header.producer_id} has epoch "
                f"{producer.coordinator_epoch} now; epoch {marker.coordinator_epoch} is fenced",
            )

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """A batch of this producer is in the log (new, or found by recovery)."""
        producer = self._producer(header)
        attributes = header.attributes
        if attributes & CONTROL:
            return
        if attributes & TRANSACTIONAL:
            self.transactions.setdefault(header.producer_id, base_offset)
        batches = producer.batches
        batches.append(
            Batch(
                header.base_sequence,
                header.last_sequence,
                base_offset + header.last_offset_delta,
                header.last_offset_delta,
                header.max_timestamp,
            )
        )
        if len(batches) > KEPT_BATCHES:
            del batches[0]

    def _producer(self, header: BatchHeader) -> Producer:
        """The producer of a batch.  In a new epoch its sequences start anew; a transaction
        stays open: the coordinator ends it, with the new epoch."""
        producer = self.producers.get(header.producer_id)
        if producer is None:
            producer = self.producers[header.producer_id] = Producer(header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches = []
        producer.last_timestamp = header.max_timestamp
        return producer

    # -- transactions -----------------------------------------------------------

    def end_transaction(self, header: BatchHeader, marker: Marker, offset: int) -> Aborted | None:
        """A marker is in the log, at ``offset``; returns the transaction that it aborted."""
        self._producer(header).coordinator_epoch = marker.coordinator_epoch
        first = self.transactions.pop(header.producer_id, None)
        if first is None:
            return None  # the coordinator may repeat itself
        self.undecided.append((first, offset))
        if marker.committed:
            return None
        stable = next(iter(self.transactions.values()), offset + 1)
        return Aborted(header.producer_id, first, offset, stable)

    def first_unstable(self, high_watermark: int) -> int | None:
        """Where the oldest transaction starts whose end is not certain."""
        if self.undecided:
            self.undecided = [row for row in self.undecided if row[1] >= high_watermark]
        starts = [first for first, _ in self.undecided]
        if self.transactions:
            starts.append(next(iter(self.transactions.values())))
        return min(starts, default=None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have been silent for too long."""
        for producer_id, producer in list(self.producers.items()):
            if (
                producer_id not in self.transactions
                and now_ms - producer.last_timestamp >= expiration_ms
            ):
                del self.producers[producer_id]

    # -- snapshots --------------------------------------------------------------

    def encode(self) -> bytes:
        body = bytearray(struct.pack(">i", len(self.producers)))
        for producer_id, p in self.producers.items():
            last = p.batches[-1] if p.batches else Batch(-1, -1, -1, 0, p.last_timestamp)
            body += _ENTRY.pack(
                producer_id,
                p.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                p.last_timestamp,
                p.coordinator_epoch,
                self.transactions.get(producer_id, NO_TRANSACTION),
            )
        return struct.pack(">hI", 1, crc32c(bytes(body))) + bytes(body)

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        """Raises ValueError if the snapshot is not whole."""
        if len(data) < _PREFIX.size:
            raise ValueError("it is cut short")
        version, crc, count = _PREFIX.unpack_from(data)
        if version != 1:
            raise ValueError(f"it has version {version}")
        if crc32c(data[6:]) != crc or len(data) != _PREFIX.size + count * _ENTRY.size:
            raise ValueError("it does not match its CRC")
        state = cls()
        for i in range(count):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator, start = (
                _ENTRY.unpack_from(data, _PREFIX.size + i * _ENTRY.size)
            )
            first = (sequence - delta) & 0x7FFFFFFF
            batches = [Batch(first, sequence, offset, delta, timestamp)] if sequence >= 0 else []
            state.producers[producer_id] = Producer(epoch, batches, timestamp, coordinator)
            if start != NO_TRANSACTION:
                state.transactions[producer_id] = start
        state.transactions = dict(sorted(state.transactions.items(), key=lambda item: item[1]))
        return state


def snapshot_path(directory: str, offset: int) -> str:
    return os.path.join(directory, f"{offset:020d}.snapshot")


def save_snapshot(directory: str, offset: int, state: ProducerState) -> None:
    # Not synced: a torn snapshot fails its CRC and is rebuilt from the log.
    write_atomically(snapshot_path(directory, offset), state.encode(), sync=False)


def save_between(directory: str, offset: int, state: ProducerState, bases: Iterable[int]) -> None:
    """A snapshot within a segment: Kafka has them only where one begins, but then a follower
    that has to cut off its last batch reads up to a gigabyte of small ones.  Two are kept."""
    with contextlib.suppress(OSError):  # without it there is more to read, that is all
        save_snapshot(directory, offset, state)
        between = sorted(set(snapshot_offsets(directory)).difference(bases))
        for old in between[:-2]:
            remove(snapshot_path(directory, old))


def snapshot_offsets(directory: str) -> list[int]:
    """The offsets of the snapshots in a directory, oldest first."""
    names = (name for name in files.listdir(directory) if name.endswith(".snapshot"))
    return sorted(int(name[:20]) for name in names if name[:20].isdigit())


def load_newest_snapshot(
    directory: str, at_most: int, *, keep_newer: bool = False
) -> tuple[int, ProducerState]:
    """The newest usable snapshot at or before an offset; damaged ones are removed.

    So are newer ones, as they speak of records that the log no longer has.
    """
    for offset in reversed(snapshot_offsets(directory)):
        path = snapshot_path(directory, offset)
        if offset > at_most:
            if not keep_newer:
                remove(path)
            continue
        try:
            return offset, ProducerState.decode(files.read_file(path))
        except (ValueError, OSError) as error:
            log.warning("%s cannot be used (%s); the state is rebuilt from the log", path, error)
            remove(path)
    return -1, ProducerState()
