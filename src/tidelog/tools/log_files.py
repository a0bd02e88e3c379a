"""Log files as they are on disk, read only: for ``tidelog log dump`` and ``log check``.

Nothing here opens a file for writing or takes a lock, so it is safe beside a running
broker.  The judgement of a batch is that of recovery (:func:`tidelog.log.recovery.fault`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.log.recovery import fault
from tidelog.wire.batch import HEADER_SIZE, MAGIC, BatchHeader, read_header

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_SEGMENT = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")
_PARTITION = re.compile(r"(.+)-(\d+)")

Entry = tuple[int, int]


class FoundBatch(NamedTuple):
    """A batch in a file, or the place where there should be one; ``fault`` says what is wrong."""

    position: int
    header: BatchHeader | None
    data: memoryview
    fault: str
    structural: bool  # the header itself cannot be right: nothing after it can be found


def segment_name(path: str) -> tuple[int, str] | None:
    """Base offset and kind of a segment's file, by its name."""
    match = _SEGMENT.fullmatch(os.path.basename(path))
    return (int(match[1]), match[2]) if match else None


def partition_name(path: str) -> tuple[str, int] | None:
    """Topic and partition of a directory, by its name."""
    match = _PARTITION.fullmatch(os.path.basename(os.path.abspath(path)))
    return (match[1], int(match[2])) if match else None


def is_partition(path: str) -> bool:
    """Is this the directory of a partition (and not a whole data directory)?"""
    return os.path.isdir(path) and any(
        name.endswith(".log") and segment_name(name) for name in os.listdir(path)
    )


def segments_of(directory: str) -> list[int]:
    """The base offsets of a partition's segments, in order."""
    found = (segment_name(name) for name in os.listdir(directory))
    return sorted(base for base, kind in filter(None, found) if kind == "log")


def walk_batches(path: str, expected: int, start: int = 0) -> Iterator[FoundBatch]:
    """Every batch from position ``start`` on.  Goes on after one that fails its CRC, and
    stops at one whose header cannot be right."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= start:
            return
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                yield from _walk(view, expected, start)
            finally:
                # A caller that keeps a batch keeps the map, too; it is closed with the batch.
                with contextlib.suppress(BufferError):
                    view.release()


def _walk(view: memoryview, expected: int, position: int) -> Iterator[FoundBatch]:
    while position < len(view):
        reason = fault(view, position, expected)
        left = len(view) - position
        header = read_header(view, position) if left >= HEADER_SIZE else None
        structural = (
            header is None or header.magic != MAGIC or not HEADER_SIZE <= header.size <= left
        )
        if header is not None and not structural:
            batch = view[position : position + header.size]
        else:
            batch = view[position:position]
        with batch:
            yield FoundBatch(position, header, batch, reason, structural)
        if structural or header is None:
            return
        position += header.size
        expected = max(expected, header.last_offset + 1)


def read_offset_index(path: str, base: int) -> list[Entry]:
    """Entries ``(offset, position)``; ValueError if the file is not whole."""
    return [(base + offset, position) for offset, position in _entries(path, _OFFSET_ENTRY)]


def read_time_index(path: str, base: int) -> list[Entry]:
    """Entries ``(timestamp, offset)``; ValueError if the file is not whole."""
    return [(timestamp, base + offset) for timestamp, offset in _entries(path, _TIME_ENTRY)]


def _entries(path: str, entry: struct.Struct) -> list[Entry]:
    with open(path, "rb") as file:
        data = file.read()
    # Kafka gives the index of an active segment its full size, filled with zeros.
    whole = len(data) - len(data) % entry.size
    if whole != len(data):
        raise ValueError(f"{len(data)} bytes are not a multiple of {entry.size}")
    found = [(a, b) for a, b in entry.iter_unpack(data)]
    while len(found) > 1 and found[-1] == (0, 0):
        found.pop()
    return [] if found == [(0, 0)] else found


def lock_owner(directory: str) -> bool:
    """Does a broker hold this data directory?  Asked of the system, without a lock."""
    try:
        inode = os.stat(os.path.join(directory, ".lock")).st_ino
        with open("/proc/locks", encoding="ascii") as file:
            return any("FLOCK" in line and f":{inode} " in line for line in file)
    except OSError:
        return False
