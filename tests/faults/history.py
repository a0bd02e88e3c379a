"""What producers were told and readers saw, and whether the log agrees.

A value names its writer and its number in the writer's sequence, so a log can be held
against what was promised:

    nothing acknowledged is lost      an acknowledged value stands at its offset
    nothing seen vanishes             what a reader got at an offset is still there
    no duplicates, order kept         the numbers of a writer only grow
    nothing missing (idempotence on)  ... and leave no gap
    offsets are contiguous            0, 1, 2, ...
    the high watermark only grows
"""

import threading
from collections import defaultdict

MAX_AHEAD = 300  # records; a log is to hold a bit of everybody


def value_of(writer, number, size=0):
    return b"%s:%d:" % (writer.encode(), number) + b"." * size


def parse(value):
    writer, number, _ = value.split(b":", 2)
    return writer.decode(), int(number)


class History:
    """Filled by many threads, checked by one."""

    def __init__(self):
        self._lock = threading.Lock()
        self.acknowledged = defaultdict(dict)  # partition -> offset -> (writer, number)
        self.seen = defaultdict(dict)
        self.high_watermarks = defaultdict(int)
        self.idempotent = set()  # writers that leave no gaps
        self.violations = []
        self.counts = defaultdict(int)  # writer -> acknowledged

    def acknowledge(self, partition, offset, value):
        writer, number = parse(value)
        with self._lock:
            other = self.acknowledged[partition].setdefault(offset, (writer, number))
            self.counts[writer] += 1
            if other != (writer, number):
                self.violations.append(
                    f"offset {offset} of partition {partition} was promised twice: "
                    f"{other} and {(writer, number)}"
                )

    def see(self, partition, records, high_watermark):
        """A reader got these ``(offset, value)`` and was told this high watermark."""
        with self._lock:
            seen = self.seen[partition]
            for offset, value in records:
                told = parse(value)
                if seen.setdefault(offset, told) != told:
                    self.violations.append(
                        f"offset {offset} of partition {partition} was {seen[offset]}, now {told}"
                    )
            before = self.high_watermarks[partition]
            if high_watermark < before:
                self.violations.append(
                    f"the high watermark of partition {partition} went back "
                    f"from {before} to {high_watermark}"
                )
            self.high_watermarks[partition] = max(before, high_watermark)

    def acknowledged_end(self, partition):
        """One past the last acknowledged offset."""
        with self._lock:
            return max(self.acknowledged[partition], default=-1) + 1

    def forget(self, partition, end):
        """The offsets from ``end`` on were lost, and that was to be expected."""
        with self._lock:
            for known in (self.acknowledged[partition], self.seen[partition]):
                for offset in [offset for offset in known if offset >= end]:
                    del known[offset]
            self.high_watermarks[partition] = min(self.high_watermarks[partition], end)

    def is_ahead(self, writer):
        """Is this writer far ahead of the slowest?"""
        with self._lock:
            return self.counts[writer] > min(self.counts.values(), default=0) + MAX_AHEAD

    def total(self):
        with self._lock:
            return sum(self.counts.values())

    def check(self, partition, records, high_watermark):
        """Hold a whole log (``(offset, value)`` rows) against the history."""
        problems = list(self.violations)
        offsets = [offset for offset, _ in records]
        if offsets != list(range(len(offsets))):
            gap = next(i for i, offset in enumerate(offsets) if i != offset)
            problems.append(f"partition {partition}: offsets are not contiguous at {gap}")
        found = {offset: parse(value) for offset, value in records}
        for name, promised in (("acknowledged", self.acknowledged), ("seen", self.seen)):
            wrong = {o: v for o, v in promised[partition].items() if found.get(o) != v}
            for offset, value in sorted(wrong.items())[:3]:
                problems.append(
                    f"partition {partition}: {value} was {name} at offset {offset}, "
                    f"where {found.get(offset)} is ({len(wrong)} such)"
                )
        if high_watermark < max(self.acknowledged_end(partition), self.high_watermarks[partition]):
            problems.append(f"partition {partition}: the high watermark is only {high_watermark}")
        problems += self._check_order(partition, found)
        assert not problems, "\n".join(problems)

    def _check_order(self, partition, found):
        last = {}
        for offset, (writer, number) in found.items():
            before = last.get(writer)
            if before is not None and number <= before:
                yield f"{writer}: {number} comes after {before} (offset {offset})"
                return
            gap = number != (before + 1 if before is not None else 0)
            if gap and writer in self.idempotent:
                yield f"partition {partition}: {writer} goes from {before} to {number}"
                return
            last[writer] = number
