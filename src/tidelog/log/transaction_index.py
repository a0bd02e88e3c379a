"""The aborted transactions of a segment, for readers that want committed records only.

    .txnindex  34-byte entries: int16 version = 0, int64 producer id, int64 first offset,
               int64 offset of the abort marker, int64 last stable offset at that time

An entry is in the segment that holds the marker, so entries are sorted by marker.  The last
stable offset never falls: once an entry's is past what a reader wants, no later entry
matters to it.  A segment without aborted transactions has no file.

It is written as the other two indexes are (see index.py), and it can be rebuilt from the
log, given which transactions were open where the segment begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.files import remove
from tidelog.log.index import _Index

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_MARKER = 3  # the field that the entries are sorted by


class Aborted(NamedTuple):
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


class TransactionIndex(_Index):
    """See the module."""

    entry = _ENTRY

    def add(self, aborted: Aborted) -> None:
        self._append(_VERSION, *aborted)

    def entries(self, start: int = 0) -> Iterator[Aborted]:
        """All whose marker is at ``start`` or later."""
        data, size = self.data, _ENTRY.size
        for i in range(self._floor(_MARKER, start - 1) + 1, len(data) // size):
            yield Aborted(*_ENTRY.unpack_from(data, i * size)[1:])

    def collect(self, start: int, end: int, found: list[Aborted]) -> bool:
        """Add those that touch the offsets from ``start`` to before ``end``; True if no
        later segment can have more."""
        for aborted in self.entries(start):
            if aborted.first_offset < end:
                found.append(aborted)
            if aborted.last_stable_offset >= end:
                return True
        return False

    def truncate(self, offset: int) -> None:
        """Keep the transactions that ended before ``offset``."""
        if len(self):
            self._keep(self._floor(_MARKER, offset - 1) + 1)

    def flush(self) -> None:
        """Write what the file lacks; without entries there is no file."""
        if self._written < 0 and not self._data:
            remove(self.path)
            self._written = 0
        else:
            super().flush()


def fault(content: bytes, base_offset: int, end: int) -> str:
    """What cannot be in the index of a segment that ends before ``end``; empty if all can."""
    if len(content) % _ENTRY.size:
        return f"{len(content)} bytes are not a multiple of {_ENTRY.size}"
    before = base_offset - 1
    for number, entry in enumerate(_ENTRY.iter_unpack(content)):
        version, producer_id, first, marker, stable = entry
        if version != _VERSION:
            return f"entry {number} has version {version}"
        if not before < marker < end:
            return f"entry {number} has its marker at offset {marker}"
        if producer_id < 0 or not 0 <= first < marker or not 0 <= stable <= marker + 1:
            return f"entry {number} makes no sense"
        before = marker
    return ""
