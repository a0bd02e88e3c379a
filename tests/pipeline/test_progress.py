"""The line that says how far a job is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tidelog.clock import FakeClock
from tidelog.pipeline import progress
from tidelog.pipeline.progress import Line, Meter, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.7, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_meter_that_knows_the_end() -> None:
    meter = Meter(100.0)
    assert meter.text("0 batches") == "0 batches, 0 records, 0 records/s"
    meter.update(102.0, 1000, 4000)
    assert meter.text("1 batch") == (
        "1 batch, 1,000 records, 500 records/s, 4,000 left, about 8.0 s to go"
    )


def test_speed_is_that_of_the_last_seconds() -> None:
    meter = Meter(0.0)
    for second in range(1, 101):
        meter.update(float(second), 1000 * second if second <= 50 else 50_000, None)
    assert meter.per_second() == 0
    meter.update(101.0, 50_500, None)
    assert 0 < meter.per_second() <= 51


def test_a_terminal_has_one_line() -> None:
    clock, out = FakeClock(), Terminal()
    line = Line(out, clock=clock)
    line.show("one")
    line.show("too soon")
    clock.advance(1000)
    line.show("two")
    line.end("all of it")
    assert out.getvalue() == "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[Kall of it\n"


def test_a_file_has_a_line_now_and_then() -> None:
    clock, out = FakeClock(), io.StringIO()
    line = Line(out, clock=clock)
    line.show("a job that is soon over says nothing on its way")
    clock.advance(10_000)
    line.show("one")
    clock.advance(9_000)
    line.show("too soon")
    clock.advance(1_000)
    line.show("two")
    line.end("all of it")
    assert out.getvalue() == "one\ntwo\nall of it\n"


def test_nothing_with_json() -> None:
    clock, out = FakeClock(), Terminal()
    line = Line(out, enabled=False, clock=clock)
    clock.advance(60_000)
    line.show("one")
    line.end("all of it")
    assert out.getvalue() == ""


def test_a_stream_that_is_closed_is_no_error() -> None:
    out = Terminal()
    line = Line(out)
    out.close()
    line.show("one")
    line.end("two")


def test_real_jobs(spark: Any, tmp_path: Path) -> None:
    shown = tmp_path / "shown"

    class Screen(Terminal):
        def write(self, text: str) -> int:
            if "0 tasks, 0 tasks/s, 8 left" in text:
                shown.touch()
            return super().write(text)

    out = Screen()

    def slow(number: int) -> int:
        import time

        while not shown.exists():  # a task that takes a while is what is looked at
            time.sleep(0.01)
        return number

    with progress.of_jobs(spark, Line(out)):
        assert spark.sparkContext.parallelize(range(8), 8).map(slow).count() == 8
    assert out.getvalue().endswith("\r\x1b[K")
