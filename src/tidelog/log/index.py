"""The two indexes of a segment: sparse, sorted, and never trusted.

    .index      8-byte entries: int32 offset - base, int32 file position
    .timeindex 12-byte entries: int64 timestamp, int32 offset - base

An offset entry names the *last* offset of the batch that starts at its position; a
time entry says "no record up to this offset is newer".  Only the log writes them.
An index is a hint: a reader that follows it checks the batch it finds, and rebuilds
the index from the log when they disagree.

The entries of the active segment live in memory and reach the file when the segment
is flushed, rolled or closed.  (Kafka maps a preallocated file instead; with a full
disk a store to such a map kills the process.  What a crash loses here, recovery
rebuilds.)  Closed segments map their file, on first use.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING

from tidelog import files

if TYPE_CHECKING:
    import mmap

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class _Index:
    """What both indexes share: entries of one size, in memory or in a mapped file."""

    entry = _OFFSET_ENTRY

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._data: bytearray | mmap.mmap | bytes | None = None
        self._written = 0  # bytes of _data that are in the file

    @property
    def data(self) -> bytearray | mmap.mmap | bytes:
        """The entries; maps the file on first use."""
        if self._data is None:
            self._data = self._map()
        return self._data

    def _map(self) -> bytearray | mmap.mmap | bytes:
        try:
            fd = files.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return bytearray()
        try:
            size = files.fstat(fd).st_size
            whole = size - size % self.entry.size
            self._written = size if whole == size else -1  # a torn entry: rewrite the file
            return files.map_file(fd, whole) if whole else bytearray()
        finally:
            files.close(fd)

    def __len__(self) -> int:
        return len(self.data) // self.entry.size

    def make_writable(self) -> None:
        """Bring the entries into memory: the segment is the active one again."""
        if not isinstance(self.data, bytearray):
            self._data = bytearray(self.data)

    def release(self) -> None:
        """Let go of the entries of a closed segment; the next use maps the file."""
        if self.written:
            self._data = None

    def move_to(self, directory: str, *, active: bool) -> None:
        """The segment is in another directory by now, where its file is a copy, or is not yet."""
        self.path = os.path.join(directory, os.path.basename(self.path))
        if isinstance(self._data, bytearray) and (active or self._written != len(self._data)):
            self._written = -1
        else:
            self._data = None

    def reset(self) -> None:
        """Forget every entry; the next flush rewrites the file."""
        self._data = bytearray()
        self._written = -1

    def _append(self, *values: int) -> None:
        data = self.data
        assert isinstance(data, bytearray)
        data += self.entry.pack(*values)

    def _keep(self, count: int) -> None:
        """Drop all but the first ``count`` entries."""
        self.make_writable()
        data = self.data
        assert isinstance(data, bytearray)
        if count * self.entry.size < len(data):
            del data[count * self.entry.size :]
            self._written = -1

    def _floor(self, field: int, target: int) -> int:
        """The last entry whose ``field`` is at most ``target``, or -1."""
        data, unpack, size = self.data, self.entry.unpack_from, self.entry.size
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * size)[field] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    @property
    def written(self) -> bool:
        """Does the file have all entries?"""
        return not isinstance(self._data, bytearray) or self._written == len(self._data)

    def flush(self) -> None:
        """Write what the file lacks.  On an error nothing changes: it is tried again."""
        data = self._data
        if not isinstance(data, bytearray) or self.written:
            return
        rewrite = self._written < 0
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if rewrite else 0)
        start = 0 if rewrite else self._written
        fd = files.open(self.path, flags, 0o644)
        try:
            with memoryview(data)[start:] as missing:
                written = files.pwrite(fd, missing, start) if missing else 0
            if written != len(data) - start:
                self._written = -1
                raise OSError(errno.ENOSPC, "no room for the index", self.path)
        finally:
            files.close(fd)
        self._written = len(data)


class OffsetIndex(_Index):
    """From an offset to a position at or before it."""

    entry = _OFFSET_ENTRY

    def add(self, last_offset: int, position: int) -> None:
        self._append(last_offset - self.base_offset, position)

    def lookup(self, offset: int) -> int:
        """A position from which a scan finds ``offset``."""
        found = self._floor(0, offset - self.base_offset)
        if found < 0:
            return 0
        position: int = self.entry.unpack_from(self.data, found * self.entry.size)[1]
        return position

    def last(self) -> tuple[int, int]:
        """Offset and position of the last entry; the start of the segment if empty."""
        if not len(self):
            return self.base_offset, 0
        relative, position = self.entry.unpack_from(self.data, (len(self) - 1) * self.entry.size)
        return self.base_offset + relative, position

    def offset_of_last(self, count: int) -> int:
        """The offset that the entry ``count`` from the end has; the first if there are fewer."""
        if len(self) < count:
            return self.base_offset
        at = (len(self) - count) * self.entry.size
        return self.base_offset + int(self.entry.unpack_from(self.data, at)[0])

    def first_from(self, position: int) -> tuple[int, int] | None:
        """Offset and position of the first entry at ``position`` or later."""
        at = (self._floor(1, position - 1) + 1) * self.entry.size
        if at == len(self.data):
            return None
        relative, found = self.entry.unpack_from(self.data, at)
        return self.base_offset + relative, found

    def truncate(self, offset: int, position: int) -> None:
        """Keep the entries below ``offset`` that point before ``position``."""
        keep = self._floor(0, offset - self.base_offset - 1) + 1
        self._keep(min(keep, self._floor(1, position - 1) + 1))


class TimeIndex(_Index):
    """From a time to an offset at or before the first record that new."""

    entry = _TIME_ENTRY

    def add(self, timestamp: int, offset: int) -> None:
        """Only a newer time is worth an entry."""
        if timestamp > self.last()[0]:
            self._append(timestamp, offset - self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry that is older: a scan from its offset finds the first record of
        that time or later.  (-1, base) if there is none."""
        return self._entry(self._floor(0, timestamp - 1))

    def last(self) -> tuple[int, int]:
        """The newest time and the offset that has it; (-1, base) if empty."""
        return self._entry(len(self) - 1)

    def _entry(self, i: int) -> tuple[int, int]:
        if i < 0:
            return -1, self.base_offset
        timestamp, relative = self.entry.unpack_from(self.data, i * self.entry.size)
        return timestamp, self.base_offset + relative

    def truncate(self, offset: int) -> None:
        """Keep the entries below ``offset``."""
        self._keep(self._floor(1, offset - self.base_offset - 1) + 1)
