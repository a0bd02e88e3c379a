"""After a crash: keep every valid batch up to the first one that is not.

A clean stop leaves a mark, and then nothing here runs but a look at the tail.  After
an unclean one, each segment that reaches past the recovery point is read from its
start: magic, length, CRC and offsets of every batch.  At the first batch that fails
(a cut tail or a block of garbage) the file is cut, and the segments after it go.
Both indexes and the producers' state are made anew from what stands.
"""

from __future__ import annotations

import logging
import mmap
import os
from dataclasses import dataclass

from tidelog.log.producer_state import ProducerState
from tidelog.log.segment import Segment
from tidelog.wire.batch import HEADER, HEADER_SIZE, BatchHeader, is_valid

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a segment turned out to hold."""

    next_offset: int
    cut_bytes: int
    reason: str


def recover_segment(
    segment: Segment, expected_offset: int, interval: int, limit: int | None
) -> Recovered:
    """Check every batch, rebuild the indexes, cut what is damaged.

    ``limit`` is the first offset of the next segment, if there is one.
    """
    on_disk = os.stat(segment.path).st_size
    segment.size = on_disk
    segment.clear_index()
    if limit is None:
        limit = segment.base_offset + 0x80000000  # offsets in the indexes have 32 bits

    position, next_offset, reason = 0, max(expected_offset, segment.base_offset), ""
    if on_disk:
        with mmap.mmap(segment.file.fd, on_disk, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                while position < on_disk:
                    reason = fault(view, position, next_offset)
                    reason = reason or _misplaced(view, position, next_offset, limit)
                    if reason:
                        break
                    header = BatchHeader(*HEADER.unpack_from(view, position))
                    last = header.last_offset
                    segment.note(position, header.size, last, header.max_timestamp, interval)
                    position += header.size
                    next_offset = last + 1
            finally:
                view.release()
    if position < on_disk:
        os.ftruncate(segment.file.fd, position)
    segment.size = position
    return Recovered(next_offset, on_disk - position, reason)


def fault(view: memoryview, position: int, next_offset: int) -> str:
    """Why the batch at ``position`` cannot stand; empty if it can."""
    left = len(view) - position
    if left < HEADER_SIZE:
        return f"{left} bytes are no batch header"
    header = BatchHeader(*HEADER.unpack_from(view, position))
    if header.size < HEADER_SIZE or header.size > left:
        return f"a batch of {header.size} bytes does not fit into the {left} that are left"
    with view[position : position + header.size] as batch:
        if not is_valid(batch):
            return "a batch does not match its CRC"
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} comes after {next_offset - 1}"
    return ""


def _misplaced(view: memoryview, position: int, next_offset: int, limit: int) -> str:
    """The base offset is not under the CRC.  A gap before a batch is legal (compaction
    leaves gaps), but not one that the batch after it denies."""
    header = BatchHeader(*HEADER.unpack_from(view, position))
    if header.last_offset >= limit:
        return f"offset {header.last_offset} lies beyond the segment"
    follower = position + header.size
    if header.base_offset > next_offset and len(view) - follower >= HEADER_SIZE:
        expected = next_offset + header.last_offset_delta + 1
        if BatchHeader(*HEADER.unpack_from(view, follower)).base_offset == expected:
            return f"offset {header.base_offset} stands where {next_offset} belongs"
    return ""


def replay_producers(segments: list[Segment], state: ProducerState, start: int) -> None:
    """Bring the producers' state from ``start`` to the end by reading headers."""
    for i, segment in enumerate(segments):
        if i + 1 < len(segments) and segments[i + 1].base_offset <= start:
            continue
        found = segment.locate(start) if start > segment.base_offset else (0, 0)
        if found is None:
            continue
        for _, header in segment.headers(found[0]):
            if header.producer_id >= 0 and header.last_offset >= start:
                state.update(header, header.base_offset)
