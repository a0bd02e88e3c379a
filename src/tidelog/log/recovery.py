"""After a crash: keep every valid batch up to the first one that is not.

A clean stop leaves a mark, and then nothing here runs but a look at the tail.  After
an unclean one, each segment that reaches past the recovery point is read from its
start: magic, length, CRC and offsets of every batch.  At the first batch that fails
(a cut tail or a block of garbage) the file is cut, and the segments after it go.
The indexes and the producers' state are rebuilt from what stands.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from crc32c import crc32c

from tidelog import files
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.log.producer_state import ProducerState, load_newest_snapshot
from tidelog.log.segment import MAX_RELATIVE, FileRange, LogFile, Segment
from tidelog.wire.batch import CONTROL, CRC_START, HEADER_SIZE, MAGIC, BatchHeader, read_header
from tidelog.wire.markers import read_marker

_WINDOW = 256 * 1024  # stays in a core's cache between the copy and the CRC
_LOOK_BACK = 512  # index entries: each is a batch, or 4 KiB of small ones

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a segment turned out to hold."""

    next_offset: int
    cut_bytes: int
    reason: str
    markers: bool  # control batches were met: there were transactions
    epochs: list[tuple[int, int]]  # leader epochs, and the offset where each begins


def recover_segment(
    segment: Segment, expected_offset: int, interval: int, limit: int | None
) -> Recovered:
    """Check every batch, rebuild the indexes, cut what is damaged.

    ``limit`` is the first offset of the next segment, if there is one.
    """
    on_disk = files.size(segment.path)
    segment.size = on_disk
    segment.clear_index()
    if limit is None:
        limit = segment.base_offset + MAX_RELATIVE + 1

    position, next_offset, reason = 0, max(expected_offset, segment.base_offset), ""
    markers = 0
    epochs = LeaderEpochs()
    reader = _Reader(segment.file, on_disk)
    while position < on_disk:
        left = on_disk - position
        if left < HEADER_SIZE:
            reason = _no_header(left)
            break
        header = reader.header(position)
        crc_of = partial(reader.checksum, position + CRC_START, position + header.size)
        reason = _fault(header, left, next_offset, crc_of)
        if not reason and header.last_offset >= limit:
            reason = f"offset {header.last_offset} lies beyond the segment"
        if not reason and header.base_offset > next_offset and left >= header.size + HEADER_SIZE:
            follower = segment.header_at(position + header.size)
            reason = _misplaced(header, follower, next_offset)
        if reason:
            break
        last = header.last_offset
        markers |= header.attributes & CONTROL
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)
        segment.note(position, header.size, last, header.max_timestamp, interval)
        position += header.size
        next_offset = last + 1
    if position < on_disk:
        files.ftruncate(segment.file.fd, position)
    segment.size = position
    return Recovered(next_offset, on_disk - position, reason, bool(markers), epochs.entries)


class _Reader:
    """A file from its start to its end, a window at a time.

    Not a map: a sector that cannot be read, or a file that another process shortens meanwhile,
    is an error here.  A map raises SIGBUS, and the broker is gone.
    """

    def __init__(self, file: LogFile, size: int) -> None:
        self._file = file
        self._size = size
        self._buffer = memoryview(bytearray(min(size, _WINDOW)))
        self._start = self._end = 0  # what of the file is in the buffer

    def _read(self, position: int) -> None:
        """Let the window begin at ``position``."""
        wanted = min(len(self._buffer), self._size - position)
        self._start = self._end = position
        while self._end - position < wanted:
            room = self._buffer[self._end - position : wanted]
            try:
                count = files.preadv(self._file.fd, [room], self._end)
            except OSError as error:
                message = f"{error.strerror} at byte {self._end}"
                raise OSError(error.errno, message, self._file.path) from error
            if count == 0:
                raise OSError(errno.EIO, "the segment is shorter than it was", self._file.path)
            self._end += count

    def header(self, position: int) -> BatchHeader:
        if position < self._start or position + HEADER_SIZE > self._end:
            self._read(position)
        return read_header(self._buffer, position - self._start)

    def checksum(self, position: int, end: int) -> int:
        """The CRC-32C of the bytes in between: a batch may be larger than the window."""
        crc = 0
        while position < end:
            if position >= self._end:
                self._read(position)
            part = self._buffer[position - self._start : min(end, self._end) - self._start]
            crc = crc32c(part, crc)
            position += len(part)
        return crc


def fault(view: memoryview, position: int, next_offset: int) -> str:
    """Why the batch at ``position`` of a whole file cannot stand; empty if it can."""
    left = len(view) - position
    if left < HEADER_SIZE:
        return _no_header(left)
    header = read_header(view, position)

    def crc_of() -> int:
        with view[position + CRC_START : position + header.size] as covered:
            return crc32c(covered)

    return _fault(header, left, next_offset, crc_of)


def _no_header(left: int) -> str:
    return f"{left} bytes are no batch header"


def _fault(header: BatchHeader, left: int, next_offset: int, crc_of: Callable[[], int]) -> str:
    if header.size < HEADER_SIZE or header.size > left:
        return f"a batch of {header.size} bytes does not fit into the {left} that are left"
    plausible = header.magic == MAGIC and header.last_offset_delta >= 0 <= header.base_offset
    if not plausible or crc_of() != header.crc:
        return "a batch does not match its CRC"
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} comes after {next_offset - 1}"
    return ""


def _misplaced(header: BatchHeader, follower: BatchHeader, next_offset: int) -> str:
    """The base offset is not under the CRC.  A gap before a batch is legal (compaction
    leaves gaps), but not one that the batch after it denies."""
    if follower.base_offset == next_offset + header.last_offset_delta + 1:
        return f"offset {header.base_offset} stands where {next_offset} belongs"
    return ""


def recall_batches(segments: list[Segment], state: ProducerState, end: int) -> None:
    """Find the batches before the last one of each producer in a snapshot of ``end``.

    A snapshot has room for one.  But a producer has up to five on their way, and after a
    crash it sends all of them again: those that are in the log must be known for what they
    are.  They are near the end, so only that far is looked back.
    """
    if not any(producer.batches for producer in state.producers.values()):
        return
    recalled = ProducerState()
    for segment, start in _looking_back(segments, end):
        found = segment.locate(start)
        for _, header in segment.headers(found[0]) if found else ():
            if header.base_offset >= end:
                break
            if header.producer_id in state.producers:
                recalled.update(header, header.base_offset)
        if segment is not segments[-1]:
            segment.release()
    for producer_id, producer in recalled.producers.items():
        known = state.producers[producer_id]
        last = producer.batches[-1:]
        if known.epoch == producer.epoch and last == known.batches and last:
            known.batches = producer.batches


def _looking_back(segments: list[Segment], end: int) -> list[tuple[Segment, int]]:
    """The segments before ``end`` that are looked into, oldest first, and from which offset."""
    chosen: list[tuple[Segment, int]] = []
    left = _LOOK_BACK
    for segment in reversed(segments):
        if segment.base_offset < end and left > 0:
            chosen.insert(0, (segment, segment.offset_index.offset_of_last(left)))
            left -= len(segment.offset_index) + 1
    return chosen


def rebuild_transaction_indexes(
    directory: str, segments: list[Segment], chosen: list[Segment]
) -> None:
    """Make the transaction indexes of the chosen segments anew from the batches.

    A transaction may have begun in a segment before them: hence the snapshot.
    """
    for segment in chosen:
        segment.transaction_index.reset()
    start, state = load_newest_snapshot(directory, chosen[0].base_offset, keep_newer=True)
    known = segments[: segments.index(chosen[-1]) + 1]
    replay_producers(known, state, max(start, segments[0].base_offset), chosen)
    for segment in chosen:
        segment.transaction_index.flush()


def replay_producers(
    segments: list[Segment], state: ProducerState, start: int, indexed: Sequence[Segment] = ()
) -> None:
    """Bring the producers' state from ``start`` to the end by reading headers.

    Aborted transactions are added to the indexes of the segments in ``indexed``.
    """
    for i, segment in enumerate(segments):
        if i + 1 < len(segments) and segments[i + 1].base_offset <= start:
            continue
        found = segment.locate(start) if start > segment.base_offset else (0, 0)
        if found is None:
            continue
        for position, header in segment.headers(found[0]):
            if header.producer_id < 0 or header.last_offset < start:
                continue
            marker = None
            if header.attributes & CONTROL:
                marker = read_marker(FileRange(segment.file, position, header.size).read())
            if marker is None:
                state.update(header, header.base_offset)
                continue
            aborted = state.end_transaction(header, marker, header.base_offset)
            if aborted is not None and segment in indexed:
                segment.transaction_index.add(aborted)
