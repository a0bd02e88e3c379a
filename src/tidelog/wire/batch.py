"""The 61-byte header of a record batch (magic 2): the only part the hot path reads.

    offset size field                 who writes it
    0      8    base offset           the broker, at append (outside the CRC)
    8      4    length                the producer; counts what follows this field
    12     4    partition leader epoch  the broker, at append (outside the CRC)
    16     1    magic = 2             the producer
    17     4    CRC-32C of [21:]      the producer (the broker when it edits a batch)
    21     2    attributes            codec, timestamp type, transactional, control, horizon
    23     4    last offset delta     the producer; survives compaction
    27     8    base timestamp        the producer; the delete horizon if that bit is set
    35     8    max timestamp         the producer; the broker for LogAppendTime
    43     8    producer id           -1 when the producer is not idempotent
    51     2    producer epoch
    53     4    base sequence
    57     4    record count
    61          records, one compressed stream if a codec is set

A batch stays bytes from the socket to the disk, to followers and to consumers.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.primitives import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
CRC_START = 21  # what the CRC covers begins here
_MIN_RECORD = 7  # bytes: length, attributes, two deltas, no key, no value, no headers
INT64_MAX = 2**63 - 1
LENGTH_OVERHEAD = 12  # base offset and length itself
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40  # the base timestamp says when the tombstones may go (KIP-534)

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1

_PLACE = struct.Struct(">qii")  # base offset, length (as it is), leader epoch
_CRC = struct.Struct(">I")
_MAX_TIMESTAMP = struct.Struct(">q")
_ATTRIBUTES = struct.Struct(">h")


class BatchHeader(NamedTuple):
    """The header in words.  Plain tuples in this order serve the hot path."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return add_sequence(self.base_sequence, self.last_offset_delta)


_unpack = HEADER.unpack_from
_as_header = tuple.__new__  # half the time of BatchHeader(*...), for the hot path


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at ``pos``; the caller has made sure that 61 bytes are there."""
    return BatchHeader(*HEADER.unpack_from(buf, pos))


def add_sequence(sequence: int, delta: int) -> int:
    """Sequences wrap from 2^31-1 to 0."""
    return (sequence + delta) & 0x7FFFFFFF


def check_produced(batch: Buffer, max_decompressed: int = INT64_MAX) -> BatchHeader:
    """Every rule that a batch must keep to be appended; raises the error to answer.

    Nothing here looks past the header except the CRC.  ``max_decompressed``: the most bytes that
    its records may have.
    """
    size = len(batch)
    if size < HEADER_SIZE:
        raise _invalid(f"a batch of {size} bytes has no complete header ({HEADER_SIZE} bytes)")
    header = _as_header(BatchHeader, _unpack(batch, 0))
    _, length, _, magic, crc, attributes, last_delta, _, _, producer_id, _, sequence, count = header
    if magic != MAGIC:
        raise _invalid(f"the batch has magic {magic}; only magic 2 (Kafka 0.11 or newer) is taken")
    if length + LENGTH_OVERHEAD != size:
        if HEADER_SIZE <= length + LENGTH_OVERHEAD < size:
            raise _invalid("more than one batch for a partition in one request")
        message = f"the batch says it has {length + LENGTH_OVERHEAD} bytes but {size} came"
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, message)
    if crc32c(memoryview(batch)[21:]) != crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its CRC; send it again")
    if count <= 0 or count != last_delta + 1:
        raise _invalid(f"the batch counts {count} records but its last offset is {last_delta}")
    if count * _MIN_RECORD > size - HEADER_SIZE:
        # A few bytes must not use up a billion offsets.
        if not attributes & CODEC_MASK:
            raise _invalid(f"the batch counts {count} records but has no room for them")
        if count * _MIN_RECORD > max_decompressed:
            raise _invalid(
                f"the batch counts {count} records, which cannot fit into "
                f"max.decompressed.bytes={max_decompressed}; send smaller batches"
            )
    if attributes & CONTROL:
        raise _invalid("clients may not write control batches")
    if attributes & LOG_APPEND_TIME:
        message = "the producer set LogAppendTime; only the broker may"
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, message)
    if producer_id >= 0 and sequence < 0:
        raise _invalid(f"producer id {producer_id} without a sequence number")
    return header


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, message)


def place(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log; the CRC does not cover these two fields."""
    _PLACE.pack_into(batch, 0, base_offset, len(batch) - LENGTH_OVERHEAD, leader_epoch)


def stamp_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Turn a batch into a LogAppendTime batch.  Readers then use the max timestamp
    for every record, so the records need no change; the CRC does."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, 21)
    _ATTRIBUTES.pack_into(batch, 21, attributes | LOG_APPEND_TIME)
    set_max_timestamp(batch, now_ms)


def set_max_timestamp(batch: bytearray | memoryview, timestamp: int) -> None:
    """Correct the max timestamp that a producer has set, and the CRC."""
    _MAX_TIMESTAMP.pack_into(batch, 35, timestamp)
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[21:]))


def is_valid(batch: Buffer) -> bool:
    """Does this whole batch match its own length, magic and CRC?  For recovery."""
    if len(batch) < HEADER_SIZE:
        return False
    header = BatchHeader(*HEADER.unpack_from(batch, 0))
    return (
        header.magic == MAGIC
        and header.size == len(batch)
        and header.last_offset_delta >= 0
        and header.base_offset >= 0
        and crc32c(memoryview(batch)[21:]) == header.crc
    )
