"""Validation of batches that need more than a look at their header (LogValidator).  No I/O.

Most batches are written as they came.  They are opened if the topic is compacted (each record
needs a key), has a codec of its own or a limit for old timestamps, or if the header says that a
record is too far in the future.  What is checked, and corrected, is what Kafka's LogValidator
checks and corrects: the number of records, their offset deltas, keys and timestamps, and the
largest timestamp.

What a few kilobytes decompress to can take a second or more to look through.  So a request may
open only a little in the event loop (:class:`Budget`); :class:`OpenElsewhere` says that a batch
is for another process (``offload.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidelog.errors import ApiError, ErrorCode
from tidelog.settings import LogConfig
from tidelog.settings_table import LONG_MAX
from tidelog.wire.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    BatchHeader,
    read_header,
    set_max_timestamp,
    stamp_append_time,
)
from tidelog.wire.compression import Codec, DecompressedTooLarge, decompress
from tidelog.wire.primitives import ProtocolError, read_varint
from tidelog.wire.records import renumber, repack, walk_records, wrapped

_NO_TIMESTAMP = -1
# Half a millisecond of work, however many requests of this kind a client sends at once.
_BYTES_HERE = 64 * 1024
_RECORDS_HERE = 1000
MOST_RECORD_ERRORS = 100  # that an answer names
# To rewrite offset deltas takes ten times as long as to check them.  Kafka does it where it
# recompresses (where it does not, Kafka 4.1 answers UNKNOWN_SERVER_ERROR).
MOST_RENUMBERED = 10_000


class Rules(NamedTuple):
    """What a topic's settings ask of the batches that it gets."""

    topic: str
    compacted: bool
    codec: Codec | None  # None: the producer's
    level: int | None  # of that codec
    append_time: bool
    before_max_ms: int
    after_max_ms: int
    max_decompressed: int

    @classmethod
    def of(cls, topic: str, config: LogConfig) -> Rules:
        names = {"producer": None, "uncompressed": Codec.NONE}
        wanted = config.compression_type
        return cls(
            topic,
            "compact" in config.cleanup_policy,
            names[wanted] if wanted in names else Codec[wanted.upper()],
            config.compression_level,
            config.message_timestamp_type == "LogAppendTime",
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
            config.max_decompressed_bytes,
        )

    @property
    def open_all(self) -> bool:
        """Must every batch be opened?"""
        return (
            self.compacted
            or self.codec is not None
            or (not self.append_time and self.before_max_ms != LONG_MAX)
        )


class ValidatedBatch(NamedTuple):
    """What to append instead of a batch, and the time of the append if that is its records'."""

    rules: Rules
    batch: bytearray
    append_time: int
    decompressed: int  # bytes that were decompressed


@dataclass(slots=True)
class Budget:
    """What one request may make the broker open."""

    decompressed: int = 0  # bytes so far
    bytes_here: int = _BYTES_HERE  # left for the event loop
    records_here: int = _RECORDS_HERE

    def allows(self, header: BatchHeader) -> bool:
        """May this batch be opened in the event loop?  If it is compressed, up to ``bytes_here``.

        Its bytes count whatever the codec: a single record may have as many headers as fit.
        """
        if header.record_count > self.records_here or header.size > self.bytes_here:
            return False
        self.records_here -= header.record_count
        return True


class OpenElsewhere(Exception):
    """To open this batch is too much for the event loop."""

    def __init__(self, rules: Rules, limit: int) -> None:
        super().__init__()
        self.rules = rules
        self.limit = limit


class InvalidRecords(ApiError):
    """Some records of a batch break a rule; which ones, and why (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.errors = errors

    def __reduce__(self) -> tuple[object, ...]:
        return InvalidRecords, (self.code, self.message, self.errors)


def rewrite_here(
    batch: memoryview, header: BatchHeader, rules: Rules, now_ms: int, budget: Budget | None
) -> ValidatedBatch:
    """What to append instead; raises OpenElsewhere if that takes too long for the event loop."""
    too_new = not rules.append_time and header.max_timestamp > now_ms + rules.after_max_ms
    if not rules.open_all and not too_new:
        stamped = bytearray(batch)
        stamp_append_time(stamped, now_ms)
        return ValidatedBatch(rules, stamped, now_ms, 0)
    if budget is None:
        budget = Budget()
    limit = max(0, rules.max_decompressed - budget.decompressed)
    if not budget.allows(header):
        raise OpenElsewhere(rules, limit)
    here, budget.bytes_here = budget.bytes_here, 0  # an error uses up all of it
    try:
        rewritten = rewrite(batch, rules, now_ms, min(limit, here))
    except DecompressedTooLarge:
        if limit > here:
            raise OpenElsewhere(rules, limit) from None
        raise too_large(rules, limit) from None
    budget.decompressed += rewritten.decompressed
    budget.bytes_here = here - max(rewritten.decompressed, len(batch))
    return rewritten


def rewrite_elsewhere(batch: bytes, rules: Rules, now_ms: int, limit: int) -> ValidatedBatch:
    """The same in another process, with all the time that it takes."""
    try:
        return rewrite(memoryview(batch), rules, now_ms, limit)
    except DecompressedTooLarge:
        raise too_large(rules, limit) from None


def too_large(rules: Rules, limit: int) -> ApiError:
    most = f"max.decompressed.bytes={rules.max_decompressed} of {rules.topic}"
    if limit < rules.max_decompressed:
        message = f"the batches of the request decompress to more than {most}; send fewer at a time"
    else:
        message = f"the batch decompresses to more than {most}; send smaller batches"
    return ApiError(ErrorCode.MESSAGE_TOO_LARGE, message)


def rewrite(batch: memoryview, rules: Rules, now_ms: int, limit: int) -> ValidatedBatch:
    """Open a batch, check its records, and correct what Kafka corrects."""
    header = read_header(batch)
    codec = Codec(header.attributes & CODEC_MASK)
    body = bytes(decompress(codec, batch[HEADER_SIZE:], limit))
    try:
        newest, numbered = _check_records(body, header, rules, now_ms)
    except IndexError:
        raise _invalid("a record runs past the end of its batch") from None
    except ProtocolError as error:
        raise _invalid(error.message) from error
    target = codec if rules.codec is None else rules.codec
    if not numbered:
        rewritten = bytearray(
            repack(header, renumber(body, header.record_count), target, rules.level)
        )
    elif target != codec:
        rewritten = bytearray(repack(header, body, target, rules.level))
    else:
        rewritten = bytearray(batch)
    if rules.append_time:
        stamp_append_time(rewritten, now_ms)
    elif newest != header.max_timestamp:
        set_max_timestamp(rewritten, newest)
    append_time = now_ms if rules.append_time else -1
    return ValidatedBatch(rules, rewritten, append_time, len(body) if codec else 0)


def _check_records(data: bytes, header: BatchHeader, rules: Rules, now_ms: int) -> tuple[int, bool]:
    """The largest timestamp, and whether the offset deltas are right; else the error to answer."""
    count, base = header.record_count, header.base_timestamp
    compacted, create_time = rules.compacted, not rules.append_time
    oldest, latest = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    newest, numbered, end, smallest = _NO_TIMESTAMP, True, 0, -LONG_MAX - 1
    errors = _Errors(count)
    walk = enumerate(walk_records(data, count))
    for number, (end, timestamp_delta, offset_delta, _, key_length, value, length) in walk:
        timestamp = base + timestamp_delta
        if not smallest <= timestamp <= LONG_MAX:
            timestamp = wrapped(timestamp)
        if offset_delta != number:
            if count > MOST_RENUMBERED:
                raise ProtocolError(f"record {number} of {count} has another offset delta")
            numbered = False
        if key_length < 0 and compacted:
            errors.add(number, f"topic {rules.topic} is compacted: every record needs a key")
        pos = value + length if length > 0 else value
        pos = _skip_headers(data, pos, end) if data[pos] else pos + 1
        if pos != end:
            raise ProtocolError("a record does not end where its length says")
        newest = max(newest, timestamp)
        if create_time and not oldest <= timestamp <= latest and timestamp != _NO_TIMESTAMP:
            setting = "before.max.ms before" if timestamp < oldest else "after.max.ms after"
            message = f"timestamp {timestamp} is more than message.timestamp.{setting} now"
            errors.add(number, f"{message} ({now_ms})", ErrorCode.INVALID_TIMESTAMP)
    if end != len(data):
        raise ProtocolError(f"the batch counts {count} records but has more")
    errors.check()
    return newest, numbered


def _skip_headers(data: bytes, pos: int, after: int) -> int:
    """Where the headers of a record end; it ends at ``after``."""
    count, pos = read_varint(data, pos)
    if not 0 <= count <= (after - pos) // 2:  # a header takes two bytes at least
        raise ProtocolError(f"a record has {count} headers")
    for _ in range(count):
        byte = data[pos]
        if byte < 0x80:
            pos += 1
            length = (byte >> 1) ^ -(byte & 1)
        else:
            length, pos = read_varint(data, pos)
        if length < 0:
            raise ProtocolError("a header has no name")
        pos += length
        byte = data[pos]
        if byte < 0x80:
            pos += 1 if byte & 1 else 1 + (byte >> 1)
        else:
            length, pos = read_varint(data, pos)
            pos += max(length, 0)
    return pos


class _Errors:
    """Records that break a rule: the first of them, and how many there are."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._shown: dict[int, str] = {}
        self._count = 0
        self._last = -1
        self._code = ErrorCode.INVALID_RECORD

    def add(self, number: int, message: str, code: ErrorCode = ErrorCode.INVALID_RECORD) -> None:
        if number == self._last:
            return  # one reason is enough
        self._last = number
        self._count += 1
        if code != ErrorCode.INVALID_RECORD:
            self._code = code
        if len(self._shown) < MOST_RECORD_ERRORS:
            self._shown[number] = message

    def check(self) -> None:
        if self._shown:
            number, first = next(iter(self._shown.items()))
            message = (
                f"{self._count} of {self._records} records are invalid; record {number}: {first}"
            )
            raise InvalidRecords(self._code, message, list(self._shown.items()))


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, message)
