"""Produce and Fetch by hand: the same bytes as the compiled messages, in plain tuples.

These two APIs carry the data.  A request becomes rows (tuples) that point into the
connection's buffer; a Fetch response becomes a list of chunks, small bytes and file
ranges, that are sent without being joined.  ``tests/wire/test_hot.py`` holds them
to the compiled messages, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidelog.wire.frame import skip_tags
from tidelog.wire.primitives import ProtocolError, read_uvarint, uvarint

_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i").unpack_from
_ACKS_TIMEOUT = struct.Struct(">hi").unpack_from
_PACK_I16 = struct.Struct(">h").pack
_PACK_I32 = struct.Struct(">i").pack
_FRAME = struct.Struct(">ii")

# A topic is named by its name, or from Produce 13 and Fetch 13 on by its id.
TopicRef = str | bytes
ProduceRows = list[tuple[TopicRef, list[tuple[int, memoryview | None]]]]

# Topics and partitions in one Produce.  A hundred megabytes of empty ones would keep the
# only thread busy for a minute; a mebibyte has room for 17,000 batches.
MAX_PRODUCE_ROWS = 50_000


def decode_produce(
    buf: memoryview, pos: int, version: int
) -> tuple[str | None, int, int, ProduceRows]:
    """Transactional id, acks, timeout, and ``(topic, [(partition, records)])`` rows."""
    try:
        if version >= 9:
            return _decode_produce_flexible(buf, pos, version)
        return _decode_produce_plain(buf, pos, version)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"ProduceRequest v{version} is cut short") from error
    except UnicodeDecodeError as error:
        raise ProtocolError(f"ProduceRequest v{version}: a name is not UTF-8") from error


def _decode_produce_plain(
    buf: memoryview, pos: int, version: int
) -> tuple[str | None, int, int, ProduceRows]:
    end = len(buf)
    transactional_id = None
    if version >= 3:
        (n,) = _I16(buf, pos)
        pos += 2
        if n >= 0:
            transactional_id = str(buf[pos : pos + n], "utf-8")
            pos += n
    acks, timeout_ms = _ACKS_TIMEOUT(buf, pos)
    (topic_count,) = _I32(buf, pos + 6)
    pos += 10
    _check_count(topic_count, end - pos)
    topics: ProduceRows = []
    rows = topic_count
    for _ in range(topic_count):
        (n,) = _I16(buf, pos)
        pos += 2
        if n < 0:
            raise ProtocolError("ProduceRequest: a topic has no name")
        topic = str(buf[pos : pos + n], "utf-8")
        (partition_count,) = _I32(buf, pos + n)
        pos += n + 4
        _check_count(partition_count, end - pos)
        rows += partition_count
        _check_rows(rows)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            (index,) = _I32(buf, pos)
            (n,) = _I32(buf, pos + 4)
            pos += 8
            if n < 0:
                partitions.append((index, None))
                continue
            if n > end - pos:
                raise ProtocolError("ProduceRequest: records are longer than the request")
            partitions.append((index, buf[pos : pos + n]))
            pos += n
        topics.append((topic, partitions))
    return transactional_id, acks, timeout_ms, topics


_ONE_TOPIC = struct.Struct(">bhibB").unpack_from  # no transaction, acks, timeout, 1 topic, name
_ONE_TOPIC_ID = struct.Struct(">bhib16s").unpack_from
_ONE_PARTITION = struct.Struct(">bi").unpack_from


def decode_one_produce(
    buf: memoryview, pos: int, version: int
) -> tuple[int, int, TopicRef, int, memoryview] | None:
    """What nearly every small request is: one topic, one partition.  Straight through.

    Acks, timeout, topic, partition and records; None if the request is not like that, or
    not well-formed: :func:`decode_produce` says which.
    """
    end = len(buf)
    if version < 9 or end - pos < 32:
        return None
    topic: TopicRef
    if version < 13:
        transactional, acks, timeout_ms, topic_count, n = _ONE_TOPIC(buf, pos)
        at = pos + 8 + n
        if not 1 < n < 128 or at + 5 >= end:
            return None
        try:
            topic = str(buf[pos + 9 : at], "utf-8")
        except UnicodeDecodeError:
            return None
    else:
        transactional, acks, timeout_ms, topic_count, topic = _ONE_TOPIC_ID(buf, pos)
        at = pos + 24
    partition_count, index = _ONE_PARTITION(buf, at)
    if transactional != 0 or topic_count != 2 or partition_count != 2:
        return None
    at += 5
    size = shift = 0
    while at < end and shift < 35:
        byte = buf[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    stop = at + size - 1
    if size <= 0 or stop + 3 != end or buf[stop] or buf[stop + 1] or buf[stop + 2]:
        return None  # null records, tags, or more than this
    return acks, timeout_ms, topic, index, buf[at:stop]


def _decode_produce_flexible(
    buf: memoryview, pos: int, version: int
) -> tuple[str | None, int, int, ProduceRows]:
    end = len(buf)
    n, pos = _length(buf, pos)
    transactional_id = None
    if n >= 0:
        _check_string(n)
        transactional_id = str(buf[pos : pos + n], "utf-8")
        pos += n
    acks, timeout_ms = _ACKS_TIMEOUT(buf, pos)
    topic_count, pos = _length(buf, pos + 6)
    _check_count(topic_count, end - pos)
    topics: ProduceRows = []
    topic: TopicRef
    rows = topic_count
    for _ in range(topic_count):
        if version >= 13:
            topic = bytes(buf[pos : pos + 16])
            pos += 16
        else:
            n, pos = _length(buf, pos)
            if n < 0:
                raise ProtocolError("ProduceRequest: a topic has no name")
            _check_string(n)
            topic = str(buf[pos : pos + n], "utf-8")
            pos += n
        partition_count, pos = _length(buf, pos)
        _check_count(partition_count, end - pos)
        rows += partition_count
        _check_rows(rows)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            (index,) = _I32(buf, pos)
            n, pos = _length(buf, pos + 4)
            if n < 0:
                partitions.append((index, None))
            else:
                if n > end - pos:
                    raise ProtocolError("ProduceRequest: records are longer than the request")
                partitions.append((index, buf[pos : pos + n]))
                pos += n
            pos = skip_tags(buf, pos)
        pos = skip_tags(buf, pos)
        topics.append((topic, partitions))
    return transactional_id, acks, timeout_ms, topics


class Produced(NamedTuple):
    """The answer for one partition."""

    partition: int
    error: int
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()  # the number of a record, and what is wrong


# The answer to decode_one_produce without an error message: two packs around the name.
_ONE_PRODUCED = struct.Struct(">iibbB").pack
_ONE_PRODUCED_TAIL = struct.Struct(">bihqqqbbbbib").pack

_PRODUCED_V0 = struct.Struct(">ihq").pack
_PRODUCED_V2 = struct.Struct(">ihqq").pack
_PRODUCED_V5 = struct.Struct(">ihqqq").pack


def encode_one_produced(correlation_id: int, topic: TopicRef, result: Produced) -> bytes:
    """A whole ProduceResponse frame from version 9 on, for one partition."""
    index, error, base_offset, append_time, log_start, message, _ = result
    if type(topic) is bytes or message is not None or len(name := topic.encode()) > 126:  # type: ignore[union-attr]
        version = 13 if type(topic) is bytes else 9
        return bytes(encode_produce_response(version, correlation_id, [(topic, [result])]))
    size = len(name)
    return (
        _ONE_PRODUCED(size + 47, correlation_id, 0, 2, size + 1)
        + name
        + _ONE_PRODUCED_TAIL(2, index, error, base_offset, append_time, log_start, 1, 0, 0, 0, 0, 0)
    )


def encode_produce_response(
    version: int, correlation_id: int, topics: Sequence[tuple[TopicRef, Sequence[Produced]]]
) -> bytearray | bytes:
    """A whole ProduceResponse frame."""
    flexible = version >= 9
    out = bytearray(8)
    if flexible:
        out.append(0)
        out += uvarint(len(topics) + 1)
    else:
        out += _PACK_I32(len(topics))
    for topic, partitions in topics:
        _write_topic(out, topic, flexible)
        if flexible:
            out += uvarint(len(partitions) + 1)
        else:
            out += _PACK_I32(len(partitions))
        for index, error, base_offset, append_time, log_start, message, errors in partitions:
            if version >= 5:
                out += _PRODUCED_V5(index, error, base_offset, append_time, log_start)
            elif version >= 2:
                out += _PRODUCED_V2(index, error, base_offset, append_time)
            else:
                out += _PRODUCED_V0(index, error, base_offset)
            if flexible:
                if errors:
                    out += uvarint(len(errors) + 1)
                    for number, reason in errors:
                        out += _PACK_I32(number)
                        _write_compact_string(out, reason)
                        out.append(0)
                else:
                    out.append(1)
                _write_compact_string(out, message)
                out.append(0)
            elif version == 8:
                out += _PACK_I32(len(errors))
                for number, reason in errors:
                    out += _PACK_I32(number)
                    _write_string(out, reason)
                _write_string(out, message)
        if flexible:
            out.append(0)
    if version >= 1:
        out += b"\0\0\0\0"  # throttle time
    if flexible:
        out.append(0)
    _FRAME.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


class FetchedRange(Protocol):
    """Records of one partition, still in a file (or bytes in tests)."""

    def __len__(self) -> int: ...


class FetchRow(NamedTuple):
    """What a request says about one partition."""

    topic: TopicRef
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    max_bytes: int
    log_start_offset: int = -1  # of a follower's log


class FetchHead(NamedTuple):
    """A Fetch request."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    rows: list[FetchRow]
    forgotten: list[tuple[TopicRef, int]]
    rack: str
    replica_epoch: int = -1  # of the follower that asks: its broker epoch


_FETCH_V15 = struct.Struct(">iiibii")  # wait, min, max, isolation, session, epoch
_FETCH_V7 = struct.Struct(">iiiibii")
_FETCH_V4 = struct.Struct(">iiiib")
_REPLICA_STATE = struct.Struct(">iq")


def _row_layout(version: int) -> struct.Struct:
    code = ">i" + ("i" if version >= 9 else "") + "q" + ("i" if version >= 12 else "")
    return struct.Struct(code + ("q" if version >= 5 else "") + "i")


_ROWS = {version: _row_layout(version) for version in range(4, 19)}


def decode_fetch(buf: memoryview, pos: int, version: int) -> FetchHead:
    """A Fetch request as tuples."""
    try:
        return _decode_fetch(buf, pos, version)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"FetchRequest v{version} is cut short") from error
    except UnicodeDecodeError as error:
        raise ProtocolError(f"FetchRequest v{version}: a name is not UTF-8") from error


def _decode_fetch(buf: memoryview, pos: int, version: int) -> FetchHead:
    flexible = version >= 12
    replica_id, replica_epoch, session_id, session_epoch = -1, -1, 0, -1
    if version >= 15:
        wait, least, most, isolation, session_id, session_epoch = _FETCH_V15.unpack_from(buf, pos)
        pos += _FETCH_V15.size
    elif version >= 7:
        replica_id, wait, least, most, isolation, session_id, session_epoch = _FETCH_V7.unpack_from(
            buf, pos
        )
        pos += _FETCH_V7.size
    else:
        replica_id, wait, least, most, isolation = _FETCH_V4.unpack_from(buf, pos)
        pos += _FETCH_V4.size

    rows: list[FetchRow] = []
    layout = _ROWS[version]
    unpack, row_size = layout.unpack_from, layout.size
    topic_count, pos = _count(buf, pos, flexible)
    for _ in range(topic_count):
        topic, pos = _read_topic(buf, pos, version)
        partition_count, pos = _count(buf, pos, flexible)
        for _ in range(partition_count):
            values = unpack(buf, pos)
            pos += row_size
            if version >= 12:
                partition, epoch, offset, last_epoch, log_start, max_bytes = values
                pos = skip_tags(buf, pos)
            elif version >= 9:
                partition, epoch, offset, log_start, max_bytes = values
                last_epoch = -1
            else:
                partition, offset, max_bytes = values[0], values[1], values[-1]
                epoch = last_epoch = -1
                log_start = values[2] if version >= 5 else -1
            row = (topic, partition, epoch, offset, last_epoch, max_bytes, log_start)
            rows.append(FetchRow(*row))
        if flexible:
            pos = skip_tags(buf, pos)

    forgotten: list[tuple[TopicRef, int]] = []
    rack = ""
    if version >= 7:
        topic_count, pos = _count(buf, pos, flexible)
        for _ in range(topic_count):
            topic, pos = _read_topic(buf, pos, version)
            partition_count, pos = _count(buf, pos, flexible)
            for _ in range(partition_count):
                forgotten.append((topic, _I32(buf, pos)[0]))
                pos += 4
            if flexible:
                pos = skip_tags(buf, pos)
    if version >= 11:
        rack, pos = _read_string(buf, pos, flexible)
    if flexible:
        replica_id, replica_epoch = _replica_in_tags(buf, pos, replica_id)
    return FetchHead(
        replica_id,
        wait,
        least,
        most,
        isolation,
        session_id,
        session_epoch,
        rows,
        forgotten,
        rack,
        replica_epoch,
    )


def _replica_in_tags(buf: memoryview, pos: int, replica_id: int) -> tuple[int, int]:
    """Tag 1 (from version 15 on) names the follower that asks, and its broker epoch."""
    replica_epoch = -1
    count, pos = read_uvarint(buf, pos)
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if size > len(buf) - pos:
            raise ProtocolError("FetchRequest: a tagged field is too long")
        if tag == 1:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(buf, pos)
        pos += size
    return replica_id, replica_epoch


class Fetched(NamedTuple):
    """The answer for one partition; ``tags`` is its encoded tag section."""

    partition: int
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FetchedRange | None = None
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_replica: int = -1
    tags: bytes = b"\0"


_DIVERGING = struct.Struct(">BBBiqB").pack  # one tag: number 0, 13 bytes: epoch, end, no tags


def diverging_tag(epoch: int, end_offset: int) -> bytes:
    """The tags of a partition whose log is not as the reader's from there on (KIP-595)."""
    return _DIVERGING(1, 0, 13, epoch, end_offset, 0)


_FETCHED_V4 = struct.Struct(">ihqq").pack
_FETCHED_V5 = struct.Struct(">ihqqq").pack
_ABORTED = struct.Struct(">qq").pack
_FETCH_TOP = struct.Struct(">ihi").pack


def encode_fetch_response(
    version: int,
    correlation_id: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[TopicRef, Sequence[Fetched]]],
) -> list[bytearray | FetchedRange]:
    """A whole FetchResponse frame as chunks; file ranges are not touched."""
    flexible = version >= 12
    out = bytearray(8)
    head = out
    chunks: list[bytearray | FetchedRange] = [out]
    ranges = 0
    if flexible:
        out.append(0)
    if version >= 7:
        out += _FETCH_TOP(0, error, session_id)
    else:
        out += b"\0\0\0\0"
    _write_count(out, len(topics), flexible)
    for topic, partitions in topics:
        _write_topic(out, topic, flexible)
        _write_count(out, len(partitions), flexible)
        for row in partitions:
            partition, code, high, stable, start, records, aborted, preferred, tags = row
            if version >= 5:
                out += _FETCHED_V5(partition, code, high, stable, start)
            else:
                out += _FETCHED_V4(partition, code, high, stable)
            if aborted is None:
                out += b"\0" if flexible else b"\xff\xff\xff\xff"
            else:
                _write_count(out, len(aborted), flexible)
                for producer_id, first_offset in aborted:
                    out += _ABORTED(producer_id, first_offset)
                    if flexible:
                        out.append(0)
            if version >= 11:
                out += _PACK_I32(preferred)
            size = 0 if records is None else len(records)
            if flexible:
                out += uvarint(size + 1)
            else:
                out += _PACK_I32(size)
            if size and records is not None:
                chunks.append(records)
                ranges += size
                out = bytearray()
                chunks.append(out)
            if flexible:
                out += tags
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    size = ranges - 4
    for chunk in chunks:
        if type(chunk) is bytearray:
            size += len(chunk)
    _FRAME.pack_into(head, 0, size, correlation_id)
    return chunks


# -- small pieces ---------------------------------------------------------------


def _length(buf: memoryview, pos: int) -> tuple[int, int]:
    """A compact length; -1 is null."""
    n = buf[pos]
    if n < 128:
        return n - 1, pos + 1
    n, pos = read_uvarint(buf, pos)
    return n - 1, pos


def _count(buf: memoryview, pos: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        n, pos = _length(buf, pos)
    else:
        (n,) = _I32(buf, pos)
        pos += 4
    _check_count(n, len(buf) - pos)
    return n, pos


def _check_rows(rows: int) -> None:
    if rows > MAX_PRODUCE_ROWS:
        raise ProtocolError(f"ProduceRequest names more than {MAX_PRODUCE_ROWS} partitions")


def _check_count(n: int, left: int) -> None:
    if n > left or n < 0:
        raise ProtocolError("an array is longer than the request, or null")


def _check_string(n: int) -> None:
    # As in Kafka: else a string could come in that older versions cannot send.
    if n > 32767:
        raise ProtocolError("a string is over 32767 bytes")


def _read_string(buf: memoryview, pos: int, flexible: bool) -> tuple[str, int]:
    if flexible:
        n, pos = _length(buf, pos)
    else:
        (n,) = _I16(buf, pos)
        pos += 2
    if n < 0 or n > len(buf) - pos:
        raise ProtocolError("a string is longer than the request, or null")
    _check_string(n)
    return str(buf[pos : pos + n], "utf-8"), pos + n


def _read_topic(buf: memoryview, pos: int, version: int) -> tuple[TopicRef, int]:
    if version < 13:
        return _read_string(buf, pos, version >= 12)
    if len(buf) - pos < 16:
        raise ProtocolError("a topic id is cut short")
    return bytes(buf[pos : pos + 16]), pos + 16


def _write_count(out: bytearray, n: int, flexible: bool) -> None:
    if flexible:
        out += uvarint(n + 1)
    else:
        out += _PACK_I32(n)


def _write_topic(out: bytearray, topic: TopicRef, flexible: bool) -> None:
    if type(topic) is bytes:
        out += topic
    elif flexible:
        _write_compact_string(out, topic)  # type: ignore[arg-type]
    else:
        _write_string(out, topic)  # type: ignore[arg-type]


def _write_compact_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    raw = text.encode()
    out += uvarint(len(raw) + 1)
    out += raw


def _write_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
        return
    raw = text.encode()
    out += _PACK_I16(len(raw))
    out += raw
