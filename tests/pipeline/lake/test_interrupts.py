"""Ctrl-C and SIGTERM: one line that says what is safe, and no stack traces."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pipeline.lake.checking import check
from pipeline.lake.killing import command_of, descendants
from support.cli import spawn
from support.filling import fill
from support.waiting import until

from tidelog.pipeline.lake.files import LakeError, Stopped, lock
from tidelog.pipeline.lake.ledger import LOCK, STAGING
from tidelog.pipeline.lake.verify import history, verify
from tidelog.testing import LocalBroker


@contextmanager
def loading(bootstrap: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """``tidelog load`` in a session of its own, as a terminal's foreground job is."""
    process = spawn(
        "load", *args, "--conf", "spark.driver.memory=512m",
        bootstrap=bootstrap, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        below = descendants(process.pid)
        if process.poll() is None:
            process.kill()
            process.communicate()
        for pid in below:
            if command_of(pid):
                os.kill(pid, signal.SIGKILL)


def but_for_progress(text: str) -> list[str]:
    said = (" of 1 task", " of 2 tasks", "starting Spark")  # now and then, on a slow machine
    return [line for line in text.splitlines() if not any(row in line for row in said)]


@pytest.mark.timeout(400)
def test_ctrl_c_in_the_midst_of_a_load(topic: str, lake: Path) -> None:
    with LocalBroker() as broker:
        fill(broker.bootstrap, topic, ["x"] * 100)
        with loading(broker.bootstrap, topic, "--to", str(lake)) as process:
            until(lambda: list(lake.glob(f"{STAGING}/*/owner.json")), "a load that has begun")
            broker.stop()  # from here on it cannot end
            until(
                lambda: any(
                    "pyspark.daemon" in command_of(pid) for pid in descendants(process.pid)
                ),
                "tasks at work",
            )
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate()
    assert out == ""
    assert but_for_progress(err) == [
        f"interrupted: nothing of this load was published, {lake} is as it was"
    ]
    assert process.returncode == 130
    assert not lake.exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ctrl_c_ends_a_continuous_load(
    broker: LocalBroker, topic: str, lake: Path, loads: Callable[..., Any]
) -> None:
    fill(broker.bootstrap, topic, ["x"] * 90, partitions=2)
    args = (topic, "--to", str(lake), "--continuous", "--interval", "0.1")
    with loading(broker.bootstrap, *args) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("90 records to ")
        fill(broker.bootstrap, topic, ["y"] * 10, partitions=2, make=False)
        os.killpg(process.pid, signal.SIGINT)  # it finishes the next batch, or drops it
        out, err = process.communicate()
    published = [row for row in history(lake) if row.kind == "load"]
    rows = sum(row.rows for row in published)
    count = "1 load" if len(published) == 1 else f"{len(published)} loads"
    ends = [f"{topic}-{i}@{history_end(lake, i)}" for i in range(2)]
    assert out.splitlines()[-1] == (
        f"stopped after {count}, {rows} records; the next load goes on at {', '.join(ends)}"
    )
    assert but_for_progress(err) == []
    assert process.returncode == 0
    assert verify(lake).ok
    loads(topic)
    assert check(lake, broker.bootstrap, topic) == 100


def history_end(lake: Path, partition: int) -> int:
    ranges = [row for manifest in history(lake) for row in manifest.ranges]
    return max(row.end for row in ranges if row.partition == partition)


def test_a_load_that_is_stopped_publishes_nothing(
    filled: Callable[..., str], loads: Callable[..., Any], lake: Path
) -> None:
    stop = threading.Event()
    topic = filled(["a"] * 10)
    stop.set()
    with pytest.raises(Stopped):
        loads(topic, stop=stop)
    assert not lake.exists()


def test_nothing_is_left_of_what_did_not_begin(tmp_path: Path) -> None:
    path = tmp_path / "a" / "lake" / LOCK
    with pytest.raises(LakeError), lock(path):
        assert path.exists()
        raise LakeError("no")
    assert not (tmp_path / "a").exists()
    # A folder that was there stays, and so does a lake.
    (tmp_path / "there").mkdir()
    with lock(tmp_path / "there" / LOCK):
        pass
    assert list((tmp_path / "there").iterdir()) == []
    path.parent.mkdir(parents=True)
    (path.parent / "00000000000000000001.json").write_text("{}")
    with lock(path):
        pass
    assert path.exists()


def test_one_who_waits_for_a_lock_that_goes(tmp_path: Path) -> None:
    """The one before removes the file: the lock of the same name is another one then."""
    path = tmp_path / "lake" / LOCK
    waits, has = threading.Event(), threading.Event()
    end = threading.Event()

    def other() -> None:
        with lock(path, wait=True, waiting=lambda _: waits.set()):
            has.set()
            end.wait()

    thread = threading.Thread(target=other, daemon=True)
    with lock(path):
        thread.start()
        until(waits.is_set, "the other one to wait")
    until(has.is_set, "the other one to have it")
    with pytest.raises(LakeError, match="another load"), lock(path):
        pass
    end.set()
    thread.join()
    assert not path.parent.exists()
