"""A disk that takes no writes must not fill the log as well."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from tidelog.clock import FakeClock
from tidelog.log.manager import LogManager
from tidelog.partition.replicas import Replicas
from tidelog.rate_limited_log import DiskTroubles
from tidelog.settings import LogConfig, Settings

FULL = "No space left on device"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def troubles(clock: FakeClock) -> DiskTroubles:
    return DiskTroubles(logging.getLogger("disk"), clock)


def test_one_line_and_then_fewer_and_fewer(
    troubles: DiskTroubles, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten partitions fail ten times a second, for ten minutes."""
    said = []
    for tenth in range(6000):
        before = len(caplog.messages)
        for i in range(10):
            troubles.failed("/data", f"/data/t-{i}", FULL)
        if len(caplog.messages) > before:
            said.append(tenth // 10)
        clock.advance(100)
    assert said == [0, 5, 15, 35, 75, *range(135, 600, 60)]
    assert len(caplog.messages) == len(said)
    line = f"/data/t-0: cannot write: {FULL}; reads go on, writes are refused"
    assert caplog.messages[:2] == [line, f"{line} (499 more failures in /data were not told)"]


def test_some_of_it_works(
    troubles: DiskTroubles, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A nearly full disk takes small records, and not large ones, in turn."""
    for _ in range(600):
        troubles.failed("/data", "/data/t-0", FULL)
        troubles.works("/data", "/data/t-0")
        clock.advance(100)
    lines = [message.partition(": ")[2][:13] for message in caplog.messages]
    assert lines == ["cannot write:", "writing works"] * 4  # at 0, 5, 15 and 35 seconds


def test_another_reason_is_told_at_once(
    troubles: DiskTroubles, caplog: pytest.LogCaptureFixture
) -> None:
    """ext4 says that it cannot read or write, and then that it is read-only."""
    for reason in (FULL, "Read-only file system", FULL, "Read-only file system"):
        troubles.failed("/data", "/data/t-0", reason)
    assert [FULL in line for line in caplog.messages] == [True, False]


def test_it_is_over(
    troubles: DiskTroubles, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """That is said once, and by what had failed; the next trouble is told at once."""
    for i in range(3):
        troubles.failed("/data", f"/data/t-{i}", FULL)
    troubles.works("/data", "/data/never-failed-0")
    assert troubles.failing == {"/data"}
    for i in range(3):
        troubles.works("/data", f"/data/t-{i}")
    assert not troubles.failing
    assert [message for message in caplog.messages if "works again" in message] == [
        "/data/t-0: writing works again"
    ]
    clock.advance(600_000)
    troubles.failed("/data", "/data/t-2", FULL)
    assert caplog.messages[-1].startswith("/data/t-2: cannot write")
    assert "more" not in caplog.messages[-1]


def test_what_is_one_trouble(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is one for all partitions on it; a file that may not be written is its own."""
    directories = [str(tmp_path / "a"), str(tmp_path / "b")]
    manager = LogManager(directories, clock)
    replicas = Replicas(manager, lambda _: LogConfig.of(Settings.of()), 1, clock)
    for directory in directories:
        for i in range(3):
            replicas.write_failed(f"{directory}/t-{i}", OSError(errno.ENOSPC, FULL))
    assert len(caplog.messages) == 2
    assert replicas.storage_failing == set(directories)
    for i in range(2):
        error = OSError(errno.EACCES, "Permission denied")
        replicas.write_failed(f"{directories[0]}/u-{i}", error)
    assert len(caplog.messages) == 4
    for path in ("a/t-1", "a/u-0", "a/u-1", "b/t-2"):
        replicas.storage_works(str(tmp_path / path))
    assert not replicas.storage_failing
    assert len(caplog.messages) == 8
    replicas.close()
