"""The inner loops of compaction: which keys a batch has, and which of its records stay.

No I/O.  Records are never decoded into objects: a loop walks over the numbers of each
record, and what stays is copied as slices of the old batch.  See ``wire/records.py``
for the layout of a record; with its ``walk_records`` these loops take half as long again.

The offset map is a dict from key to the offset of its newest record.  Keys of up to
``SHORT_KEY`` bytes stand for themselves, longer ones for a digest of 16 bytes (Kafka
digests all of them), so the map's memory is bounded by the number of its keys.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from tidelog.wire.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
)
from tidelog.wire.compression import Codec, compress
from tidelog.wire.primitives import ProtocolError, read_varint, varint
from tidelog.wire.records import seal

SHORT_KEY = 40
# A key (at most 80 bytes as an object), its offset (32), its place in the dict (at most 90,
# while the dict grows), and later in a list (8).  tests/log/test_compaction_memory.py
# measures it.
BYTES_PER_KEY = 208

OffsetMap = dict[bytes, int]


class Selection(NamedTuple):
    """What stays of a batch: runs of adjacent records, as ranges of the data."""

    runs: list[tuple[int, int]]
    kept: int
    tombstones: int  # among those that are kept


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()


def add_keys(
    data: bytes, pos: int, end: int, header: BatchHeader, start: int, offsets: OffsetMap
) -> int:
    """Note the newest offset of every key in the records of ``data[pos:end]``.

    Records below the offset ``start`` are passed over.  Returns how many have no key.
    """
    base, count = header.base_offset, header.record_count
    if count < 0:
        raise ProtocolError("a batch counts less than no records")
    if count == header.last_offset_delta + 1 and base >= start:
        return _add_all_keys(data, pos, end, header, offsets)
    keyless = 0
    try:
        for _ in range(count):
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                after = pos + (byte >> 1)
            elif (second := data[pos + 1]) < 0x80:
                pos += 2
                after = pos + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, pos = read_varint(data, pos)
                after = pos + length
            pos += 1  # attributes
            while data[pos] >= 0x80:
                pos += 1  # timestamp delta
            byte = data[pos + 1]
            if byte < 0x80:
                pos += 2
                delta = byte >> 1
            elif (second := data[pos + 2]) < 0x80:
                pos += 3
                delta = (byte & 0x7F | second << 7) >> 1
            else:
                delta, pos = read_varint(data, pos + 1)
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, pos = read_varint(data, pos)
            if length >= 0 and base + delta >= start:
                key = data[pos : pos + length]
                if length > SHORT_KEY:
                    key = _digest(key)
                offsets[key] = base + delta
            elif length < 0:
                keyless += 1
            if pos >= after or pos + length > after or after > end:
                raise ProtocolError("a record does not end where its length says")
            pos = after
    except IndexError as error:
        raise ProtocolError("a record runs past the end of its batch") from error
    return keyless


def _add_all_keys(data: bytes, pos: int, end: int, header: BatchHeader, offsets: OffsetMap) -> int:
    """The same for a batch of which nothing is missing: a record's number is its offset."""
    base = header.base_offset
    keyless = 0
    try:
        for offset in range(base, base + header.record_count):
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                after = pos + (byte >> 1)
            elif (second := data[pos + 1]) < 0x80:
                pos += 2
                after = pos + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, pos = read_varint(data, pos)
                after = pos + length
            pos += 1  # attributes
            while data[pos] >= 0x80:
                pos += 1  # timestamp delta
            pos += 1
            while data[pos] >= 0x80:
                pos += 1  # offset delta
            byte = data[pos + 1]
            if byte < 0x80:
                pos += 2
                stop = pos + (byte >> 1)
            else:
                length, pos = read_varint(data, pos + 1)
                stop = pos + length
            if byte & 1:  # zig-zag for what is below zero
                keyless += 1
                stop = pos
            else:
                key = data[pos:stop]
                if stop - pos > SHORT_KEY:
                    key = _digest(key)
                offsets[key] = offset
            if not stop < after <= end:
                raise ProtocolError("a record does not end where its length says")
            pos = after
    except IndexError as error:
        raise ProtocolError("a record runs past the end of its batch") from error
    return keyless


def select(
    data: bytes,
    pos: int,
    end: int,
    header: BatchHeader,
    offsets: OffsetMap,
    end_offset: int,
    keep_tombstones: bool,
) -> Selection:
    """Choose the records of ``data[pos:end]`` that stay.

    A record stays if no newer one of its key is in the map, or if it lies at or past
    ``end_offset``, of which the map knows nothing.  A record without a key goes.
    """
    base = header.base_offset
    if header.record_count < 0:
        raise ProtocolError("a batch counts less than no records")
    newest = offsets.get
    runs: list[tuple[int, int]] = []
    kept = tombstones = 0
    run = -1  # where the present run of kept records starts
    try:
        for _ in range(header.record_count):
            start = pos
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                after = pos + (byte >> 1)
            elif (second := data[pos + 1]) < 0x80:
                pos += 2
                after = pos + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, pos = read_varint(data, pos)
                after = pos + length
            pos += 1  # attributes
            while data[pos] >= 0x80:
                pos += 1  # timestamp delta
            byte = data[pos + 1]
            if byte < 0x80:
                pos += 2
                offset = base + (byte >> 1)
            elif (second := data[pos + 2]) < 0x80:
                pos += 3
                offset = base + ((byte & 0x7F | second << 7) >> 1)
            else:
                delta, pos = read_varint(data, pos + 1)
                offset = base + delta
            byte = data[pos]
            if byte < 0x80:
                pos += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, pos = read_varint(data, pos)
            if length >= 0:
                key = data[pos : pos + length]
                if length > SHORT_KEY:
                    key = _digest(key)
                pos += length
                keep = newest(key, -1) <= offset
            else:
                keep = False
            if pos >= after or after > end:
                raise ProtocolError("a record does not end where its length says")
            no_value = data[pos] == 1  # zig-zag for -1
            if offset >= end_offset:
                keep = True
            elif keep and no_value:
                keep = keep_tombstones
            if keep:
                kept += 1
                tombstones += no_value
                if run < 0:
                    run = start
            elif run >= 0:
                runs.append((run, start))
                run = -1
            pos = after
    except IndexError as error:
        raise ProtocolError("a record runs past the end of its batch") from error
    if run >= 0:
        runs.append((run, pos))
    return Selection(runs, kept, tombstones)


def pick(
    data: bytes, pos: int, end: int, count: int, wanted: list[int], keep_tombstones: bool
) -> Selection:
    """Choose by number: those of the ``count`` records whose numbers are in ``wanted``.

    Quicker than :func:`select`, for a batch of which nothing is missing: a record's number
    is its offset, so there is no need to look into those that go.
    """
    runs: list[tuple[int, int]] = []
    kept = tombstones = 0
    run = -1
    numbers = iter(wanted)
    following = next(numbers)
    try:
        for number in range(count):
            start = pos
            byte = data[pos]
            if byte < 0x80:
                pos += 1 + (byte >> 1)
            elif (second := data[pos + 1]) < 0x80:
                pos += 2 + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, pos = read_varint(data, pos)
                pos += length
            if pos > end or pos <= start:
                raise ProtocolError("a record does not end where its length says")
            keep = number == following
            if keep:
                following = next(numbers, -1)
                if _has_no_value(data, start):
                    keep = keep_tombstones
                    tombstones += keep
            if keep:
                kept += 1
                if run < 0:
                    run = start
            elif run >= 0:
                runs.append((run, start))
                run = -1
    except IndexError as error:
        raise ProtocolError("a record runs past the end of its batch") from error
    if run >= 0:
        runs.append((run, pos))
    return Selection(runs, kept, tombstones)


def _has_no_value(data: bytes, pos: int) -> bool:
    """Is the record at ``pos`` a tombstone?"""
    while data[pos] >= 0x80:  # length
        pos += 1
    pos += 2  # its last byte, and the attributes
    while data[pos] >= 0x80:  # timestamp delta
        pos += 1
    pos += 1
    while data[pos] >= 0x80:  # offset delta
        pos += 1
    length, pos = read_varint(data, pos + 1)
    return data[pos + max(length, 0)] == 1  # zig-zag for -1


def rebuild(
    header: BatchHeader,
    data: bytes,
    selection: Selection,
    horizon: int | None = None,
    level: int | None = None,
) -> bytes:
    """A batch of what was selected, with the same offsets, sequences and codec.

    ``horizon`` sets the time from which on its tombstones may go: it takes the place of
    the base timestamp, so every record's own time is written anew.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    append_time = attributes & LOG_APPEND_TIME
    if horizon is None:
        body = b"".join([data[start:end] for start, end in selection.runs])
    else:
        shift = base_timestamp - horizon
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon
        body = _shift_times(data, selection.runs, shift)
    newest = header.max_timestamp
    if not append_time:
        newest = base_timestamp + _newest_delta(body, selection.kept)
    return seal(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=newest,
            record_count=selection.kept,
        ),
        compress(Codec(attributes & CODEC_MASK), body, level),
    )


def empty(header: BatchHeader) -> bytes:
    """What is left of a batch whose records are gone but whose sequence still counts."""
    kept = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return seal(header._replace(attributes=kept, base_timestamp=-1, record_count=0), b"")


def _shift_times(data: bytes, runs: list[tuple[int, int]], shift: int) -> bytes:
    """The records of all runs, each with ``shift`` added to its timestamp delta."""
    out: list[bytes] = []
    for start, end in runs:
        pos = start
        while pos < end:
            length, pos = read_varint(data, pos)
            after = pos + length
            delta, rest = read_varint(data, pos + 1)
            time = varint(delta + shift)
            out += (
                varint(1 + len(time) + after - rest),
                data[pos : pos + 1],
                time,
                data[rest:after],
            )
            pos = after
    return b"".join(out)


def _newest_delta(body: bytes, count: int) -> int:
    """The largest timestamp delta of the records."""
    newest, pos = None, 0
    for _ in range(count):
        byte = body[pos]
        if byte < 0x80:
            pos += 1
            after = pos + (byte >> 1)
        elif (second := body[pos + 1]) < 0x80:
            pos += 2
            after = pos + ((byte & 0x7F | second << 7) >> 1)
        else:
            length, pos = read_varint(body, pos)
            after = pos + length
        byte = body[pos + 1]
        delta = (byte >> 1) ^ -(byte & 1) if byte < 0x80 else read_varint(body, pos + 1)[0]
        if newest is None or delta > newest:
            newest = delta
        pos = after
    return newest or 0
