"""Random logs as a broker would send them, and what a plain decoder finds in them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.pipeline.ranges import Columns
from tidelog.wire import batch as batches
from tidelog.wire import records
from tidelog.wire.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader, read_header
from tidelog.wire.compression import Codec, compress
from tidelog.wire.markers import Marker, encode_marker
from tidelog.wire.primitives import varint
from tidelog.wire.records import Record, _encode_record, decode_batch, split_batches

NOW = 1_700_000_000_000
LARGEST_MS = (2**63 - 1) // 1000


@dataclass(slots=True)
class Log:
    """The bytes of a log, and the aborted transactions in it."""

    data: bytes = b""
    end: int = 0
    aborted: list[tuple[int, int]] = field(default_factory=list)


def build(
    records: Sequence[Record],
    base: int,
    last: int,
    *,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    producer_id: int = -1,
    base_timestamp: int = NOW,
) -> bytes:
    """A batch with these records and holes between them, as compaction leaves it."""
    body = bytearray()
    for row in records:
        delta = row.timestamp - base_timestamp
        encoded = _encode_record(row.offset - base, delta, row.key, row.value, row.headers)
        body += varint(len(encoded)) + encoded
    return seal(
        bytes(body), len(records), base, last, codec, attributes, producer_id, base_timestamp
    )


def seal(
    body: bytes,
    count: int,
    base: int,
    last: int,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    producer_id: int = -1,
    base_timestamp: int = NOW,
) -> bytes:
    """A batch with a right CRC around any bytes."""
    header = BatchHeader(
        base_offset=base,
        length=0,
        leader_epoch=7,
        magic=batches.MAGIC,
        crc=0,
        attributes=attributes | codec,
        last_offset_delta=last - base,
        base_timestamp=base_timestamp,
        max_timestamp=NOW + 777,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1,
        record_count=count,
    )
    return records.seal(header, compress(codec, body))


def random_bytes(rng: random.Random, largest: int) -> bytes | None:
    """Lengths around the places where a varint grows, and much that compresses."""
    size = min(largest, rng.choice((0, 1, 5, 62, 63, 64, 65, 127, 128, 1000, 9000)))
    return rng.choice((None, rng.randbytes(size), b"tide" * (size // 4), b"x" * size))


def random_record(rng: random.Random, offset: int, largest: int) -> Record:
    names = ("", "h", "ключ", "x" * 70, "é")
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if rng.random() < 0.3:
        headers = tuple(
            (rng.choice(names), random_bytes(rng, 200)) for _ in range(rng.randint(1, 4))
        )
    timestamp = NOW + rng.choice((0, 1, -5, 63, 64, -64, 1 << 40, -NOW, -NOW - 1))
    return Record(
        offset, timestamp, random_bytes(rng, largest), random_bytes(rng, largest), headers
    )


def random_log(rng: random.Random, count: int, largest: int = 9000) -> Log:
    """Batches of every kind: codecs, holes, empty ones, transactions and their markers."""
    log = Log(end=rng.choice((0, 5, 2**31 - 20, 2**40)))
    open_since: dict[int, int] = {}
    for _ in range(count):
        if rng.random() < 0.1:
            log.end += rng.randint(1, 50)  # whole batches that compaction took
        producer = rng.choice((-1, 11, 12, 13))
        if producer > 0 and producer in open_since and rng.random() < 0.4:
            committed = rng.random() < 0.5
            if not committed:
                log.aborted.append((producer, open_since[producer]))
            del open_since[producer]
            marker = bytearray(encode_marker(Marker(committed, 0), producer, 0, NOW))
            batches.place(marker, log.end, 7)
            log.data += marker
            log.end += 1
            continue
        size = rng.choice((1, 1, 2, 10, 40))
        kept = [i for i in range(size) if rng.random() < rng.choice((0.5, 1.0, 1.0))]
        records = [random_record(rng, log.end + i, largest) for i in kept]
        attributes = LOG_APPEND_TIME if rng.random() < 0.2 else 0
        if producer > 0:
            attributes |= TRANSACTIONAL
            open_since.setdefault(producer, log.end)
        log.data += build(
            records,
            log.end,
            log.end + size - 1,
            codec=rng.choice(list(Codec)),
            attributes=attributes,
            producer_id=producer,
        )
        log.end += size
    # What is still open would be aborted later: a read_committed fetch would end before it.
    log.aborted += list(open_since.items())
    return log


def expected(
    data: bytes, start: int, end: int, aborted: Iterable[tuple[int, int]] = ()
) -> list[tuple[Record, int]]:
    """The records that a consumer sees, each with its timestamp type; one batch at a time."""
    result = []
    transactions = sorted(aborted, key=lambda row: row[1])
    for batch in split_batches(data):
        header = read_header(batch)
        if header.attributes & CONTROL:
            # The first transaction of this producer ends here, if it was not committed.
            mine = [row for row in transactions if row[0] == header.producer_id]
            kind = next(decode_batch(batch)).key
            if kind == b"\0\0\0\0" and mine and mine[0][1] < header.base_offset:
                transactions.remove(mine[0])
            continue
        if header.attributes & TRANSACTIONAL and any(
            producer == header.producer_id and first <= header.last_offset
            for producer, first in transactions
        ):
            continue
        kind_of_time = 1 if header.attributes & LOG_APPEND_TIME else 0
        result += [
            (record, kind_of_time) for record in decode_batch(batch) if start <= record.offset < end
        ]
    return result


def as_columns(
    found: list[tuple[Record, int]], topic: str, partition: int, columns: Columns
) -> dict[str, list[Any]]:
    """What the Arrow table must hold, in Python's words; timestamps in microseconds."""
    every = {
        "key": [row.key for row, _ in found],
        "value": [row.value for row, _ in found],
        "topic": [topic for _ in found],
        "partition": [partition for _ in found],
        "offset": [row.offset for row, _ in found],
        "timestamp": [1000 * min(max(row.timestamp, -LARGEST_MS), LARGEST_MS) for row, _ in found],
        "timestampType": [kind for _, kind in found],
        "headers": [
            [{"key": name, "value": content} for name, content in row.headers] or None
            for row, _ in found
        ],
    }
    return {name: every[name] for name in columns.names}
