"""kill -9 at any moment: after the next run the lake holds each record exactly once."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pipeline.lake.checking import check
from pipeline.lake.killing import CONTINUOUS, EVERY, torment
from support.filling import fill, make_topic

from tidelog.pipeline.lake import driver, jobs
from tidelog.pipeline.lake import load as loading
from tidelog.pipeline.lake.files import LocalFiles, lock
from tidelog.pipeline.lake.ledger import LOCK
from tidelog.pipeline.lake.options import LoadOptions
from tidelog.pipeline.lake.verify import history, verify
from tidelog.testing import LocalBroker


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


def test_the_driver_dies_at_every_step(broker: LocalBroker, topic: str, lake: Path) -> None:
    """One step further each time, and loads and merges of files go on all the while."""
    make_topic(broker.bootstrap, topic, 2)
    # The first one here: the compiled decoder is then there in all the processes to come.
    fill(broker.bootstrap, topic, ["first"] * 40, partitions=2, make=False)
    load_here(broker.bootstrap, topic, lake, LocalFiles(lake))
    step, survived, deaths = 0, 0, 0
    while survived < 3:
        step += 1
        values = [f"{step} {i} {'x' * (i % 50)}" for i in range(40)]
        fill(broker.bootstrap, topic, values, partitions=2, make=False)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                load_here(broker.bootstrap, topic, lake, DeadlyFiles(lake, step))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        deaths += os.WIFSIGNALED(status)
        survived = 0 if os.WIFSIGNALED(status) else survived + 1
        rows = [path.name for path in lake.glob("*.parquet")]
        assert len(rows) == len(set(rows))
    load_here(broker.bootstrap, topic, lake, LocalFiles(lake))
    assert check(lake, broker.bootstrap, topic) == 40 * (step + 1)
    assert deaths > 15
    kinds = [row.kind for row in history(lake)]
    assert "cleanup" in kinds and "compaction" in kinds
    assert verify(lake).ok


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_9_of_a_real_load(
    broker: LocalBroker, topic: str, lake: Path, loads: Callable[..., Any]
) -> None:
    """One kind of load, and two of its processes; `./dev soak --lake` has them all."""
    make_topic(broker.bootstrap, topic, 3)
    dice = random.Random()
    how, first = dice.choice([(EVERY, ("worker",)), (CONTINUOUS, ("worker", "planner"))])
    victims = [dice.choice(first), dice.choice(("driver", "jvm", "all"))]
    print(how, victims)
    torment(broker.bootstrap, topic, lake, victims, dice, how)
    loads(topic)
    assert check(lake, broker.bootstrap, topic) > 0
    assert verify(lake).ok
