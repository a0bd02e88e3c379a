"""The two loops over fetched bytes that are compiled: headers of batches, and records.

``scan`` walks the 61-byte headers of a whole fetch answer into a table; ``fill`` walks the
records of many batches and copies what is wanted straight into the buffers of Arrow columns.
Both trust nothing: every number is checked against what is left before it is used, and what
does not fit is an answer, never a read or a write past an end.

``fill`` can stop after any record (the columns are full) and go on in the next call: where it
is stands in ``state``.  Numbers in here are int64 throughout: numba makes floats of a mix of
signed and unsigned ones.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np
from numba import types

from tidelog.pipeline.compiling import (
    CRC_IN_HARDWARE,
    address_of,
    big_endian,
    byte_at,
    compiled,
    copy_bytes,
    crc32c,
    int32_at,
    varint_at,
)
from tidelog.wire.batch import CODEC_MASK, CONTROL, LOG_APPEND_TIME

# A row of the table of batches.
POSITION, SIZE, BASE, LAST, ATTRIBUTES, TIMESTAMP, COUNT, PRODUCER, CRC = range(9)
SKIP, DATA, DATA_END, WORK = range(9, 13)  # is no record wanted; where they are; see below
TABLE_WIDTH = 13

# What a batch needs before its records can be taken.
CHECK_CRC, DECOMPRESS, WRONG_CRC = 1, 2, 4

# How a scan ended.
COMPLETE, BROKEN_HEADER, OLD_MAGIC, PAST_END = range(4)

# The state of ``fill``: where it is ...
BATCH, AT, RECORD, DELTA, FLOOR = range(5)
# ... how much is in the columns ...
ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, NAME_BYTES, CONTENT_BYTES = range(5, 11)
# ... how much of it is null, and whether header names need a closer look ...
NULL_KEYS, NULL_VALUES, NULL_HEADERS, NULL_CONTENTS, OTHER_THAN_ASCII = range(11, 16)
# ... what the record needs that did not fit, and what is wrong with one that is damaged.
NEED_KEY, NEED_VALUE, NEED_HEADERS, NEED_NAMES, NEED_CONTENTS, REASON = range(16, 22)
STATE_SIZE = 22

# How a call of ``fill`` ended.
FINISHED, FULL, DAMAGED = range(3)

# What may be wrong with a record.
REASONS = (
    "",
    "a record is longer than its batch",
    "a number inside a record is not complete",
    "a field is longer than its record",
    "a record does not end where its length says",
    "the offsets of its records are not in order",
    "it holds more bytes than its records take",
)
_TOO_LONG, _BAD_NUMBER, _BAD_FIELD, _BAD_END, _BAD_ORDER, _BAD_REST = range(1, 7)

# Which columns are wanted.
WANT_KEY, WANT_VALUE, WANT_OFFSET, WANT_TIMESTAMP, WANT_TYPE, WANT_HEADERS = (
    1, 2, 4, 8, 16, 32
)  # fmt: skip

_HEADER_SIZE, _MIN_LENGTH, _OVERHEAD, _MAGIC_AT = 61, 49, 12, 16
_CRC_AT, _CRC_START = 17, 21
# Up to here the CRC is checked while the headers are walked: calling the library for a batch of
# few records would take longer than all else that is done with it.  Large ones it does quicker.
_SMALL = 16 * 1024
_LARGEST = np.int64(2**63 - 1)
_LARGEST_MS = np.int64((2**63 - 1) // 1000)
_LARGEST_OFFSET = np.int64(2**31 - 1)  # what an offset inside an Arrow column can be


# -- the two loops --------------------------------------------------------------

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_BYTES = types.Array(types.uint8, 1, "C")
_OUT_INT32 = types.Array(types.int32, 1, "C")
_OUT_INT64 = types.Array(types.int64, 1, "C")
_TABLE = types.Array(types.int64, 2, "C")


@compiled(types.UniTuple(types.int64, 3)(_BYTES, types.int64, types.int64, _TABLE))
def scan(raw, start, end, table):
    """The batches of a fetch answer: how many, how the scan ended and where.

    A batch that is not complete ends it too: it comes again with the next fetch.
    """
    first = address_of(raw)
    size = np.int64(raw.shape[0])
    count = np.int64(0)
    at = np.int64(0)
    while size - at > _MAGIC_AT and count < table.shape[0]:
        if raw[at + _MAGIC_AT] != 2:
            return count, np.int64(OLD_MAGIC if raw[at + _MAGIC_AT] < 2 else BROKEN_HEADER), at
        length = int32_at(first + at + 8)
        if length < _MIN_LENGTH:
            return count, np.int64(BROKEN_HEADER), at
        base = big_endian(first + at, 8)
        if base >= end:
            return count, np.int64(PAST_END), at
        if size - at < length + _OVERHEAD:
            break
        last_delta = int32_at(first + at + 23)
        records = int32_at(first + at + 57)
        attributes = big_endian(first + at + 21, 2)
        if base < 0 or last_delta < 0 or base > _LARGEST - last_delta or records < 0:
            return count, np.int64(BROKEN_HEADER), at
        if count > 0 and base <= table[count - 1, BASE]:
            return count, np.int64(BROKEN_HEADER), at
        row = table[count]
        row[POSITION] = at
        row[SIZE] = length + _OVERHEAD
        row[BASE] = base
        row[LAST] = base + last_delta
        row[ATTRIBUTES] = attributes
        row[TIMESTAMP] = big_endian(first + at + (35 if attributes & LOG_APPEND_TIME else 27), 8)
        row[COUNT] = records
        row[PRODUCER] = big_endian(first + at + 43, 8)
        row[CRC] = big_endian(first + at + _CRC_AT, 4)
        row[SKIP] = 1 if attributes & CONTROL or row[LAST] < start else 0
        row[DATA] = at + _HEADER_SIZE
        row[DATA_END] = at + length + _OVERHEAD
        if CRC_IN_HARDWARE and row[SIZE] <= _SMALL:
            found = crc32c(first + at + _CRC_START, first + row[DATA_END])
            work = np.int64(0 if found == row[CRC] else WRONG_CRC)
        else:
            work = np.int64(CHECK_CRC)
        if row[SKIP] == 0 and attributes & CODEC_MASK:
            work |= DECOMPRESS
        row[WORK] = work
        at += length + _OVERHEAD
        count += 1
    return count, np.int64(COMPLETE), at


@compiled(
    types.int64(
        _BYTES, _TABLE, types.int64, types.int64, types.int64, types.int64, types.int64,
        types.int64, _OUT_INT64,
        _OUT_INT32, _OUT_BYTES, _OUT_BYTES,
        _OUT_INT32, _OUT_BYTES, _OUT_BYTES,
        _OUT_INT64, _OUT_INT64, _OUT_INT32,
        _OUT_INT32, _OUT_BYTES,
        _OUT_INT32, _OUT_BYTES,
        _OUT_INT32, _OUT_BYTES, _OUT_BYTES,
    )
)  # fmt: skip
def fill(
    source, table, stop, end, wanted, row_limit, row_width, target, state,
    key_offsets, keys, key_bits,
    value_offsets, values, value_bits,
    offsets, timestamps, timestamp_types,
    header_offsets, header_bits,
    name_offsets, names,
    content_offsets, contents, content_bits,
):  # fmt: skip
    """Records into columns, from ``state[BATCH]`` on up to the batch ``stop``.

    Offsets from ``state[FLOOR]`` up to ``end`` are taken.  ``target`` bytes are enough.
    """
    first = address_of(source)
    keys_at = address_of(keys)
    values_at = address_of(values)
    contents_at = address_of(contents)
    want_key = wanted & WANT_KEY != 0
    want_value = wanted & WANT_VALUE != 0
    want_offset = wanted & WANT_OFFSET != 0
    want_timestamp = wanted & WANT_TIMESTAMP != 0
    want_type = wanted & WANT_TYPE != 0
    want_headers = wanted & WANT_HEADERS != 0
    rows = state[ROWS]
    key_bytes = state[KEY_BYTES]
    value_bytes = state[VALUE_BYTES]
    other_bytes = state[NAME_BYTES] + state[CONTENT_BYTES] + 12 * state[HEADERS]
    floor = state[FLOOR]
    key_room = min(np.int64(keys.shape[0]), _LARGEST_OFFSET)
    value_room = min(np.int64(values.shape[0]), _LARGEST_OFFSET)
    result = np.int64(FINISHED)
    batch = state[BATCH]
    at = first + state[AT] if state[AT] >= 0 else np.int64(-1)
    record = state[RECORD]
    delta = state[DELTA]
    while batch < stop:
        if at < 0:  # a new batch
            at = first + table[batch, DATA]
            record = np.int64(0)
            delta = np.int64(-1)
        if table[batch, SKIP] != 0:
            floor = max(floor, table[batch, LAST] + 1)
            batch += 1
            at = np.int64(-1)
            continue
        limit = first + table[batch, DATA_END]
        base = table[batch, BASE]
        last_delta = table[batch, LAST] - base
        count = table[batch, COUNT]
        base_timestamp = table[batch, TIMESTAMP]
        append_time = table[batch, ATTRIBUTES] & LOG_APPEND_TIME != 0
        reason = 0
        while record < count:
            # -- look at the whole record before anything is written
            length, here = varint_at(at, limit)
            if here < 0:
                reason = _BAD_NUMBER
                break
            if length < 0 or length > limit - here:
                reason = _TOO_LONG
                break
            close = here + length
            timestamp_delta, here = varint_at(here + 1, close)
            if here < 0:
                reason = _BAD_NUMBER
                break
            new_delta, here = varint_at(here, close)
            if here < 0:
                reason = _BAD_NUMBER
                break
            key_length, here = varint_at(here, close)
            if here < 0:
                reason = _BAD_NUMBER
                break
            key_at = here
            if key_length > 0:
                if key_length > close - here:
                    reason = _BAD_FIELD
                    break
                here += key_length
            value_length, here = varint_at(here, close)
            if here < 0:
                reason = _BAD_NUMBER
                break
            value_at = here
            if value_length > 0:
                if value_length > close - here:
                    reason = _BAD_FIELD
                    break
                here += value_length
            header_count, here = varint_at(here, close)
            if here < 0:
                reason = _BAD_NUMBER
                break
            headers_at = here
            name_bytes = np.int64(0)
            content_bytes = np.int64(0)
            if header_count != 0:
                if header_count < 0 or header_count > close - here:
                    reason = _BAD_FIELD
                    break
                for _ in range(header_count):
                    name_length, here = varint_at(here, close)
                    if here < 0 or name_length < 0 or name_length > close - here:
                        reason = _BAD_FIELD
                        break
                    here += name_length
                    name_bytes += name_length
                    content_length, here = varint_at(here, close)
                    if here < 0 or content_length > close - here:
                        reason = _BAD_FIELD
                        break
                    if content_length > 0:
                        here += content_length
                        content_bytes += content_length
                if reason != 0:
                    break
            if here != close:
                reason = _BAD_END
                break
            if new_delta <= delta or new_delta > last_delta:
                reason = _BAD_ORDER
                break
            offset = base + new_delta
            if offset < floor:  # before the range, or seen already
                delta = new_delta
                at = close
                record += 1
                continue
            if offset >= end:
                batch = stop
                break

            # -- is there room for it?
            if (
                rows >= row_limit
                or (want_key and key_length > key_room - key_bytes)
                or (want_value and value_length > value_room - value_bytes)
                or rows * row_width + key_bytes + value_bytes + other_bytes >= target
                or (
                    want_headers
                    and (
                        header_count > content_offsets.shape[0] - 1 - state[HEADERS]
                        or name_bytes > names.shape[0] - state[NAME_BYTES]
                        or content_bytes > contents.shape[0] - state[CONTENT_BYTES]
                    )
                )
            ):
                state[NEED_KEY] = max(key_length, np.int64(0))
                state[NEED_VALUE] = max(value_length, np.int64(0))
                state[NEED_HEADERS] = header_count
                state[NEED_NAMES] = name_bytes
                state[NEED_CONTENTS] = content_bytes
                result = np.int64(FULL)
                break

            # -- write it
            if want_key:
                if key_length > 0:
                    copy_bytes(keys_at + key_bytes, key_at, key_length)
                    key_bytes += key_length
                elif key_length < 0:
                    key_bits[rows >> 3] &= ~(np.uint8(1) << np.uint8(rows & 7))
                    state[NULL_KEYS] += 1
                key_offsets[rows + 1] = np.int32(key_bytes)
            if want_value:
                if value_length > 0:
                    copy_bytes(values_at + value_bytes, value_at, value_length)
                    value_bytes += value_length
                elif value_length < 0:
                    value_bits[rows >> 3] &= ~(np.uint8(1) << np.uint8(rows & 7))
                    state[NULL_VALUES] += 1
                value_offsets[rows + 1] = np.int32(value_bytes)
            if want_offset:
                offsets[rows] = offset
            if want_timestamp:
                milliseconds = base_timestamp if append_time else base_timestamp + timestamp_delta
                # What does not fit into microseconds becomes the nearest that does.
                milliseconds = min(max(milliseconds, -_LARGEST_MS), _LARGEST_MS)
                timestamps[rows] = milliseconds * 1000
            if want_type:
                timestamp_types[rows] = np.int32(1 if append_time else 0)
            if want_headers:
                if header_count == 0:
                    header_bits[rows >> 3] &= ~(np.uint8(1) << np.uint8(rows & 7))
                    state[NULL_HEADERS] += 1
                here = headers_at
                for _ in range(header_count):
                    header = state[HEADERS]
                    name_length, here = varint_at(here, close)
                    name_at = state[NAME_BYTES]
                    for i in range(name_length):
                        byte = byte_at(here + i)
                        names[name_at + i] = np.uint8(byte)
                        if byte >= 128:
                            state[OTHER_THAN_ASCII] = 1
                    here += name_length
                    state[NAME_BYTES] = name_at + name_length
                    name_offsets[header + 1] = np.int32(state[NAME_BYTES])
                    content_length, here = varint_at(here, close)
                    if content_length > 0:
                        copy_bytes(contents_at + state[CONTENT_BYTES], here, content_length)
                        here += content_length
                        state[CONTENT_BYTES] += content_length
                    elif content_length < 0:
                        content_bits[header >> 3] &= ~(np.uint8(1) << np.uint8(header & 7))
                        state[NULL_CONTENTS] += 1
                    content_offsets[header + 1] = np.int32(state[CONTENT_BYTES])
                    state[HEADERS] = header + 1
                header_offsets[rows + 1] = np.int32(state[HEADERS])
                other_bytes += name_bytes + content_bytes + 12 * header_count
            rows += 1
            floor = offset + 1
            delta = new_delta
            at = close
            record += 1
        if result != FINISHED or batch == stop:
            break
        if reason == 0 and at != limit:
            reason = _BAD_REST
        if reason != 0:
            state[REASON] = reason
            result = np.int64(DAMAGED)
            break
        floor = max(floor, table[batch, LAST] + 1)
        batch += 1
        at = np.int64(-1)
    state[BATCH] = batch
    state[AT] = at - first if at >= 0 else np.int64(-1)
    state[RECORD] = record
    state[DELTA] = delta
    state[FLOOR] = floor
    state[ROWS] = rows
    state[KEY_BYTES] = key_bytes
    state[VALUE_BYTES] = value_bytes
    return result
