"""What a load tells on the way and afterwards: progress, dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cli import run as run_command

from tidelog.client.offsets import FORMS
from tidelog.pipeline.lake.jobs import Progress
from tidelog.testing import LocalBroker
from tidelog.tools import load_run


class Lines:
    """Where a progress line would be."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def show(self, text: str) -> None:
        self.said.append(text)


def test_the_line_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """One task that has not ended: its rows are told all the same, and the time left is real."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines: Any = Lines()
    show = load_run.show_progress(lines)
    show(Progress(0, 10_000, 0, 1, 8.0))  # Spark starts its workers: no speed is made of that
    now = 108.0
    show(Progress(1_000, 10_000, 0, 1, 16.0))
    now = 109.0
    show(Progress(2_000, 10_000, 0, 1, 17.0))
    now = 110.0
    show(Progress(4_000, 10_000, 0, 1, 18.0))
    show(Progress(0, 0, 0, 0, 0.0, "merging files"))
    assert lines.said == [
        "reading the first records, 0 of 1 task",
        " 10%, 0 of 1 task, 1,000 records, 0 records/s, 9,000 left",
        " 20%, 0 of 1 task, 2,000 records, 1,000 records/s, 8,000 left, about 8.0 s to go",
        " 40%, 0 of 1 task, 4,000 records, 1,500 records/s, 6,000 left, about 4.0 s to go",
        "merging files",
    ]


def test_dead_letters_are_named_and_listed(
    broker: LocalBroker, filled: Callable[..., str], lake: Path, spark: Any
) -> None:
    long = "[" + "1, " * 50 + "]"
    bad = {
        "value": b"\xff\x00",
        "key": b"k",
        "headers": [("h", b"1")],
        "timestamp": 1_767_225_600_000,
    }
    topic = filled(['{"a": 1}', "no json", bad, long])

    def tidelog(*args: str) -> Any:
        done = run_command("load", *args, "--to", str(lake), bootstrap=broker.bootstrap)
        assert done.code == 0, done.err
        return done

    done = tidelog(topic, "--value", "json", "--dead-letters", f"{topic}.bad")
    assert ", 3 dead letters (load 1, " in done.lines[0]
    assert done.lines[1] == (
        f"  dead letters are in {lake}/_tidelog/dead_letters and in topic '{topic}.bad': "
        f"tidelog load dead-letters --to {lake}"
    )
    shown = tidelog("dead-letters").lines
    assert shown[0].split() == ["LOAD", "TOPIC", "PARTITION", "OFFSET", "REASON", "VALUE"]
    assert [row.split()[:4] for row in shown[1:]] == [["1", topic, "0", str(i)] for i in (1, 2, 3)]
    assert "it is not JSON: Expecting value" in shown[1] and shown[1].endswith("  no json")
    assert "it is not UTF-8: byte 0 is 0xff" in shown[2]
    assert shown[3].endswith("...")
    few = tidelog("dead-letters", "-n", "1")
    assert len(few.lines) == 2 and few.err == "the first 1 of 3; -n 3 or --json shows all\n"
    rows = [json.loads(line) for line in tidelog("dead-letters", "--json").lines]
    assert [row["value"] for row in rows] == ["no json", {"base64": "/wA="}, long]
    assert rows[1] == {
        "topic": topic,
        "partition": 0,
        "offset": 2,
        "timestamp": 1_767_225_600_000,
        "key": "k",
        "value": {"base64": "/wA="},
        "headers": [["h", "1"]],
        "reason": "it is not UTF-8: byte 0 is 0xff",
        "load": 1,
    }


def test_no_dead_letters(filled: Callable[..., str], loads: Callable[..., Any], lake: Path) -> None:
    loads(filled(["a"]))
    done = run_command("load", "dead-letters", "--to", str(lake))
    assert (done.code, done.out) == (0, f"{lake}: no dead letters\n")


@pytest.mark.parametrize(
    "command",
    [["load"], ["consume"], ["sql"], ["records", "delete"], ["groups", "reset"]],
    ids=" ".join,
)
def test_one_list_of_offsets(command: list[str]) -> None:
    shown = " ".join(run_command(*command, "--help").out.split())
    assert FORMS in shown
