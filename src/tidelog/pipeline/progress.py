"""The progress line: how far a job is, how fast, and when it will be done.

    with progress.of_jobs(spark, total=n, done=rows.value.__index__):   tasks, and records if known
        df.write....

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from tidelog.clock import Clock, SystemClock
from tidelog.text import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TERMINAL_SECONDS = 0.2
_PLAIN_SECONDS = 10.0
_WINDOW_SECONDS = 10.0  # over which the speed is measured
_LAST_EVENTS_MS = 10_000


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

    def text(self, done: str, ends: bool = True, behind: str = "left") -> str:
        """``done`` says what is done (batches, tasks); ``ends`` that it will stop by itself."""
        speed = self.per_second()
        parts = [done, plural(self.count, self.unit), f"{round(speed):,} {self.unit}s/s"]
        if self.left is not None:
            parts.append(f"{self.left:,} {behind}")
            if ends and self.left and speed:
                parts.append(f"about {duration(self.left / speed)} to go")
        return ", ".join(part for part in parts if part)

    def total(self, now: float) -> str:
        """The last sentence."""
        seconds = now - self.started
        speed = f", {round(self.count / seconds):,} {self.unit}s/s" if seconds > 0 else ""
        return f"{plural(self.count, self.unit)} in {duration(seconds)}{speed}"


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
def of_jobs(
    spark: SparkSession,
    *,
    total: int | None = None,
    done: Callable[[], int] | None = None,
    enabled: bool = True,
    line: Line | None = None,
) -> Iterator[Meter]:
    """Show what runs in a session: tasks, and records if ``done`` can tell how many.

    ``done`` may be an accumulator's value; ``total`` is how many there will be.
    """
    clock = SystemClock()
    shown = line or Line(enabled=enabled)
    meter = Meter(clock.monotonic(), "record" if done else "task")
    tracker = spark.sparkContext.statusTracker()
    over = threading.Event()

    def look() -> None:
        finished, tasks = 0, 0
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                finished += info.numCompletedTasks
                tasks += info.numTasks
        count = done() if done else finished
        left = None if total is None else max(0, total - count)
        meter.update(clock.monotonic(), count, left if done else tasks - finished)
        shown.show(meter.text(f"{finished} of {plural(tasks, 'task')}" if done else ""))

    def watch() -> None:
        while not over.wait(_TERMINAL_SECONDS):
            with contextlib.suppress(Exception):  # Spark ends while it is asked
                look()

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    if enabled:
        thread.start()
    try:
        yield meter
    finally:
        over.set()
        if enabled:
            thread.join()
        if done:
            meter.update(clock.monotonic(), done(), None)
            shown.end(meter.total(clock.monotonic()))
        else:
            shown.end()
