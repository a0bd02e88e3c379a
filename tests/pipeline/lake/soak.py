"""Kills of real loads for as long as you like.

    ./dev soak --lake [--kills 100] [--seed N]

One lake and one topic take all of it: loads by ``--every`` and by ``--continuous`` in turn, and
the driver, its JVM, a worker, the process that plans, or all of them are killed.  After each kill
the next load runs, and then ledger, files and topic are compared.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

from pipeline.lake.checking import check
from pipeline.lake.killing import CONTINUOUS, EVERY, VICTIMS, torment
from support.filling import make_topic

import tidelog.pipeline
from tidelog.pipeline.lake.verify import verify
from tidelog.testing import LocalBroker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    chosen = parser.parse_args()
    dice = random.Random(chosen.seed)
    print(f"seed {chosen.seed}", flush=True)
    with LocalBroker() as broker, tempfile.TemporaryDirectory() as folder:
        make_topic(broker.bootstrap, "t", 3)
        lake = Path(folder) / "lake"
        for number in range(1, chosen.kills + 1):
            how = dice.choice((EVERY, CONTINUOUS))
            victim = dice.choice(VICTIMS if how == EVERY else (*VICTIMS, "planner"))
            torment(broker.bootstrap, "t", lake, [victim], dice, how)
            tidelog.pipeline.load("t", lake, bootstrap=broker.bootstrap)
            rows = check(lake, broker.bootstrap, "t")
            report = verify(lake)
            assert report.ok, report.problems
            print(f"kill {number}, {victim} of {how[0]}: {rows:,} rows, each once", flush=True)
    print(f"{chosen.kills} kills: none lost, none twice")


if __name__ == "__main__":
    main()
