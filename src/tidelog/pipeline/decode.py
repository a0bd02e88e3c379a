"""From the records of a Fetch answer to Arrow columns.

    decoder = Decoder(part, columns)
    answer = decoder.scan(records, start, aborted)   # answer.next_offset: where to fetch next
    for batch in decoder.decode(answer): ...         # Arrow batches of a few MB
    last = decoder.flush()                           # what did not fill one

Batches are looked at in the order of the log, in groups that fit into the processor's cache:
their CRCs are checked, they are decompressed into memory that is used again and again, and the
compiled loop of ``kernel.py`` copies the wanted fields into columns.  A column batch is handed
out when it is full, whatever the batches of the log were, so that one huge or bomb-like batch
costs no more memory than its decompressed bytes, which are limited.

A damaged batch raises ``CorruptBatch`` after all records before it were taken.  Batches of old
formats (magic 0 and 1) are refused: brokers since Kafka 4.0 have none, and older ones rewrite
a topic when ``log.message.format.version`` or the producers are renewed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from tidelog.errors import ApiError, ErrorCode
from tidelog.pipeline import kernel
from tidelog.pipeline.loss import CorruptBatch
from tidelog.pipeline.ranges import HEADERS, Columns, OffsetRange
from tidelog.pipeline.schema import HEADER_TYPE, TYPES, arrow_schema
from tidelog.wire.batch import CONTROL, CRC_START, TRANSACTIONAL
from tidelog.wire.compression import READ_LIMIT, TooSmall, codec_of, decompress_into
from tidelog.wire.markers import read_marker
from tidelog.wire.primitives import Buffer

TARGET_BYTES = 2 * 1024 * 1024  # of an Arrow batch: what Spark takes best is 1 to 4 MB
_GROUP_BYTES = 512 * 1024  # what is checked, then copied while it is still in the cache
_SCRATCH = 4 * 1024 * 1024
_LARGEST_KEPT_SCRATCH = 32 * 1024 * 1024
_SMALLEST_COLUMN = 64 * 1024
_LARGEST_TARGET = 1 << 30  # Arrow's offsets inside a column have 32 bits

_WANTS = {
    "key": kernel.WANT_KEY,
    "value": kernel.WANT_VALUE,
    "offset": kernel.WANT_OFFSET,
    "timestamp": kernel.WANT_TIMESTAMP,
    "timestampType": kernel.WANT_TYPE,
    HEADERS: kernel.WANT_HEADERS,
}
_WIDTHS = {"key": 4, "value": 4, "topic": 4, "partition": 4, "offset": 8, "timestamp": 8}
_WIDTHS |= {"timestampType": 4, HEADERS: 4}


@dataclass(slots=True)
class Answer:
    """The batches of one Fetch answer, before their records are looked at."""

    records: memoryview
    table: Any  # of the kernel: a row for each batch; valid until the next scan
    start: int
    next_offset: int  # after the last whole batch; ``start`` if there is none
    status: int  # how the scan ended
    status_at: int  # and where

    @property
    def damaged(self) -> bool:
        """A header is broken: what follows cannot be found."""
        return self.status in (kernel.BROKEN_HEADER, kernel.OLD_MAGIC)

    def base_after(self, index: int, default: int) -> int:
        """Where the batch after this one begins."""
        if index + 1 < len(self.table):
            return int(self.table[index + 1, kernel.BASE])
        return default


class Decoder:
    """See the module.  One for each range; it keeps what is not handed out yet."""

    def __init__(
        self,
        part: OffsetRange,
        columns: Columns,
        *,
        target_bytes: int = TARGET_BYTES,
        limit: int = READ_LIMIT,
    ) -> None:
        """``limit``: more bytes than this a batch must not become when it is decompressed."""
        self._part = part
        self._limit = limit
        self._columns = _ColumnBuffers(part, columns, target_bytes)
        self._scratch = np.empty(min(_SCRATCH, limit), np.uint8)
        self._table = np.empty((0, kernel.TABLE_WIDTH), np.int64)

    def scan(self, records: Buffer, start: int, aborted: Sequence[tuple[int, int]] = ()) -> Answer:
        """The batches in the records of an answer; ``start`` is what was asked for.

        ``aborted``: the aborted transactions that a read_committed answer lists, as producer
        id and first offset.
        """
        view = memoryview(records)
        if len(self._table) < len(view) // 61 + 1:
            self._table = np.empty((len(view) // 61 + 1, kernel.TABLE_WIDTH), np.int64)
        raw = np.frombuffer(view, np.uint8) if view else np.empty(0, np.uint8)
        count, status, at = kernel.scan(raw, start, self._part.end, self._table)
        table = self._table[:count]
        following = max(start, int(table[-1, kernel.LAST]) + 1) if count else start
        if status == kernel.PAST_END:
            following = max(following, self._part.end)  # nothing is left before the end
        if aborted:
            _skip_aborted(view, table, aborted)
        return Answer(view, table, start, following, status, at)

    def decode(self, answer: Answer) -> Iterator[pa.RecordBatch]:
        """Take the records; yields whenever the columns are full."""
        table = answer.table
        raw = np.frombuffer(answer.records, np.uint8) if len(table) else None
        self._columns.floor = answer.start
        # Only batches that are large or compressed need more than the compiled loop.
        work: list[int] = np.flatnonzero(table[:, kernel.WORK]).tolist()
        rows: list[list[int]] = table[work].tolist()
        first = weight = done = 0
        try:
            while done < len(work):
                index, row = work[done], rows[done]
                self._check_crc(answer, index, row)
                if not row[kernel.WORK] & kernel.DECOMPRESS:
                    done += 1
                    weight += row[kernel.SIZE]
                    if weight >= _GROUP_BYTES:
                        yield from self._take(raw, answer, first, index + 1)
                        first, weight = index + 1, 0
                    continue
                yield from self._take(raw, answer, first, index)
                first = index
                count = self._decompress_some(answer, work, rows, done)
                yield from self._take(self._scratch, answer, index, index + count)
                done += count
                first, weight = index + count, 0
        except _Damage as damage:
            # What stands before the damaged batch is whole.
            yield from self._take(raw, answer, first, damage.index)
            raise self._corrupt(answer, damage.index, damage.reason) from damage.__cause__
        yield from self._take(raw, answer, first, len(table))
        if len(self._scratch) > _LARGEST_KEPT_SCRATCH:
            self._scratch = np.empty(_SCRATCH, np.uint8)
        if answer.status == kernel.OLD_MAGIC:
            raise self._old_format(answer.records, answer.status_at)
        if answer.status == kernel.BROKEN_HEADER:
            raise self._broken_header(answer)

    def flush(self) -> pa.RecordBatch | None:
        """The records that have not been handed out, if any."""
        return self._columns.flush()

    # -- groups of batches ------------------------------------------------------

    def _take(self, source: Any, answer: Answer, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The records of the batches ``first`` to ``stop``, which lie in ``source``."""
        if first >= stop:
            return
        columns = self._columns
        columns.begin(first)
        while True:
            result = columns.fill(source, self._table, stop, self._part.end)
            if result == kernel.FULL:
                batch = columns.flush()
                if batch is not None:
                    yield batch
                columns.make_room()
                continue
            if result == kernel.DAMAGED:
                index, reason = columns.damage()
                raise self._corrupt(answer, index, reason)
            return

    def _decompress_some(
        self, answer: Answer, work: list[int], rows: list[list[int]], done: int
    ) -> int:
        """Compressed batches into the scratch memory, as many as follow each other and fit."""
        first, used, count = work[done], 0, 0
        while done + count < len(work) and used < _GROUP_BYTES:
            index, row = work[done + count], rows[done + count]
            if index != first + count or not row[kernel.WORK] & kernel.DECOMPRESS:
                break
            try:
                if count:
                    self._check_crc(answer, index, row)
                size = self._decompress(answer, index, row, used)
            except _Damage:
                if not count:
                    raise
                break  # it will be the first of the next group, and damaged again
            if size is None:
                break
            answer.table[index, kernel.DATA] = used
            used += size
            answer.table[index, kernel.DATA_END] = used
            count += 1
        return count

    def _decompress(self, answer: Answer, index: int, row: list[int], used: int) -> int | None:
        """Into the scratch memory; None if it is too full.  An empty one grows."""
        data = answer.records[row[kernel.DATA] : row[kernel.DATA_END]]
        try:
            codec = codec_of(row[kernel.ATTRIBUTES])
            while True:
                try:
                    return decompress_into(codec, data, self._scratch.data[used:])
                except TooSmall:
                    if used:
                        return None
                    size = len(self._scratch)
                    if size >= self._limit:
                        reason = f"it decompresses to more than {self._limit} bytes"
                        raise _Damage(index, reason) from None
                    self._scratch = np.empty(0, np.uint8)  # not both at the same time
                    self._scratch = np.empty(min(4 * size, self._limit), np.uint8)
        except MemoryError:
            reason = "there is no memory for what it decompresses to"
            raise _Damage(index, reason) from None
        except ApiError as error:
            raise _Damage(index, str(error)) from error

    def _check_crc(self, answer: Answer, index: int, row: list[int]) -> None:
        if row[kernel.WORK] & kernel.CHECK_CRC:
            at = row[kernel.POSITION]
            found = crc32c(answer.records[at + CRC_START : at + row[kernel.SIZE]])
            wrong = found != row[kernel.CRC]
        else:
            wrong = row[kernel.WORK] & kernel.WRONG_CRC != 0
        if not wrong:
            return
        if 0 <= answer.base_after(index, -1) <= answer.start:
            # It ends before the range: nothing of it is wanted.
            answer.table[index, kernel.SKIP] = 1
            row[kernel.WORK] = 0
            return
        raise _Damage(index, "the batch does not match its CRC")

    # -- errors -----------------------------------------------------------------

    def _corrupt(self, answer: Answer, index: int, reason: str) -> CorruptBatch:
        """From the first record that was not taken to the next batch, or the batch's end."""
        base, last, count = (
            int(answer.table[index, slot]) for slot in (kernel.BASE, kernel.LAST, kernel.COUNT)
        )
        first = max(base, self._columns.floor, answer.start)
        # If nothing follows, its own words must do, which may be damaged as well.
        after = answer.base_after(index, max(last, base + count - 1) + 1)
        after = max(first + 1, after)
        lost = self._part.between(first, min(after, max(self._part.end, first + 1)))
        return CorruptBatch(lost, f"the batch at offset {base} is damaged: {reason}")

    def _broken_header(self, answer: Answer) -> CorruptBatch:
        """Without its length it is unknown where the next batch begins."""
        first = answer.next_offset
        lost = self._part.between(first, max(self._part.end, first + 1))
        return CorruptBatch(lost, f"the header of the batch at offset {first} or after is damaged")

    def _old_format(self, view: memoryview, at: int) -> ApiError:
        offset = int.from_bytes(view[at : at + 8], "big", signed=True)
        return ApiError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"{self._part.tp}: the message at offset {offset} has the old format of magic "
            f"{view[at + 16]}; only magic 2 (Kafka 0.11 or newer) can be read",
        )


def _skip_aborted(view: memoryview, table: Any, aborted: Sequence[tuple[int, int]]) -> None:
    """Leave out what belongs to aborted transactions, as the Java client does.

    A transaction goes from its first offset, which the answer lists, to the abort marker of its
    producer.
    """
    waiting = sorted(aborted, key=lambda row: row[1], reverse=True)
    active: set[int] = set()
    for index, row in enumerate(table.tolist()):
        while waiting and waiting[-1][1] <= row[kernel.LAST]:
            active.add(waiting.pop()[0])
        if not row[kernel.ATTRIBUTES] & TRANSACTIONAL:
            continue
        if row[kernel.ATTRIBUTES] & CONTROL:
            at = row[kernel.POSITION]
            marker = read_marker(view[at : at + row[kernel.SIZE]])
            if marker is not None and not marker.committed:
                active.discard(row[kernel.PRODUCER])
        elif row[kernel.PRODUCER] in active:
            table[index, kernel.SKIP] = 1
            table[index, kernel.WORK] &= ~kernel.DECOMPRESS


class _Damage(Exception):
    """A batch that must not be looked into."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


# -- columns --------------------------------------------------------------------


class _ColumnBuffers:
    """The Arrow buffers that are being filled.

    They come from Arrow's memory pool, which gives memory that is warm already.  A column's
    buffer is as large as the last batch needed, twice: keys are much smaller than values.
    """

    def __init__(self, part: OffsetRange, columns: Columns, target: int) -> None:
        self._schema = arrow_schema(columns)
        self._target = target = min(target, _LARGEST_TARGET)
        self._wanted = sum(_WANTS.get(name, 0) for name in set(columns.names))
        self._width = sum(_WIDTHS[name] for name in columns.names)
        if "topic" in columns:
            self._width += len(part.topic)
        self._row_limit = max(1, target // max(1, self._width), min(1024, target))
        self._constant = {
            name: pa.repeat(pa.scalar(value, TYPES[name]), self._row_limit)
            for name, value in (("topic", part.topic), ("partition", part.partition))
            if name in columns
        }
        self._state = np.zeros(kernel.STATE_SIZE, np.int64)
        self._rooms = dict.fromkeys(("key", "value", "name", "content"), _SMALLEST_COLUMN)
        self._header_room = 1024
        self._allocate()

    # -- filling ----------------------------------------------------------------

    @property
    def floor(self) -> int:
        """The first offset that is still to be taken."""
        return int(self._state[kernel.FLOOR])

    @floor.setter
    def floor(self, offset: int) -> None:
        self._state[kernel.FLOOR] = offset

    def begin(self, batch: int) -> None:
        self._state[kernel.BATCH] = batch
        self._state[kernel.AT] = -1

    def fill(self, source: Any, table: Any, stop: int, end: int) -> int:
        return kernel.fill(  # type: ignore[no-any-return]
            source, table, stop, end, self._wanted, self._row_limit, self._width, self._target,
            self._state, *self._arrays,
        )  # fmt: skip

    def damage(self) -> tuple[int, str]:
        """The batch that is damaged, and how."""
        return int(self._state[kernel.BATCH]), kernel.REASONS[int(self._state[kernel.REASON])]

    def make_room(self) -> None:
        """Room for the record that did not fit, if it is larger than usual."""
        state, rooms = self._state, self._rooms
        needs = (kernel.NEED_KEY, kernel.NEED_VALUE, kernel.NEED_NAMES, kernel.NEED_CONTENTS)
        larger = False
        for name, slot in zip(rooms, needs, strict=True):
            if state[slot] > rooms[name]:
                rooms[name] = int(state[slot])
                larger = True
        if state[kernel.NEED_HEADERS] > self._header_room:
            self._header_room = int(state[kernel.NEED_HEADERS])
            larger = True
        if larger:
            self._allocate()

    def _allocate(self) -> None:
        """New buffers; the kernel wants an array for each column, wanted or not."""
        wanted, rows, rooms = self._wanted, self._row_limit, self._rooms
        headers = self._header_room
        key, value = wanted & kernel.WANT_KEY, wanted & kernel.WANT_VALUE
        header = wanted & kernel.WANT_HEADERS
        sizes = (
            ("key_offsets", 4 * (rows + 1) if key else 4, np.int32),
            ("keys", rooms["key"] if key else 1, np.uint8),
            ("key_bits", rows // 8 + 1 if key else 1, np.uint8),
            ("value_offsets", 4 * (rows + 1) if value else 4, np.int32),
            ("values", rooms["value"] if value else 1, np.uint8),
            ("value_bits", rows // 8 + 1 if value else 1, np.uint8),
            ("offsets", 8 * rows if wanted & kernel.WANT_OFFSET else 8, np.int64),
            ("timestamps", 8 * rows if wanted & kernel.WANT_TIMESTAMP else 8, np.int64),
            ("types", 4 * rows if wanted & kernel.WANT_TYPE else 4, np.int32),
            ("header_offsets", 4 * (rows + 1) if header else 4, np.int32),
            ("header_bits", rows // 8 + 1 if header else 1, np.uint8),
            ("name_offsets", 4 * (headers + 1) if header else 4, np.int32),
            ("names", rooms["name"] if header else 1, np.uint8),
            ("content_offsets", 4 * (headers + 1) if header else 4, np.int32),
            ("contents", rooms["content"] if header else 1, np.uint8),
            ("content_bits", headers // 8 + 1 if header else 1, np.uint8),
        )
        self._buffers = {name: pa.allocate_buffer(size) for name, size, _ in sizes}
        self._arrays = [np.frombuffer(self._buffers[name], kind) for name, _, kind in sizes]
        for (name, _, _), array in zip(sizes, self._arrays, strict=True):
            if name.endswith("_offsets"):
                array[0] = 0
            elif name.endswith("_bits"):
                array[:] = 255  # nothing is null so far
        floor, *tp = self._state[[kernel.FLOOR, *range(kernel.FLOOR)]].tolist()
        self._state[:] = 0
        self._state[kernel.FLOOR] = floor
        self._state[: kernel.FLOOR] = tp

    # -- handing out ------------------------------------------------------------

    def flush(self) -> pa.RecordBatch | None:
        """What is in the columns, as Arrow; the columns are empty again."""
        rows = int(self._state[kernel.ROWS])
        if rows == 0:
            return None
        arrays = [self._column(name, rows) for name in self._schema.names]
        result = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._adapt()
        self._allocate()
        return result

    def _adapt(self) -> None:
        """Next time, room for twice as much of each column, within reason."""
        state = self._state
        used = (kernel.KEY_BYTES, kernel.VALUE_BYTES, kernel.NAME_BYTES, kernel.CONTENT_BYTES)
        for name, slot in zip(self._rooms, used, strict=True):
            wanted = max(_SMALLEST_COLUMN, 2 * int(state[slot]))
            self._rooms[name] = min(wanted, self._target + _SMALLEST_COLUMN)
        most = self._target // 12 + 1
        self._header_room = min(max(1024, 2 * int(state[kernel.HEADERS])), most)

    def _column(self, name: str, rows: int) -> pa.Array:
        state, buffers = self._state, self._buffers
        if name in self._constant:
            return self._constant[name].slice(0, rows)
        if name == "key":
            bits = buffers["key_bits"] if state[kernel.NULL_KEYS] else None
            data = buffers["keys"].slice(0, int(state[kernel.KEY_BYTES]))
            return _binary(pa.binary(), rows, bits, buffers["key_offsets"], data)
        if name == "value":
            bits = buffers["value_bits"] if state[kernel.NULL_VALUES] else None
            data = buffers["values"].slice(0, int(state[kernel.VALUE_BYTES]))
            return _binary(pa.binary(), rows, bits, buffers["value_offsets"], data)
        if name == HEADERS:
            return self._headers(rows)
        buffer, width = {
            "offset": ("offsets", 8), "timestamp": ("timestamps", 8), "timestampType": ("types", 4)
        }[name]  # fmt: skip
        fixed = buffers[buffer].slice(0, width * rows)
        return pa.Array.from_buffers(TYPES[name], rows, [None, fixed])

    def _headers(self, rows: int) -> pa.Array:
        state, buffers = self._state, self._buffers
        count = int(state[kernel.HEADERS])
        data = buffers["names"].slice(0, int(state[kernel.NAME_BYTES]))
        plain = not state[kernel.OTHER_THAN_ASCII]
        kind = pa.string() if plain else pa.binary()
        names = _binary(kind, count, None, buffers["name_offsets"], data)
        if not plain:  # is it UTF-8?  What is not, is shown as Java would
            texts = [name.decode("utf-8", "replace") for name in names.to_pylist()]
            names = pa.array(texts, pa.string())
        bits = buffers["content_bits"] if state[kernel.NULL_CONTENTS] else None
        data = buffers["contents"].slice(0, int(state[kernel.CONTENT_BYTES]))
        contents = _binary(pa.binary(), count, bits, buffers["content_offsets"], data)
        pairs = pa.StructArray.from_arrays([names, contents], fields=list(HEADER_TYPE))
        bits = buffers["header_bits"] if state[kernel.NULL_HEADERS] else None
        offsets = buffers["header_offsets"].slice(0, 4 * (rows + 1))
        return pa.Array.from_buffers(TYPES[HEADERS], rows, [bits, offsets], children=[pairs])


def _binary(
    kind: pa.DataType, rows: int, bits: pa.Buffer | None, offsets: pa.Buffer, data: pa.Buffer
) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [bits, offsets.slice(0, 4 * (rows + 1)), data])
