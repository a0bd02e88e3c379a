"""Compaction of one log: of each key only the newest record stays.

Works on closed segments and only reads them.  Two passes:

1. From the first dirty offset on, the newest offset of every key goes into a map, until
   all is read or the map is full (then the rest waits for another round).
2. Every segment from the log's start is copied without the records that the map
   supersedes.  Neighbours that are small are joined.  The copies are named ``.cleaned``;
   who owns the log puts them into place (cleaner_swap.py).

What stays though it is old, as in Kafka:

- Tombstones (no value) stay ``delete.retention.ms`` longer.  The first round that
  meets one writes the time into its batch: the delete horizon (KIP-534).
- The last batch of each producer keeps its header, so that its sequence is known.
- The markers of transactions: see cleaner_transactions.py.

Offsets never change, and a batch of which nothing goes is copied as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from crc32c import crc32c

from tidelog import files
from tidelog.clock import Clock, SystemClock
from tidelog.errors import ApiError
from tidelog.files import remove, sync_file
from tidelog.log.cleaner_records import (
    BYTES_PER_KEY,
    OffsetMap,
    Selection,
    add_keys,
    empty,
    pick,
    rebuild,
    select,
)
from tidelog.log.cleaner_transactions import Transactions
from tidelog.log.compaction import group_segments
from tidelog.log.segment import Segment
from tidelog.log.transaction_index import Aborted
from tidelog.wire.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
)
from tidelog.wire.compression import codec_of, decompress
from tidelog.wire.markers import Marker, read_marker

CLEANED = ".cleaned"
_as_header = tuple.__new__  # half the time of BatchHeader(*...)
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


class CorruptLog(Exception):
    """A closed segment holds what is no valid batch: it cannot be compacted."""


@dataclass(slots=True)
class CleaningJob:
    """All that the cleaner must know of a log; goes to another process as JSON."""

    directory: str
    segments: list[tuple[int, int, int]]  # base, end and size of what may be cleaned, in order
    first_dirty: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    # producer id, epoch, last offset of its data (-1: it has none)
    producers: list[tuple[int, int, int]] = field(default_factory=list)
    # producer id, first offset, marker, last stable offset
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)
    buffer_bytes: int = 128 * 1024 * 1024
    chunk_bytes: int = 512 * 1024
    bytes_per_second: float = float("inf")
    codec: str = "producer"  # compression.type; of its batches ``level`` is the level
    level: int | None = None

    def to_json(self) -> dict[str, Any]:
        # Not asdict: it would copy every row, of which a busy log has many.
        return {row.name: getattr(self, row.name) for row in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CleaningJob:
        known = {row.name for row in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


@dataclass(slots=True)
class Cleaned:
    """One group of segments has a copy, ready to take its place."""

    bases: list[int]
    bytes_before: int
    bytes_after: int
    changed: bool  # else there is no copy: it would be the same


@dataclass(slots=True)
class Finished:
    """The log is clean up to ``end_offset``."""

    end_offset: int
    keys: int = 0
    read: int = 0  # bytes, both passes
    written: int = 0
    records: int = 0
    records_kept: int = 0
    keyless: int = 0


class CleanerThrottle:
    """Keeps reading and writing together below so many bytes a second."""

    def __init__(self, bytes_per_second: float, clock: Clock | None = None) -> None:
        self._rate = bytes_per_second
        self._clock = clock or SystemClock()
        self._start = self._clock.monotonic()
        self._bytes = 0

    def spend(self, count: int) -> None:
        self._bytes += count
        ahead = self._bytes / self._rate - (self._clock.monotonic() - self._start)
        if ahead > 0.01:
            self._clock.sleep(ahead)


class Chunk(NamedTuple):
    """Whole batches of a file, and where each is."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]


def clean(job: CleaningJob) -> Iterator[Cleaned | Finished]:
    """Make the copies, group by group; the last item says how far the log is clean."""
    return _Cleaning(job).run()


class _Cleaning:
    """One round over one log."""

    def __init__(self, job: CleaningJob) -> None:
        self.job = job
        self.throttle = CleanerThrottle(job.bytes_per_second)
        self.stats = Finished(job.segments[-1][1])
        self.offsets: OffsetMap = {}
        self.last_mapped = -1  # the last offset of the last batch in the map
        self.producers = {row[0]: (row[1], row[2]) for row in job.producers}
        self.aborted = [Aborted(*row) for row in job.aborted]

    def run(self) -> Iterator[Cleaned | Finished]:
        self._build_map()
        self.newest = sorted(self.offsets.values())
        end = self.stats.end_offset
        self.transactions = Transactions(self.aborted, self.job.segments[0][0])
        wanted = [row for row in self.job.segments if row[0] < end]
        for group in group_segments(
            [(*row, self._index_size(row[0])) for row in wanted],
            self.job.segment_bytes,
            self.job.segment_index_bytes,
        ):
            yield self._clean_group(wanted[group.start : group.stop])
        yield self.stats

    def _path(self, base: int, suffix: str = ".log") -> str:
        return os.path.join(self.job.directory, f"{base:020d}{suffix}")

    def _index_size(self, base: int) -> int:
        sizes = [0]
        for suffix in (".index", ".timeindex"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(files.size(self._path(base, suffix)))
        return max(sizes)

    # -- reading ----------------------------------------------------------------

    def _chunks(self, base: int, limit: int, size: int) -> Iterator[Chunk]:
        """The batches of a segment, checked, as many at a time as fit into the buffer.

        ``limit`` is the offset where the segment ends.
        """
        path, unpack = self._path(base), HEADER.unpack_from
        position, wanted, expected = 0, self.job.chunk_bytes, base
        fd = files.open(path, os.O_RDONLY)
        try:
            while position < size:
                length = min(wanted, size - position)
                data = files.pread(fd, length, position)
                if len(data) < length:
                    raise OSError(errno.EIO, "the segment is shorter than it was", path)
                batches: list[tuple[int, BatchHeader]] = []
                pos, missing, view = 0, HEADER_SIZE, memoryview(data)
                while pos + HEADER_SIZE <= length:
                    # Plain fields where batches may be as small as records.
                    fields = unpack(data, pos)
                    end = pos + fields[1] + LENGTH_OVERHEAD
                    where = position + pos
                    if fields[3] != MAGIC or end - pos < HEADER_SIZE or position + end > size:
                        raise CorruptLog(f"{path}: no batch at byte {where}")
                    if end > length:
                        missing = end - pos
                        break
                    if crc32c(view[pos + 21 : end]) != fields[4]:
                        raise CorruptLog(f"{path}: the CRC of the batch at byte {where} is wrong")
                    if not expected <= fields[0] <= fields[0] + fields[6] < limit:
                        message = f"offset {fields[0]} at byte {where} does not belong there"
                        raise CorruptLog(f"{path}: {message}")
                    expected = fields[0] + fields[6] + 1
                    batches.append((pos, _as_header(BatchHeader, fields)))
                    pos = end
                if not batches and len(data) >= size - position:
                    raise CorruptLog(f"{path}: it ends inside a batch, at byte {position}")
                wanted = max(self.job.chunk_bytes, missing)
                if batches:
                    self.stats.read += pos
                    self.throttle.spend(pos)
                    yield Chunk(data, batches)
                position += pos
        finally:
            files.close(fd)

    def _body(self, chunk: Chunk, pos: int, header: BatchHeader) -> tuple[bytes, int, int]:
        """The records of a batch, plain: the data, and where they start and end in it."""
        end = pos + header.size
        if not header.attributes & CODEC_MASK:
            return chunk.data, pos + HEADER_SIZE, end
        packed = memoryview(chunk.data)[pos + HEADER_SIZE : end]
        body = bytes(decompress(codec_of(header.attributes), packed))
        return body, 0, len(body)

    # -- the first pass ---------------------------------------------------------

    def _build_map(self) -> None:
        job = self.job
        capacity = job.buffer_bytes // BYTES_PER_KEY
        dirty = [row for row in job.segments if row[1] > job.first_dirty]
        transactions = Transactions(self.aborted, dirty[0][0] if dirty else 0)
        first, offsets = job.first_dirty, self.offsets
        for row in dirty:
            for chunk in self._chunks(*row):
                for pos, header in chunk.batches:
                    if header.attributes & CONTROL:
                        transactions.discards_marker(header, _marker(chunk, pos, header))
                    elif not (
                        header.attributes & TRANSACTIONAL and transactions.discards_data(header)
                    ):
                        if header.last_offset < first:
                            continue
                        if offsets and len(offsets) + header.record_count > capacity:
                            self.stats.end_offset = header.base_offset
                            self.stats.keys = len(offsets)
                            return
                        self._add(chunk, pos, header)
                    self.last_mapped = header.last_offset
        self.stats.keys = len(self.offsets)

    def _add(self, chunk: Chunk, pos: int, header: BatchHeader) -> None:
        try:
            body, start, end = self._body(chunk, pos, header)
            first = self.job.first_dirty
            self.stats.keyless += add_keys(body, start, end, header, first, self.offsets)
        except ApiError as error:
            raise CorruptLog(f"offset {header.base_offset}: {error.message}") from error

    # -- the second pass --------------------------------------------------------

    def _clean_group(self, group: list[tuple[int, int, int]]) -> Cleaned:
        bases = [base for base, _, _ in group]
        before = sum(size for _, _, size in group)
        for suffix in SUFFIXES:
            remove(self._path(bases[0], suffix + CLEANED))
        self.transactions.left = []
        output = _Output(self.job, bases[0], self.throttle)
        changed = len(bases) > 1
        for row in group:
            for chunk in self._chunks(*row):
                changed |= self._clean_chunk(chunk, output)
        output.finish(self.transactions.left, self._path(bases[-1]), keep=changed)
        after = output.segment.size
        self.stats.written += after if changed else 0
        return Cleaned(bases, before, after, changed)

    def _clean_chunk(self, chunk: Chunk, output: _Output) -> bool:
        """Copy what stays; False if that is all of it."""
        data, run = chunk.data, 0
        changed = False
        for pos, header in chunk.batches:
            try:
                new = self._clean_batch(chunk, pos, header)
            except ApiError as error:
                raise CorruptLog(f"offset {header.base_offset}: {error.message}") from error
            if new is None:
                output.note(header, header.size)
                continue
            changed = True
            if run < pos:
                output.write(data[run:pos])
            run = pos + header.size
            if new:
                output.note(BatchHeader(*HEADER.unpack_from(new, 0)), len(new))
                output.write(new)
        last, header = chunk.batches[-1]
        if run < last + header.size:
            output.write(data[run : last + header.size])
        return changed

    def _clean_batch(self, chunk: Chunk, pos: int, header: BatchHeader) -> bytes | None:
        """What takes the place of a batch: None if it stays as it is, empty if it goes."""
        now_ms, attributes = self.job.now_ms, header.attributes
        control = attributes & CONTROL
        expired = attributes & DELETE_HORIZON and header.base_timestamp <= now_ms
        self.stats.records += header.record_count
        needs_horizon = discarded = False
        if control:
            marker = _marker(chunk, pos, header)
            needs_horizon = self.transactions.discards_marker(header, marker)
            discarded = bool(needs_horizon and expired)
        elif attributes & TRANSACTIONAL:
            discarded = self.transactions.discards_data(header)
        if discarded or header.record_count == 0:
            if not self._keeps_place(header):
                return b""
            return None if header.record_count == 0 else empty(header)
        if control:
            body, start, end = self._body(chunk, pos, header)
            selection = Selection([(start, end)], header.record_count, 0)
        else:
            body, selection = self._select(chunk, pos, header, not expired)
            needs_horizon = selection.tombstones > 0
        self.stats.records_kept += selection.kept
        horizon = None
        if needs_horizon and not header.attributes & DELETE_HORIZON:
            horizon = now_ms + self.job.delete_retention_ms
        if selection.kept == header.record_count and horizon is None:
            return None
        if selection.kept:
            own = codec_of(attributes).name.lower() == self.job.codec
            return rebuild(header, body, selection, horizon, self.job.level if own else None)
        return empty(header) if self._keeps_place(header) else b""

    def _select(
        self, chunk: Chunk, pos: int, header: BatchHeader, keep_tombstones: bool
    ) -> tuple[bytes, Selection]:
        """Which records of a batch stay, and the data that they are in."""
        base, count = header.base_offset, header.record_count
        mapped = self.job.first_dirty <= base and header.last_offset < self.stats.end_offset
        if mapped and count == header.last_offset_delta + 1:
            # All of its keys are in the map, so the newest offsets say which records stay.
            newest = self.newest
            first = bisect_left(newest, base)
            last = bisect_left(newest, base + count, first)
            if first == last:
                return b"", Selection([], 0, 0)
            body, start, end = self._body(chunk, pos, header)
            wanted = [offset - base for offset in newest[first:last]]
            return body, pick(body, start, end, count, wanted, keep_tombstones)
        body, start, end = self._body(chunk, pos, header)
        limit = self.stats.end_offset
        return body, select(body, start, end, header, self.offsets, limit, keep_tombstones)

    def _keeps_place(self, header: BatchHeader) -> bool:
        """Must the header stay although no record does?"""
        if header.last_offset == self.last_mapped:
            return True  # the end of what is clean can be seen in the log
        if header.producer_id not in self.producers:
            return False
        epoch, last_offset = self.producers[header.producer_id]
        if last_offset >= 0:
            return header.last_offset == last_offset
        return bool(header.attributes & CONTROL) and header.producer_epoch == epoch


def _marker(chunk: Chunk, pos: int, header: BatchHeader) -> Marker | None:
    return read_marker(memoryview(chunk.data)[pos : pos + header.size])


class _Output:
    """The copy of a group: a segment under another name, written in large pieces."""

    _BUFFER = 1024 * 1024

    def __init__(self, job: CleaningJob, base: int, throttle: CleanerThrottle) -> None:
        self.segment = Segment(job.directory, base, create=True, suffix=CLEANED)
        self._interval = job.index_interval_bytes
        self._throttle = throttle
        self._parts: list[bytes] = []
        self._waiting = 0

    def note(self, header: BatchHeader, size: int) -> None:
        """Index a batch that is about to be written."""
        segment = self.segment
        segment.note(segment.size, size, header.last_offset, header.max_timestamp, self._interval)

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= self._BUFFER:
            self._flush()

    def _flush(self) -> None:
        data = memoryview(b"".join(self._parts))
        self._throttle.spend(len(data))
        while data:
            data = data[files.write(self.segment.file.fd, data) :]
        self._parts, self._waiting = [], 0

    def finish(self, aborted: list[Aborted], like: str, *, keep: bool) -> None:
        """Everything to disk; or away with it."""
        segment = self.segment
        stem = segment.path[: -len(".log" + CLEANED)]
        if not keep:
            segment.release()
            for suffix in SUFFIXES:
                remove(stem + suffix + CLEANED)
            return
        self._flush()
        for entry in aborted:
            segment.transaction_index.add(entry)
        segment.close_for_writing()
        found = files.stat(like)
        files.utime(segment.path, ns=(found.st_atime_ns, found.st_mtime_ns))
        for suffix in SUFFIXES:
            sync_file(stem + suffix + CLEANED)
        segment.release()
