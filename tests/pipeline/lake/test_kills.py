"""kill -9 at any moment: after the next run the lake holds each record exactly once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pipeline.lake.checking import check
from pipeline.lake.killing import CONTINUOUS, EVERY, DeadlyFiles, load_here, torment
from support.filling import fill, make_topic

from tidelog.pipeline.lake.files import LocalFiles
from tidelog.pipeline.lake.verify import history, verify
from tidelog.testing import LocalBroker


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
