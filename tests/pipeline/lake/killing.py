"""Loads that are killed: the driver, its JVM, the Python workers, or all of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from support.cli import spawn
from support.filling import fill

from tidelog.pipeline.lake import driver, jobs
from tidelog.pipeline.lake import load as loading
from tidelog.pipeline.lake.files import LocalFiles, lock
from tidelog.pipeline.lake.ledger import LOCK
from tidelog.pipeline.lake.options import LoadOptions

VICTIMS = ("driver", "jvm", "worker", "all")
_PLANNER = "python_streaming_source_runner"  # of a continuous load; Spark does not replace it
EVERY = ("--every", "0.001")
CONTINUOUS = ("--continuous", "--interval", "0")


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    result, left = [], [pid]
    while left:
        found = children.get(left.pop(), [])
        result += found
        left += found
    return result


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


class Victim:
    """``tidelog load`` without end, in a process of its own; ``next_load`` waits for a report."""

    def __init__(self, bootstrap: str, topic: str, lake: Path, *options: str) -> None:
        self.process = spawn(
            "load", topic, "--to", str(lake), "--json", "--target-bytes", "20000",
            "--conf", "spark.driver.memory=512m", *options,
            bootstrap=bootstrap,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def next_load(self) -> bool:
        """Whether it came; False if the process is over."""
        assert self.process.stdout is not None
        return bool(self.process.stdout.readline())

    def kill(self, victim: str, dice: random.Random) -> bool:
        """Whether somebody was there to be killed."""
        below = {pid: command_of(pid) for pid in descendants(self.process.pid)}
        java = [pid for pid, text in below.items() if "java" in text.split(" ")[0]]
        python = [pid for pid, text in below.items() if "pyspark" in text and pid not in java]
        workers = [pid for pid in python if below[pid].split()[-1] == "pyspark.worker"]
        chosen = {
            "driver": [self.process.pid],
            "jvm": java,
            "worker": [dice.choice(workers)] if workers else [],
            "planner": [pid for pid in python if _PLANNER in below[pid]],
            "all": [self.process.pid, *java, *python],
        }[victim]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(chosen)

    def end(self) -> None:
        """All of it is gone, and nothing of it can write any more."""
        below = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()


def torment(
    bootstrap: str,
    topic: str,
    lake: Path,
    victims: Iterable[str],
    dice: random.Random,
    how: Sequence[str] = EVERY,
) -> None:
    """Let a load run while records come in, and kill one after the other in the midst of it."""

    def more() -> None:
        fill(bootstrap, topic, _values(dice), partitions=3, make=False)

    running = Victim(bootstrap, topic, lake, *how)
    try:
        for victim in victims:
            for _ in range(dice.randint(1, 3)):
                more()
                assert running.next_load(), "the load ended by itself"
            more()
            # Not a wait: any moment will do.
            time.sleep(dice.random() * 0.7)
            if running.kill(victim, dice) and victim in ("worker", "planner"):
                # Another one is started, and the load goes on as if nothing had happened.
                for _ in range(2):
                    more()
                    assert running.next_load(), f"a dead {victim} ended the load"
    finally:
        running.end()


def _values(dice: random.Random) -> list[str]:
    return [f"{dice.random()} {'x' * dice.randint(0, 300)}" for _ in range(dice.randint(1, 3000))]


class DeadlyFiles(LocalFiles):
    """Kills its own process at a change of the file system; before it, or right after it."""

    def __init__(self, root: Path, die_at: int) -> None:
        super().__init__(root)
        self.left = die_at

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def create(self, name: str, data: bytes) -> bool:
        self._step()
        done = super().create(name, data)
        self._step()
        return done

    def move(self, source: str, target: str) -> bool:
        self._step()
        done = super().move(source, target)
        self._step()
        return done

    def remove(self, name: str) -> None:
        self._step()
        super().remove(name)
        self._step()


def load_here(bootstrap: str, topic: str, lake: Path, files: LocalFiles, **more: Any) -> None:
    """A load whose tasks run in this process instead of Spark; all else is real."""

    class Here(loading.Loader):
        spark = property(lambda self: NoSpark)

    class NoSpark:
        class sparkContext:
            defaultParallelism = 2

    def run_tasks(spark: Any, name: str, rows: Any, work: Any, watch: Any) -> Any:
        return [work(row) for row in rows]

    client = {"bootstrap.servers": bootstrap}
    options = LoadOptions((topic,), str(lake), client, target_bytes=20_000, **more)
    with (
        mock.patch.object(jobs, "run_tasks", run_tasks),
        mock.patch.object(driver, "run_tasks", run_tasks),
        lock(lake / LOCK),
    ):
        Here(options, files=files).run()
