"""One segment under check: its batches, and its two indexes against them.

What recovery would do about damage depends on how the last stop was: after a clean one only
the tail of the newest segment is looked at; after a crash, every segment that reaches past
the recovery point (see ``tidelog/log/opening.py``).
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidelog.errors import ApiError
from tidelog.log import checkpoints
from tidelog.log.checkpoints import PartitionKey
from tidelog.log.manager import CLEAN_MARK
from tidelog.text import plural
from tidelog.tools.log_files import (
    Entry,
    FoundBatch,
    partition_name,
    read_offset_index,
    read_time_index,
    segments_of,
    walk_batches,
)
from tidelog.wire.batch import CONTROL
from tidelog.wire.records import decode_batch

_REBUILT = "nothing is lost: the broker rebuilds it from the log when it leads astray"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    file: str
    problem: str
    recovery: str
    position: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class LogReport:
    """What was looked at, and what is wrong with it."""

    directory: str
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class DataDirectory:
    """What the files beside the partitions say."""

    path: str
    clean: bool = False
    running: bool = False
    offsets: dict[str, dict[PartitionKey, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def offset(self, name: str, key: PartitionKey | None) -> int | None:
        return self.offsets.get(name, {}).get(key) if key else None


class SegmentCheck:
    """The segments of one partition while they are checked."""

    def __init__(self, directory: str, data: DataDirectory, deep: bool) -> None:
        self._directory = directory
        self._data = data
        self._deep = deep
        self._key = partition_name(directory)
        self._bases = segments_of(directory)
        self.report = LogReport(directory, len(self._bases), start_offset=self._bases[0])

    def run(self) -> LogReport:
        """Check them all; the report has the log's end, too."""
        expected = self._bases[0]
        for i, base in enumerate(self._bases):
            expected = self._check(i, base, expected)
        self.report.end_offset = expected
        return self.report

    def _path(self, base: int, kind: str) -> str:
        return os.path.join(self._directory, f"{base:020d}.{kind}")

    def _problem(
        self,
        file: str,
        problem: str,
        recovery: str,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        self.report.problems.append(Problem(file, problem, recovery, position, offset))

    def _check(self, i: int, base: int, expected: int) -> int:
        """Check a segment and its indexes; returns the next offset."""
        path = self._path(base, "log")
        offset_entries = self._read_index(self._path(base, "index"), base, read_offset_index)
        time_entries = self._read_index(self._path(base, "timeindex"), base, read_time_index)
        starts: dict[int, int] = {}  # position -> last offset
        lasts: list[int] = []
        newest: list[int] = []  # the largest time up to each batch
        sound = True
        expected = max(expected, base)
        for batch in self._batches(path, expected, last=i == len(self._bases) - 1):
            header = batch.header
            if batch.fault:
                sound = False
                offset = header.base_offset if header and not batch.structural else expected
                recovery = self._recovery_of(i, batch)
                self._problem(path, batch.fault, recovery, batch.position, offset)
                if batch.structural or header is None:
                    break
            assert header is not None
            expected = max(expected, header.last_offset + 1)
            if not batch.fault:
                self._check_records(path, batch)
            self.report.batches += 1
            self.report.records += header.record_count
            starts[batch.position] = header.last_offset
            lasts.append(header.last_offset)
            newest.append(max(header.max_timestamp, newest[-1] if newest else -1))
        self.report.bytes += os.stat(path).st_size
        following = self._bases[i + 1] if i + 1 < len(self._bases) else None
        if following is not None and sound and expected > following:
            self._problem(
                path,
                f"it reaches offset {expected - 1}, past the start of the next segment",
                "after a crash the next segment is cut where the offsets repeat",
                offset=expected - 1,
            )
        if sound:
            self._check_offset_index(base, offset_entries, starts)
            self._check_time_index(base, time_entries, lasts, newest)
        return expected if following is None else max(expected, following)

    def _batches(self, path: str, expected: int, *, last: bool) -> Iterator[FoundBatch]:
        """The batches of a segment; a torn one at the end may only be half written yet."""
        position, tries = 0, 20 if last and self._data.running else 0
        while True:
            for batch in walk_batches(path, expected, position):
                if batch.fault and batch.structural and tries:
                    break
                yield batch
                if batch.header is not None and not batch.structural:
                    position = batch.position + batch.header.size
                    expected = max(expected, batch.header.last_offset + 1)
            else:
                return
            tries -= 1
            time.sleep(0.02)

    def _check_records(self, path: str, batch: FoundBatch) -> None:
        header = batch.header
        assert header is not None
        problem = ""
        if not 0 <= header.record_count <= header.last_offset_delta + 1:
            problem = (
                f"the batch counts {header.record_count} records, "
                f"its offsets have room for {header.last_offset_delta + 1}"
            )
        elif self._deep and not header.attributes & CONTROL:
            try:
                previous = header.base_offset - 1
                for record in decode_batch(batch.data):
                    if not previous < record.offset <= header.last_offset:
                        problem = f"a record has offset {record.offset} after {previous}"
                        break
                    previous = record.offset
            except ApiError as error:
                problem = f"the records cannot be decoded: {error}"
        if problem:
            recovery = "the broker does not look into batches: it stays, and consumers fail here"
            self._problem(path, problem, recovery, batch.position, header.base_offset)

    def _recovery_of(self, i: int, batch: FoundBatch) -> str:
        """What the next start does about a damaged batch."""
        path, later = self._path(self._bases[i], "log"), len(self._bases) - i - 1
        lost = f"{os.stat(path).st_size - batch.position:,} bytes"
        if later:
            lost += f" and {plural(later, 'later segment')}"
        cut = f"the next start cuts the log here: {lost} go"
        if self._data.running:
            cut = f"a broker is running: readers fail here; after a crash {lost} go"
        point = self._data.offset(checkpoints.RECOVERY_POINT, self._key) or 0
        looked_at = later == 0 or self._bases[i + 1] > point
        if not self._data.clean:
            if looked_at:
                return cut
            return f"recovery does not look below its point ({point}): readers fail here"
        if later == 0 and batch.structural:
            return cut
        return (
            "the last stop was clean, so the next start does not look: readers fail here; "
            f"to have it cut, remove {CLEAN_MARK} before the start"
        )

    # -- indexes ----------------------------------------------------------------

    def _read_index(
        self, path: str, base: int, read: Callable[[str, int], list[Entry]]
    ) -> list[Entry]:
        try:
            return read(path, base)
        except FileNotFoundError:
            return []
        except ValueError as error:
            self._problem(path, str(error), _REBUILT)
            return []

    def _check_offset_index(self, base: int, entries: list[Entry], starts: dict[int, int]) -> None:
        path = self._path(base, "index")
        for number, (offset, position) in enumerate(entries):
            if number and (offset, position) <= entries[number - 1]:
                problem = f"entry {number} is not larger than the one before"
            elif position not in starts:
                problem = f"entry {number} points to position {position}, where no batch starts"
            elif starts[position] != offset:
                problem = (
                    f"entry {number} says offset {offset}, "
                    f"the batch at position {position} ends with {starts[position]}"
                )
            else:
                continue
            self._problem(path, problem, _REBUILT, number * 8, offset)
            return

    def _check_time_index(
        self, base: int, entries: list[Entry], lasts: list[int], newest: list[int]
    ) -> None:
        path = self._path(base, "timeindex")
        for number, (timestamp, offset) in enumerate(entries):
            at = bisect_left(lasts, offset)  # the batch that holds the offset
            if number and timestamp <= entries[number - 1][0]:
                problem = f"entry {number} is not newer than the one before"
            elif at == len(lasts) or offset < base:
                problem = f"entry {number} names offset {offset}, which is not in the segment"
            elif timestamp > newest[at]:
                problem = f"entry {number} says {timestamp}, but no record up to {offset} is so new"
            elif at and timestamp < newest[at - 1]:
                problem = f"entry {number} says {timestamp}, but a record before {offset} is newer"
            else:
                continue
            recovery = "look-ups by time may miss records until it is rebuilt, after a crash"
            self._problem(path, problem, recovery, number * 12, offset)
            return
