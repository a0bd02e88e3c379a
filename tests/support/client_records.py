"""Records as every client knows them, and the batches that are on disk.

The segments are read here with no help from tidelog, so that a mistake in its own
reader cannot hide one in its writer.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from tidelog.testing import LocalBroker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOW = int(time.time() * 1000)
MINUTE = 60_000

# baseOffset, batchLength, leaderEpoch, magic, crc, attributes, lastOffsetDelta,
# baseTimestamp, maxTimestamp, producerId, producerEpoch, baseSequence, count
_HEADER = struct.Struct(">qiibIhiqqqhii")


class Row(NamedTuple):
    """A record as every client knows it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = NOW


class Batch(NamedTuple):
    """What a batch's header says."""

    base_offset: int
    codec: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int


def compressible(label: str = "") -> list[Row]:
    """Records that every codec makes smaller: a client sends others as they are."""
    rows = [
        Row(b"text", b"high tide, low tide; " * 100),
        Row(bytes(range(256)), bytes(range(256)) * 20, (("h", b"1"),)),
        Row("schlüssel".encode(), "ebbe und flut, 潮汐 ".encode() * 100, (("kind", b"utf-8"),)),
    ]
    return [
        row._replace(key=label.encode() + row.key, timestamp=NOW + i) for i, row in enumerate(rows)
    ]


EDGES = [
    Row(b"tombstone", None),
    Row(b"empty", b""),
    Row(None, b"no key"),
    Row(b"", b"empty key"),
    Row(b"headers", b"v", (("a", b"1"), ("a", b"again"), ("empty", b""))),
    Row(b"null header", b"v", (("none", None), ("a", b"1"))),
]


def batches_on_disk(broker: LocalBroker, topic: str, partition: int = 0) -> list[Batch]:
    """The headers of all batches in a partition's segments."""
    found = []
    for path in sorted((broker.data / f"{topic}-{partition}").glob("*.log")):
        data, position = path.read_bytes(), 0
        while position < len(data):
            fields = _HEADER.unpack_from(data, position)
            base_offset, length, _, magic, _, attributes = fields[:6]
            assert magic == 2
            found.append(Batch(base_offset, CODECS[attributes & 7], *fields[9:]))
            position += 12 + length
    return found


def codecs_on_disk(broker: LocalBroker, topic: str) -> set[str]:
    return {batch.codec for batch in batches_on_disk(broker, topic)}
