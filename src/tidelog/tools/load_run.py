"""A load from the command line: run once, again and again or without end, until a signal.

PySpark ends a job on Ctrl-C with a handler of its own, which calls the JVM in the middle of
another call to it; what follows is pages of stack traces.  It does so only if the session is made
in the main thread.  So loads run in a thread of their own, and the main thread waits for signals:
the first one asks the load to stop, which it does before it publishes, a second one ends all at
once, which is as safe as kill -9.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from shlex import quote
from typing import TYPE_CHECKING

import click

from tidelog.pipeline.lake.continuous import run_continuous
from tidelog.pipeline.lake.files import Stopped
from tidelog.pipeline.lake.ledger import LETTERS
from tidelog.pipeline.lake.load import Loader
from tidelog.pipeline.lake.options import LoadOptions, LoadReport
from tidelog.pipeline.progress import Line, Meter
from tidelog.text import plural, some
from tidelog.tools.output import note, show_json, size_text
from tidelog.tools.stop_signal import StopSignal

if TYPE_CHECKING:
    from tidelog.pipeline.lake.jobs import Progress

_SHOWN_PLACES = 3


class Run:
    """One command: what it has loaded so far, and its output."""

    def __init__(self, line: Line, options: LoadOptions, as_json: bool) -> None:
        self.stop = threading.Event()
        self._line = line
        self._to = options.to
        self._letters = options.dead_letters
        self._json = as_json
        self._loads = 0
        self._rows = 0
        self._last: LoadReport | None = None

    def once(self, loader: Loader) -> None:
        signals = _interruptible(lambda: self._show(loader.run()), self.stop)
        if not signals:
            return
        self._line.end()
        last = loader.ledger.state.number
        if self._last is not None and self._last.number is not None:
            published = f"load {self._last.number} was published"
            note(f"interrupted after {published}: all of it is in {self._to}")
        else:
            was = f"as load {last} left it" if last else "as it was"
            note(f"interrupted: nothing of this load was published, {self._to} is {was}")
        sys.exit(signals.exit_code)

    def every(self, loader: Loader, minutes: float) -> None:
        def work() -> None:
            began = time.monotonic()
            while not self.stop.is_set():
                self._show(loader.run())
                # --from is for the first one; the others go on where the ledger ends.
                loader.options = replace(loader.options, start=None)
                passed = time.monotonic() - began
                self.stop.wait(60 * minutes - passed % (60 * minutes))

        self._until_signal(loader, work)

    def continuous(self, loader: Loader, seconds: float) -> None:
        self._until_signal(loader, lambda: run_continuous(loader, seconds, self._show))

    def _until_signal(self, loader: Loader, work: Callable[[], None]) -> None:
        """A signal is how it ends, and no failure."""
        if not _interruptible(work, self.stop):
            return
        self._line.end()
        loads, rows = plural(self._loads, "load"), plural(self._rows, "record")
        text = f"stopped after {loads}, {rows}"
        covered = loader.ledger.state.covered
        if covered:
            places = [f"{place}@{spans[-1][1]}" for place, spans in sorted(covered.items())]
            text += f"; the next load goes on at {some(places, _SHOWN_PLACES)}"
        click.echo(text, err=self._json)

    def _show(self, report: LoadReport) -> None:
        self._last = report
        self._loads += report.number is not None
        self._rows += report.rows
        self._line.end()
        show_report(report, self._to, self._letters, self._json)


def _interruptible(work: Callable[[], None], stop: threading.Event) -> StopSignal:
    """Do the work in another thread; the signal that stopped it, if one did."""
    problem: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:
            problem.append(error)

    thread = threading.Thread(target=run, name="load", daemon=True)
    with StopSignal(on_signal=stop.set, exit_at_second=True) as signals:
        thread.start()
        thread.join()
    if problem and not signals:  # a signal to all processes ends Spark, too, whatever follows
        raise problem[0]
    return signals


# -- output -------------------------------------------------------------------------


def show_progress(line: Line) -> Callable[[Progress], None]:
    """How far it is, and how fast: over the last seconds, without those in which Spark began."""
    meter: Meter | None = None

    def show(progress: Progress) -> None:
        nonlocal meter
        if not progress.tasks:
            line.show(progress.doing)
            return
        tasks = f"{progress.tasks_done} of {plural(progress.tasks, 'task')}"
        now = time.monotonic()
        if meter is None or progress.rows < meter.count:  # a first or another round of tasks
            if progress.rows == 0:
                line.show(f"{progress.doing}, {tasks}")
                return
            meter = Meter(now, count=progress.rows)
        meter.update(now, progress.rows, max(0, progress.offsets - progress.rows))
        line.show(f"{progress.share:4.0%}, {meter.text(tasks)}")

    return show


def show_report(report: LoadReport, to: str, letters: str | None, as_json: bool) -> None:
    """``letters`` is the topic to which dead letters went, if they did."""
    if as_json:
        show_json(asdict(report))
        return
    if report.number is None:
        why = report.why_nothing
        click.echo(f"nothing to load into {to}: {why}" if why else f"nothing new for {to}")
        return
    parts = [f"{plural(report.rows, 'record')} to {to} in {plural(report.files, 'file')}"]
    parts.append(size_text(report.bytes))
    if report.dead:
        parts.append(f"{plural(report.dead, 'dead letter')}")
    if report.skipped:
        parts.append(f"{report.skipped:,} skipped")
    if report.lost:
        parts.append(f"{plural(report.lost, 'offset')} lost")
    if report.compacted:
        parts.append(f"{plural(report.compacted, 'small file')} merged")
    click.echo(f"{', '.join(parts)} (load {report.number}, {report.seconds:.1f} s)")
    for text in report.lost_offsets:
        click.echo(f"  lost: {text}")
    if report.dead:
        place = f"{to}/{LETTERS}" + (f" and in topic {letters!r}" if letters else "")
        click.echo(f"  dead letters are in {place}: tidelog load dead-letters --to {quote(to)}")
    if report.new_columns:
        click.echo(f"  new {_noun(report.new_columns)}: {', '.join(report.new_columns)}")
    for row in report.widened:
        files = f"{plural(row.rewritten, 'file')} rewritten"
        click.echo(f"  {row.column}: {row.before} → {row.after} ({files})")


def _noun(columns: Sequence[str]) -> str:
    return "column" if len(columns) == 1 else "columns"
