"""``tidelog demo``: it works, it cleans up, and with --stay it can be looked around in."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.cli import run, spawn


@pytest.mark.slow
def test_the_demo_tells_what_happened_and_leaves_nothing() -> None:
    process = spawn("demo", "--events", "500", "--seed", "1", "--spark", bootstrap="")
    out, err = process.communicate(timeout=280)
    assert (process.returncode, err) == (0, "")
    assert "500 events with librdkafka" in out
    assert "500 events back, in order" in out
    assert "weather" in out
    assert "500 offsets in, 500 rows out" in out
    assert "top keywords in windows of 30 s" in out
    folder = next(line for line in out.splitlines() if "on disk" in line).split()[2]
    assert not os.path.exists(os.path.dirname(folder))


def test_the_demo_that_stays_until_it_is_told_to_stop() -> None:
    process = spawn("demo", "--events", "20", "--no-spark", "--stay", "--json", bootstrap="")
    assert process.stdout is not None
    facts = json.loads(process.stdout.readline())
    assert (facts["written"], facts["read"]) == (20, 20)
    assert facts["disk_bytes"] > 0
    rows = run("consume", facts["topic"], "--exit", "--json", bootstrap=facts["bootstrap"]).lines
    assert len(rows) == 20
    event = json.loads(json.loads(rows[0])["value"])
    assert sorted(event) == ["date", "id", "keyword", "user"]
    assert run("log", "check", facts["data"]).code == 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)
    assert process.returncode == 0
    assert not os.path.exists(facts["data"])
    assert run("topics", "list", bootstrap=facts["bootstrap"]).code == 1


@pytest.mark.timeout(300)
def test_the_demo_that_kills_a_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = spawn("demo", "--cluster", "--events", "600", bootstrap="")
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    words = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    for word in ("cluster", "topic", "killed", "elected", "back", "written", "proof"):
        assert word in words, out
    assert "none lost, none twice" in out
    assert "s without a leader" in out
    # Only the locks by which processes share out ports, see tidelog.testing.ports.
    assert [path.name[:14] for path in tmp_path.iterdir()] == ["tidelog-ports-"]
    assert run("demo", "--cluster", "--spark").code == 2
