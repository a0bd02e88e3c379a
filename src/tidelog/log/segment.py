"""One segment: a file of whole batches, named by its first offset, and its indexes.

    00000000000000000042.log        batches, one after the other, nothing else
    00000000000000000042.index      see index.py
    00000000000000000042.timeindex
    00000000000000000042.txnindex   see transaction_index.py; only if there is anything in it

Only the log that owns it appends.  Readers hold a :class:`FileRange`, which keeps the
descriptor open: a segment may be deleted under a reader and the read still ends well.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakSet

from tidelog import files
from tidelog.log.index import OffsetIndex, TimeIndex
from tidelog.log.transaction_index import TransactionIndex
from tidelog.wire.batch import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader

if TYPE_CHECKING:
    import mmap

_SCAN = 16 * 1024
MAX_RELATIVE = 0x7FFFFFFF  # offsets in the indexes have 31 bits

log = logging.getLogger(__name__)


class LogFile:
    """An open file that closes when the last holder lets go."""

    __slots__ = ("__weakref__", "_map", "fd", "path")

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = path
        self.fd = files.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
        self._map: mmap.mmap | bytes | None = None

    def view(self, position: int, length: int) -> memoryview:
        """A view of the page cache; the map grows with the file."""
        if self._map is None or len(self._map) < position + length:
            try:
                self._map = files.map_file(self.fd)
            except OSError:
                # A file system that has turned read-only maps no file that is open for writing.
                return memoryview(files.pread(self.fd, length, position))
            _mapped.add(self)
        return memoryview(self._map)[position : position + length]

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            files.close(self.fd)


_mapped: WeakSet[LogFile] = WeakSet()


def let_go_of_maps() -> None:
    """Unmap the files that were mapped for readers; those that are still read map them again.

    Every page that was ever sent counts as resident memory of the process while it is mapped: a
    gigabyte after consumers on this machine have read a gigabyte.
    """
    for file in list(_mapped):
        file._map = None  # views that are on their way to a socket keep theirs
    _mapped.clear()


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
        return files.pread(self.file.fd, self.length, self.position)


class Segment:
    """One file of the log; see the module."""

    def __init__(
        self, directory: str, base_offset: int, *, create: bool = False, suffix: str = ""
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        stem = os.path.join(directory, f"{base_offset:020d}")
        self.path = stem + ".log" + suffix  # a copy that compaction makes has one
        self._file: LogFile | None = LogFile(self.path, create=True) if create else None
        self.size = 0 if create else files.size(self.path)
        self.offset_index = OffsetIndex(stem + ".index" + suffix, base_offset)
        self.time_index = TimeIndex(stem + ".timeindex" + suffix, base_offset)
        self.transaction_index = TransactionIndex(stem + ".txnindex" + suffix, base_offset)
        if create:
            # A leftover of a deleted log must not speak for a new file.
            self.offset_index.reset()
            self.time_index.reset()
            self.transaction_index.reset()
        self._max_timestamp: tuple[int, int] | None = (-1, base_offset) if create else None
        self.first_timestamp: int | None = None
        self.created_ms = 0
        self._bytes_since_entry = 0
        self.index_entries = 0  # of the active segment; a full index rolls it
        self.damage: int | None = None  # where the last whole scan met what is no batch

    @property
    def file(self) -> LogFile:
        """The data file, opened on first use."""
        if self._file is None:
            self._file = LogFile(self.path)
        return self._file

    def open_once(self) -> LogFile:
        """The data file for one use: it does not stay open if it was not."""
        return self._file or LogFile(self.path)

    def release(self) -> None:
        """Let go of descriptors and maps; the next use opens them again."""
        self._file = None
        self.offset_index.release()
        self.time_index.release()
        self.transaction_index.release()

    def move_to(self, directory: str, *, active: bool) -> None:
        """The files are copied to another directory: they are what is used from now on."""
        self.directory = directory
        self.path = os.path.join(directory, os.path.basename(self.path))
        self._file = None
        for index in (self.offset_index, self.time_index, self.transaction_index):
            index.move_to(directory, active=active)

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
        written = files.pwrite(self.file.fd, batch, position)
        if written != size:
            # Take the torn write back, so that the file ends with a whole batch.
            files.ftruncate(self.file.fd, position)
            raise OSError(errno.ENOSPC, "the disk is full", self.path)
        self.note(position, size, last_offset, max_timestamp, interval)

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
            # A closed segment; retention must not go by a damaged index.
            opened = self._file is not None
            newest = self.time_index.last()
            tail = (header.max_timestamp for _, header in self.headers(self.offset_index.last()[1]))
            if max(tail, default=-1) > newest[0] or not self.confirms(newest):
                self.rebuild_index()
            else:
                self._max_timestamp = newest
            if not opened:
                self.release()
        assert self._max_timestamp is not None
        return self._max_timestamp

    def confirms(self, entry: tuple[int, int]) -> bool:
        """Is this entry of the time index (or that it has none) borne out by the log?"""
        timestamp, offset = entry
        if timestamp < 0:
            oldest = self.oldest_ms()
            return oldest is None or oldest < 0
        found = self.locate(offset)
        return found is not None and self.header_at(found[0]).max_timestamp == timestamp

    def header_at(self, position: int) -> BatchHeader:
        data = files.pread(self.file.fd, HEADER_SIZE, position)
        if len(data) < HEADER_SIZE:
            raise OSError(5, "the segment is shorter than it was", self.path)
        return BatchHeader(*HEADER.unpack(data))

    def newest_ms(self) -> int:
        """What retention by time goes by: the newest record, else the file's own time."""
        timestamp = self.max_timestamp[0]
        return timestamp if timestamp >= 0 else files.modified_ms(self.path)

    def oldest_ms(self) -> int | None:
        """The time of the first batch, once known; rolling by age goes by it."""
        if self.first_timestamp is None and self.size >= HEADER_SIZE:
            self.first_timestamp = self.header_at(0).max_timestamp
        return self.first_timestamp

    def close_for_writing(self) -> None:
        """The segment is full: complete the time index and let both files be whole."""
        self.time_index.add(*self.max_timestamp)
        self.flush_indexes()

    @property
    def indexes_written(self) -> bool:
        """Do the files of the indexes have all entries?"""
        return (
            self.offset_index.written and self.time_index.written and self.transaction_index.written
        )

    def flush_indexes(self) -> None:
        self.offset_index.flush()
        self.time_index.flush()
        self.transaction_index.flush()

    # -- reading ----------------------------------------------------------------

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers from ``position`` to the end; stops at a torn one."""
        file, size, first, unpack = self.file, self.size, self.base_offset, HEADER.unpack_from
        chunk, start = b"", position
        while 0 <= position <= size - HEADER_SIZE:
            local = position - start
            if local + HEADER_SIZE > len(chunk):
                chunk, start, local = files.pread(file.fd, _SCAN, position), position, 0
                if len(chunk) < HEADER_SIZE:
                    break
            header = BatchHeader(*unpack(chunk, local))
            end = position + header.length + LENGTH_OVERHEAD
            if header.magic != MAGIC or end - position < HEADER_SIZE or end > size:
                break
            if not first <= header.base_offset <= header.last_offset <= first + MAX_RELATIVE:
                break
            yield position, header
            position = end
        self.damage = None if position == size else position

    def locate(self, offset: int) -> tuple[int, int] | None:
        """Position and size of the first batch that ends at ``offset`` or later."""
        start = self.offset_index.lookup(offset)
        confirmed = start == 0
        for position, header in self.headers(start):
            if not confirmed and not self.base_offset <= header.base_offset <= offset:
                break
            confirmed = True
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header.length + LENGTH_OVERHEAD
        if confirmed:
            return None
        self.rebuild_index()
        return self.locate(offset)

    def offset_after(self, position: int, end: int) -> int:
        """An offset that no record before ``position`` reaches: a near one by the index,
        or ``end``, that of the segment."""
        entry = self.offset_index.first_from(position)
        if entry is None or entry[1] + HEADER_SIZE > self.size:
            return end
        return entry[0] if self.header_at(entry[1]).last_offset == entry[0] else end

    def first_offset_at(self, timestamp: int) -> int:
        """An offset from which a scan finds the first record of that time or later."""
        entry = self.time_index.lookup(timestamp)
        if entry != (-1, self.base_offset) and not self.confirms(entry):
            self.rebuild_index()
            entry = self.time_index.lookup(timestamp)
        return entry[1]

    def clear_index(self) -> None:
        """Forget both indexes and all that goes with them; a scan is to follow."""
        self.offset_index.reset()
        self.time_index.reset()
        self._max_timestamp, self.first_timestamp = (-1, self.base_offset), None
        self._bytes_since_entry = self.index_entries = 0

    def rebuild_index(self, interval: int = 4096) -> None:
        """The indexes do not match the log: make both anew from the batches."""
        log.warning("%s: its indexes do not match; rebuilt", self.path)
        self.clear_index()
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
        with contextlib.suppress(OSError):  # in memory they serve as well
            self.close_for_writing()

    # -- cutting and deleting ---------------------------------------------------

    def truncate(self, offset: int) -> int:
        """Drop the batch that holds ``offset`` and all after it; returns the new end.

        The segment is the active one from here on.
        """
        found = self.locate(offset)
        position = self.size if found is None else found[0]
        files.ftruncate(self.file.fd, position)
        self.size = position
        self.file._map = None
        self.offset_index.truncate(offset, position)
        self.time_index.truncate(offset)
        self.transaction_index.truncate(offset)
        self.first_timestamp = None
        _, start = self.offset_index.last()
        end, newest = self.base_offset, self.time_index.last()
        for _, header in self.headers(start):
            end = header.last_offset + 1
            if header.max_timestamp > newest[0]:
                newest = (header.max_timestamp, header.last_offset)
        self._max_timestamp = newest
        self._bytes_since_entry = position - start
        self.index_entries = len(self.offset_index)
        return end

    @property
    def index_paths(self) -> list[str]:
        return [self.offset_index.path, self.time_index.path, self.transaction_index.path]

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
                files.rename(path, path + ".deleted")
                renamed.append(path + ".deleted")
            except FileNotFoundError:
                continue
        return renamed
