"""Random schedules against a model that keeps every batch in a list.

Whatever happens, in whatever order (appends of all kinds, reads, rolls, retention,
deletions, truncation, flushes, clean stops, crashes that tear the unflushed tail), the
log and the model say the same.  ``TIDELOG_SEED=n`` explores further.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.log import SEED, generator
from support.log_model import LogModel
from support.memory_files import MemoryFiles

from tidelog import files

STEPS = 220
ACTIONS = {
    "append": 30,
    "append_idempotent": 20,
    "retry": 6,
    "gap": 2,
    "read": 12,
    "find_by_time": 4,
    "newest": 3,
    "flush": 4,
    "roll": 2,
    "wait": 4,
    "retention": 3,
    "delete_records": 2,
    "truncate": 2,
    "clean_restart": 3,
    "crash": 3,
}


@pytest.mark.parametrize("schedule", range(16))
def test_schedule(tmp_path: Path, schedule: int) -> None:
    model = LogModel(tmp_path / "t-0", generator("schedule", schedule))
    run(model, ACTIONS, f"schedule {schedule}")


def run(model: LogModel, actions: dict[str, int], name: str) -> None:
    done: list[str] = []
    try:
        for _ in range(STEPS):
            (action,) = model.rng.choices(list(actions), list(actions.values()))
            done.append(action)
            getattr(model, action)()
            model.check()
        model.check_everything()
    except BaseException as error:
        error.add_note(f"seed {SEED}, {name}, after {done}")
        raise


POWER_CUTS = ACTIONS | {"truncate": 0, "truncate_and_flush": 2, "crash": 1, "power_cut": 4}


@pytest.mark.parametrize("schedule", range(40))
def test_power_cuts(schedule: int) -> None:
    """The same on a file system in memory that loses what was not synced."""
    rng = generator("power cuts", schedule)
    with MemoryFiles().installed() as disk:
        files.makedirs("/disk")
        run(LogModel(Path("/disk/t-0"), rng, disk), POWER_CUTS, f"power cuts {schedule}")


@pytest.mark.parametrize("only", ["crash", "clean_restart", "truncate", "retention"])
def test_one_thing_again_and_again(tmp_path: Path, only: str) -> None:
    rng: random.Random = generator("again", only)
    model = LogModel(tmp_path / "t-0", rng)
    for _ in range(25):
        for _ in range(rng.randrange(12)):
            rng.choice((model.append, model.append_idempotent))()
        if rng.random() < 0.3:
            model.wait()
        getattr(model, only)()
        model.check()
        model.check_everything()
