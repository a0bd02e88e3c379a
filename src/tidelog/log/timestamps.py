"""Records by time: the first at or after a timestamp, and the newest.

The index and the headers lead to one batch, seldom to a second; only in there records are looked
at.  A batch may take long to open, so the searches are generators: they yield what is to be looked
at as a :class:`Look`, and are sent what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.segment import FileRange, Segment
from tidelog.wire.batch import BatchHeader
from tidelog.wire.records import first_since, newest_since

if TYPE_CHECKING:
    from tidelog.log.log import Log

Found = tuple[int, int] | None  # time and offset of a record


class Look(NamedTuple):
    """A batch, and the function that looks for a record in it."""

    header: BatchHeader
    function: Callable[..., Found]
    args: tuple[bytes | int, ...]


Search = Generator[Look, Found, Found]


def run(search: Search) -> Found:
    """Do all of a search at once."""
    try:
        look = next(search)
        while True:
            look = search.send(look.function(*look.args))
    except StopIteration as done:
        found: Found = done.value
        return found


def search(log: Log, timestamp: int, end: int) -> Search:
    """The first record at or after a time, below the offset ``end``."""
    for segment in log.segments:
        if segment.max_timestamp[0] < timestamp or segment.size == 0:
            continue
        start = max(segment.first_offset_at(timestamp), log.log_start_offset)
        located = segment.locate(start)
        if located is None:
            continue
        for position, header in segment.headers(located[0]):
            if header.base_offset >= end:
                return None
            if header.max_timestamp < timestamp:
                continue
            batch = FileRange(segment.file, position, header.size).read()
            found = yield Look(header, first_since, (batch, timestamp, log.log_start_offset))
            if found is not None:
                return found if found[1] < end else None
    return None


def search_newest(log: Log) -> Search:
    """The record with the largest timestamp."""
    best: Found = None
    for segment in log.segments:
        timestamp, offset = segment.max_timestamp
        if timestamp < 0 or (best is not None and timestamp <= best[0]):
            continue
        found = yield from search(log, timestamp, offset + 1)
        if found is None:
            found = yield from _search_newest_left(log, segment)  # its newest is deleted
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best


def _search_newest_left(log: Log, segment: Segment) -> Search:
    """The newest record of a segment of which the beginning is deleted."""
    best = (-1, -1)
    start = segment.locate(log.log_start_offset)
    for position, header in segment.headers(start[0]) if start else ():
        if header.max_timestamp > best[0]:
            batch = FileRange(segment.file, position, header.size).read()
            newest = yield Look(header, newest_since, (batch, log.log_start_offset))
            if newest is not None and newest[0] > best[0]:
                best = newest
    return best if best[0] >= 0 else None
