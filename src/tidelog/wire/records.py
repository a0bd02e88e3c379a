"""What is inside a batch: records, for the parts that must look.

The broker looks only when a topic asks for it (recompression, compacted topics, time
windows); the console tools, ``log dump`` and the tests look always.

Record: varint length, int8 attributes, varlong timestamp delta, varint offset delta,
varint-prefixed key and value (-1 is null), varint header count, headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from tidelog.wire import batch as batches
from tidelog.wire.batch import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader
from tidelog.wire.compression import READ_LIMIT, Codec, codec_of, compress, decompress
from tidelog.wire.primitives import Buffer, ProtocolError, read_varint, varint

Headers = Sequence[tuple[str, bytes | None]]
_INT64 = 1 << 63
_PAST_THE_END = "a record runs past the end of its batch"


class Record(NamedTuple):
    """One record as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_batch(
    records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = batches.NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = batches.NO_SEQUENCE,
    leader_epoch: int = 0,
    attributes: int = 0,
) -> bytes:
    """A batch from ``(timestamp, key, value, headers)`` rows."""
    rows = list(records)
    base_timestamp = rows[0][0] if rows else 0
    body = bytearray()
    for delta, (timestamp, key, value, headers) in enumerate(rows):
        record = _encode_record(delta, timestamp - base_timestamp, key, value, headers)
        body += varint(len(record))
        body += record
    return seal(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=batches.MAGIC,
            crc=0,
            attributes=attributes | codec,
            last_offset_delta=max(0, len(rows) - 1),
            base_timestamp=base_timestamp,
            max_timestamp=max((row[0] for row in rows), default=-1),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(rows),
        ),
        compress(codec, body),
    )


def _encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> bytearray:
    record = bytearray(b"\x00")
    record += varint(timestamp_delta)
    record += varint(offset_delta)
    for part in (key, value):
        _encode_bytes(record, part)
    record += varint(len(headers))
    for name, content in headers:
        _encode_bytes(record, name.encode())
        _encode_bytes(record, content)
    return record


def _encode_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += varint(-1)
        return
    out += varint(len(value))
    out += value


def seal(header: BatchHeader, body: bytes) -> bytes:
    """Header and body as one batch with the right length and CRC."""
    length = HEADER_SIZE + len(body) - LENGTH_OVERHEAD
    out = bytearray(HEADER.pack(*header._replace(length=length)))
    out += body
    crc = crc32c(memoryview(out)[21:])
    out[17:21] = crc.to_bytes(4, "big")
    return bytes(out)


def walk_records(data: bytes, count: int) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """Where the fields of each record are: its end, timestamp delta, offset delta, the positions
    and lengths of key and value (-1: null); the headers follow the value.

    Nearly every number has one or two bytes, so these cases are written out.
    """
    pos, size = 0, len(data)
    try:
        for _ in range(count):
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                length = (byte >> 1) ^ -(byte & 1)
            elif (second := data[pos + 1]) < 0x80:
                pos += 2
                number = byte & 0x7F | second << 7
                length = (number >> 1) ^ -(number & 1)
            else:
                length, pos = read_varint(data, pos)
            end = pos + length
            if length < 0 or end > size:
                raise ProtocolError("a record is longer than its batch")
            byte = data[pos + 1]  # after the attributes
            if byte < 0x80:
                pos += 2
                timestamp_delta = (byte >> 1) ^ -(byte & 1)
            elif (second := data[pos + 2]) < 0x80:
                pos += 3
                number = byte & 0x7F | second << 7
                timestamp_delta = (number >> 1) ^ -(number & 1)
            else:
                timestamp_delta, pos = read_varint(data, pos + 1)
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                offset_delta = (byte >> 1) ^ -(byte & 1)
            elif (second := data[pos + 1]) < 0x80:
                pos += 2
                number = byte & 0x7F | second << 7
                offset_delta = (number >> 1) ^ -(number & 1)
            else:
                offset_delta, pos = read_varint(data, pos)
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                key_length = (byte >> 1) ^ -(byte & 1)
            else:
                key_length, pos = read_varint(data, pos)
            key = pos
            if key_length > 0:
                pos += key_length
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                length = (byte >> 1) ^ -(byte & 1)
            elif (second := data[pos + 1]) < 0x80:
                pos += 2
                number = byte & 0x7F | second << 7
                length = (number >> 1) ^ -(number & 1)
            else:
                length, pos = read_varint(data, pos)
            yield end, timestamp_delta, offset_delta, key, key_length, pos, length
            pos = end
    except IndexError as error:
        raise ProtocolError(_PAST_THE_END) from error


def decode_batch(batch: Buffer, limit: int = READ_LIMIT) -> Iterator[Record]:
    """The records of one whole batch, in order; decompressed they have at most ``limit`` bytes."""
    header, data = _open(batch, limit)
    append_time = header.attributes & batches.LOG_APPEND_TIME
    timestamp = header.max_timestamp
    for end, delta, offset_delta, key_at, key_length, value_at, value_length in walk_records(
        data, header.record_count
    ):
        if not append_time:
            timestamp = wrapped(header.base_timestamp + delta)
        key = data[key_at : key_at + key_length] if key_length >= 0 else None
        pos = value_at
        value = None
        if value_length >= 0:
            pos += value_length
            value = data[value_at:pos]
        headers: Headers = ()
        try:
            if data[pos]:
                headers, pos = _decode_headers(data, pos)
            else:
                pos += 1
        except IndexError as error:
            raise ProtocolError(_PAST_THE_END) from error
        if pos != end:
            raise ProtocolError("a record does not end where its length says")
        yield Record(header.base_offset + offset_delta, timestamp, key, value, headers)


def _times(batch: Buffer, limit: int) -> Iterator[tuple[int, int]]:
    """Time and offset of each record.

    A record's length says where the next one begins: keys, values and headers, of which there may
    be millions, are not looked at.
    """
    header, data = _open(batch, limit)
    append_time = header.attributes & batches.LOG_APPEND_TIME
    timestamp, size, pos = header.max_timestamp, len(data), 0
    for _ in range(header.record_count):
        length, pos = read_varint(data, pos)
        end = pos + length
        if length < 0 or end > size:
            raise ProtocolError("a record is longer than its batch")
        delta, pos = read_varint(data, pos + 1)
        if not append_time:
            timestamp = wrapped(header.base_timestamp + delta)
        offset_delta, pos = read_varint(data, pos)
        if pos > end:
            raise ProtocolError("a record does not end where its length says")
        yield timestamp, header.base_offset + offset_delta
        pos = end


def wrapped(timestamp: int) -> int:
    """As in Java, where a long wraps."""
    if -_INT64 <= timestamp < _INT64:
        return timestamp
    return (timestamp + _INT64) % (2 * _INT64) - _INT64


def _open(batch: Buffer, limit: int) -> tuple[BatchHeader, bytes]:
    """The header of a batch, and its records decompressed."""
    header = _whole_header(batch)
    body = memoryview(batch)[HEADER_SIZE : header.size]
    return header, bytes(decompress(codec_of(header.attributes), body, limit))


def _whole_header(batch: Buffer) -> BatchHeader:
    """The header of a batch that is all there."""
    if len(batch) < HEADER_SIZE:
        raise ProtocolError(f"a batch of {len(batch)} bytes has no complete header")
    header = batches.read_header(batch)
    if not HEADER_SIZE <= header.size <= len(batch):
        raise ProtocolError(f"a batch says it has {header.size} bytes but {len(batch)} are there")
    return header


def _decode_headers(data: bytes, pos: int) -> tuple[Headers, int]:
    count, pos = read_varint(data, pos)
    headers = []
    for _ in range(count):
        name, pos = _decode_bytes(data, pos)
        content, pos = _decode_bytes(data, pos)
        headers.append(((name or b"").decode("utf-8", "replace"), content))
    return tuple(headers), pos


def _decode_bytes(data: bytes, pos: int) -> tuple[bytes | None, int]:
    length, pos = read_varint(data, pos)
    if length < 0:
        return None, pos
    if length > len(data) - pos:
        raise ProtocolError("a field is longer than its record")
    return data[pos : pos + length], pos + length


def repack(header: BatchHeader, body: Buffer, codec: Codec, level: int | None = None) -> bytes:
    """A batch of the records in ``body``, which are not compressed, under another codec."""
    attributes = header.attributes & ~batches.CODEC_MASK | codec
    return seal(header._replace(attributes=attributes), compress(codec, body, level))


def renumber(body: bytes, count: int) -> bytearray:
    """The records of a batch, with offset deltas from 0 on whatever the producer wrote."""
    out, pos = bytearray(), 0
    for number in range(count):
        length, pos = read_varint(body, pos)
        end = pos + length
        _, at = read_varint(body, pos + 1)  # attributes, timestamp delta
        _, rest = read_varint(body, at)
        delta = varint(number)
        out += varint(at - pos + len(delta) + end - rest) + body[pos:at] + delta + body[rest:end]
        pos = end
    return out


def first_since(
    batch: Buffer, timestamp: int, offset: int, limit: int = READ_LIMIT
) -> tuple[int, int] | None:
    """Time and offset of the first record at or after both; None if the batch has none."""
    for found in _times(batch, limit):
        if found[0] >= timestamp and found[1] >= offset:
            return found
    return None


def newest_since(batch: Buffer, offset: int, limit: int = READ_LIMIT) -> tuple[int, int] | None:
    """Time and offset of the first of the newest records at or after an offset."""
    left = (found for found in _times(batch, limit) if found[1] >= offset)
    return max(left, key=lambda found: found[0], default=None)


def split_batches(data: Buffer) -> Iterator[memoryview]:
    """The complete batches of a fetched range; a cut tail is left out."""
    view = memoryview(data)
    pos = 0
    while len(view) - pos >= HEADER_SIZE:
        length = int.from_bytes(view[pos + 8 : pos + 12], "big")
        end = pos + length + LENGTH_OVERHEAD
        if end > len(view):
            return
        yield view[pos:end]
        pos = end
