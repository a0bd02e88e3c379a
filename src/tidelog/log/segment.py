"""One segment: a file of whole batches, named by its first offset, and two indexes.

    00000000000000000042.log        batches, one after the other, nothing else
    00000000000000000042.index      see index.py
    00000000000000000042.timeindex

Only the log that owns it appends.  Readers hold a :class:`FileRange`, which keeps the
descriptor open: a segment may be deleted under a reader and the read still ends well.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

from tidelog.log.index import OffsetIndex, TimeIndex
from tidelog.wire.batch import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader

_SCAN = 16 * 1024


class LogFile:
    """An open file that closes when the last holder lets go."""

    __slots__ = ("_map", "fd", "path")

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
        self._map: mmap.mmap | None = None

    def view(self, position: int, length: int) -> memoryview:
        """A view of the page cache; the map grows with the file."""
        if self._map is None or len(self._map) < position + length:
            self._map = mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)[position : position + length]

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class FileRange:
    """Records of one partition, still in their file."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: LogFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        return os.pread(self.file.fd, self.length, self.position)


class Segment:
    """One file of the log; see the module."""

    def __init__(self, directory: str, base_offset: int, *, create: bool = False) -> None:
        self.directory = directory
        self.base_offset = base_offset
        stem = os.path.join(directory, f"{base_offset:020d}")
        self.path = stem + ".log"
        self._file: LogFile | None = LogFile(self.path, create=True) if create else None
        self.size = 0 if create else os.stat(self.path).st_size
        self.offset_index = OffsetIndex(stem + ".index", base_offset)
        self.time_index = TimeIndex(stem + ".timeindex", base_offset)
        if create:
            # A leftover of a deleted log must not speak for a new file.
            self.offset_index.reset()
            self.time_index.reset()
        self._max_timestamp: tuple[int, int] | None = (-1, base_offset) if create else None
        self.first_timestamp: int | None = None
        self.created_ms = 0
        self._bytes_since_entry = 0
        self.index_entries = 0  # of the active segment; a full index rolls it

    @property
    def file(self) -> LogFile:
        """The data file, opened on first use."""
        if self._file is None:
            self._file = LogFile(self.path)
        return self._file

    # -- writing ----------------------------------------------------------------

    def append(
        self,
        batch: memoryview | bytes | bytearray,
        last_offset: int,
        max_timestamp: int,
        interval: int,
    ) -> None:
        """Write one placed batch.  An error leaves the segment as it was."""
        size, position = len(batch), self.size
        written = os.pwrite(self.file.fd, batch, position)
        if written != size:
            self._undo(position)
            raise OSError(28, "the disk is full", self.path)
        self.note(position, size, last_offset, max_timestamp, interval)

    def _undo(self, position: int) -> None:
        """Take back a torn write, so that the file ends with a whole batch."""
        os.ftruncate(self.file.fd, position)

    def note(
        self, position: int, size: int, last_offset: int, max_timestamp: int, interval: int
    ) -> None:
        """Index a batch that is in the file (just written, or found by recovery)."""
        newest = self._max_timestamp or self.max_timestamp
        if max_timestamp > newest[0]:
            self._max_timestamp = newest = (max_timestamp, last_offset)
        if self._bytes_since_entry > interval:
            self.offset_index.add(last_offset, position)
            self.time_index.add(*newest)
            self._bytes_since_entry = 0
            self.index_entries += 1
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        self._bytes_since_entry += size
        self.size = position + size

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The newest time in the segment and the last offset of the batch that has it."""
        if self._max_timestamp is None:
            self._max_timestamp = self.time_index.last()
        return self._max_timestamp

    def newest_ms(self) -> int:
        """What retention by time goes by: the newest record, else the file's own time."""
        timestamp = self.max_timestamp[0]
        return timestamp if timestamp >= 0 else os.stat(self.path).st_mtime_ns // 1_000_000

    def oldest_ms(self) -> int | None:
        """The time of the first batch, once known; rolling by age goes by it."""
        if self.first_timestamp is None and self.size >= HEADER_SIZE:
            self.first_timestamp = BatchHeader(
                *HEADER.unpack(os.pread(self.file.fd, HEADER_SIZE, 0))
            ).max_timestamp
        return self.first_timestamp

    def close_for_writing(self) -> None:
        """The segment is full: complete the time index and let both files be whole."""
        self.time_index.add(*self.max_timestamp)
        self.flush_indexes()

    def flush_indexes(self) -> None:
        self.offset_index.flush()
        self.time_index.flush()

    # -- reading ----------------------------------------------------------------

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers from ``position`` to the end; stops at a torn one."""
        fd, size, unpack = self.file.fd, self.size, HEADER.unpack_from
        chunk, start = b"", position
        while position + HEADER_SIZE <= size:
            local = position - start
            if local + HEADER_SIZE > len(chunk):
                chunk, start, local = os.pread(fd, _SCAN, position), position, 0
                if len(chunk) < HEADER_SIZE:
                    return
            header = BatchHeader(*unpack(chunk, local))
            end = position + header.length + LENGTH_OVERHEAD
            if header.magic != MAGIC or header.length + LENGTH_OVERHEAD < HEADER_SIZE or end > size:
                return
            yield position, header
            position = end

    def locate(self, offset: int) -> tuple[int, int] | None:
        """Position and size of the first batch that ends at ``offset`` or later."""
        start = self.offset_index.lookup(offset)
        first = True
        for position, header in self.headers(start):
            if (
                first
                and start
                and (header.base_offset > offset or header.base_offset < self.base_offset)
            ):
                break
            first = False
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header.length + LENGTH_OVERHEAD
        if first and start and start < self.size:
            self.rebuild_index()
            return self.locate(offset)
        return None

    def rebuild_index(self, interval: int = 4096) -> None:
        """Make both indexes anew from the batches."""
        self.offset_index.reset()
        self.time_index.reset()
        self._max_timestamp, self._bytes_since_entry = (-1, self.base_offset), 0
        size = self.size
        for position, header in self.headers():
            self.note(
                position,
                header.length + LENGTH_OVERHEAD,
                header.base_offset + header.last_offset_delta,
                header.max_timestamp,
                interval,
            )
        self.size = size

    # -- cutting and deleting ---------------------------------------------------

    def truncate(self, offset: int, position: int) -> None:
        """Cut the file at ``position``, the start of the batch with ``offset``."""
        os.ftruncate(self.file.fd, position)
        self.size = position
        self.offset_index.truncate(offset, position)
        self.time_index.truncate(offset)
        self._max_timestamp = self.time_index.last()
        _, start = self.offset_index.last()
        for _, header in self.headers(start):
            if header.max_timestamp > self._max_timestamp[0]:
                self._max_timestamp = (header.max_timestamp, header.last_offset)
        self._bytes_since_entry = position - start
        self.file._map = None

    @property
    def files(self) -> list[str]:
        """Every file of this segment that may be on disk."""
        stem = self.path[: -len(".log")]
        suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
        return [stem + suffix for suffix in suffixes]

    def rename_deleted(self) -> list[str]:
        """Give the files their ``.deleted`` names; returns what is to be removed later."""
        renamed = []
        for path in self.files:
            try:
                os.rename(path, path + ".deleted")
                renamed.append(path + ".deleted")
            except FileNotFoundError:
                continue
        return renamed
