"""The progress line: how far a job is, how fast, and when it will be done.

On a terminal one line is written again and again; elsewhere (a log file, CI) there is a plain
line every ten seconds and one at the end, and with ``enabled=False`` (``--json``) nothing.  It
goes to standard error: standard output belongs to results.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from tidelog.clock import Clock, SystemClock
from tidelog.text import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TERMINAL_SECONDS = 0.2
_PLAIN_SECONDS = 10.0
_WINDOW_SECONDS = 10.0  # over which the speed is measured


# -- the text (no I/O) ----------------------------------------------------------


@dataclass(slots=True)
class Meter:
    """Counts, and the sentence about them.  ``unit`` is a record or what else is counted."""

    started: float
    unit: str = "record"
    count: int = 0
    left: int | None = None  # how many are still to come; None if unknown
    _recent: collections.deque[tuple[float, int]] = field(default_factory=collections.deque)

    def __post_init__(self) -> None:
        self._recent.append((self.started, self.count))

    def update(self, now: float, count: int, left: int | None) -> None:
        self.count, self.left = count, left
        self._recent.append((now, count))
        # One that is older than the window stays: speed is measured from there.
        while len(self._recent) > 2 and now - self._recent[1][0] >= _WINDOW_SECONDS:
            self._recent.popleft()

    def per_second(self) -> float:
        (first, before), (last, count) = self._recent[0], self._recent[-1]
        return (count - before) / (last - first) if last > first else 0.0

    def text(self, done: str = "") -> str:
        """How far it is; ``done`` are finished tasks, or the like."""
        speed = self.per_second()
        parts = [done, plural(self.count, self.unit), f"{round(speed):,} {self.unit}s/s"]
        if self.left is not None:
            parts.append(f"{self.left:,} left")
            if self.left and speed:
                parts.append(f"about {duration(self.left / speed)} to go")
        return ", ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """``0.8 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# -- where it is written --------------------------------------------------------


class Line:
    """One line on a terminal, several elsewhere."""

    def __init__(
        self, stream: TextIO | None = None, *, enabled: bool = True, clock: Clock | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        self._enabled = enabled
        self._clock = clock or SystemClock()
        self.terminal = enabled and self._stream.isatty()
        self._written_at = self._clock.monotonic() if not self.terminal else None
        self._open = False  # a line that was not ended yet
        self._lock = threading.Lock()

    def show(self, text: str) -> None:
        """Write it, unless something was written a moment ago."""
        pause = _TERMINAL_SECONDS if self.terminal else _PLAIN_SECONDS
        with self._lock:
            now = self._clock.monotonic()
            if not self._enabled or (
                self._written_at is not None and now - self._written_at < pause
            ):
                return
            self._written_at = now
            if self.terminal:
                width = shutil.get_terminal_size().columns - 1
                self._write(f"\r\x1b[K{text[:width]}")
                self._open = True
            else:
                self._write(f"{text}\n")

    def end(self, text: str = "") -> None:
        """The last line, which is always written; on a terminal in place of the others."""
        with self._lock:
            if not self._enabled:
                return
            clear = "\r\x1b[K" if self._open else ""
            self._open = False
            if clear or text:
                self._write(clear + (f"{text}\n" if text else ""))

    def _write(self, text: str) -> None:
        with contextlib.suppress(ValueError, OSError):  # the terminal is gone
            self._stream.write(text)
            self._stream.flush()


# -- the jobs of a session --------------------------------------------------------


@contextlib.contextmanager
def of_jobs(spark: SparkSession, line: Line) -> Iterator[None]:
    """Show the tasks of what runs in a session."""
    clock = SystemClock()
    meter = Meter(clock.monotonic(), "task")
    tracker = spark.sparkContext.statusTracker()
    over = threading.Event()

    def look() -> None:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        finished = sum(stage.numCompletedTasks for stage in known)
        tasks = sum(stage.numTasks for stage in known)
        meter.update(clock.monotonic(), finished, tasks - finished)
        line.show(meter.text())

    def watch() -> None:
        while not over.wait(_TERMINAL_SECONDS):
            with contextlib.suppress(Exception):  # Spark may end at any moment
                look()

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        line.end()
