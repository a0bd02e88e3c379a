"""``./dev soak``: the faults of tests/faults for as long as you like.

    ./dev soak                       a hundred kills, then a hundred power cuts
    ./dev soak --minutes 60          the same, again and again
    ./dev soak --fuzz                ten million mutated requests
    ./dev soak --fuzz --from 1200    ... from block 1200 of the same seed on

It prints its seed and what it does; exit code 1 is a broken promise.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from faults.episodes import FLUSHED, kills, power_cuts
from faults.fuzzing import Fuzzer, Watchdog, tidy
from faults.measure import MIB, descriptors, resident
from faults.mutations import Mutator
from raw_client import RawClient
from waiting import until

from tidelog.testing import LocalBroker

KILLS = 100
BLOCK = 10_000  # requests of one seed; a run goes on from any block
MAX_GROWTH = 60 * MIB
LONGEST_WAIT = 20.0


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def crashes(seed, minutes, count):
    end = time.monotonic() + minutes * 60
    episode = 0
    while episode == 0 or time.monotonic() < end:
        for story in ("kills", *FLUSHED):
            rng = random.Random(f"{seed} {episode} {story}")
            parent = Path(tempfile.mkdtemp(prefix="tidelog-soak-"))
            say(f"round {episode}: {story}, in {parent}")
            if story == "kills":
                total = kills(parent / "data", rng, count, say)
            else:
                total = power_cuts(parent / "data", rng, count // 2, story, say)
            say(f"round {episode}: {total:,} records acknowledged, none lost")
            shutil.rmtree(parent)
        episode += 1


def fuzz(seed, requests, first):
    with LocalBroker() as broker, RawClient(broker.port, timeout=60) as client:
        say(f"the broker is process {broker.pid}, its log {broker.data}.log")
        memory = files = 0
        fuzzer = Fuzzer(broker.port, seed, tidy(client))
        with Watchdog(broker.port) as watchdog:
            for block in range(first, first + max(1, requests // BLOCK)):
                started = time.monotonic()
                fuzzer.mutator = Mutator(f"{seed} {block}", tidy(client))
                fuzzer.run(BLOCK)
                fuzzer.close()
                tidy(client)
                memory = memory or resident(broker)
                files = files or descriptors(broker)
                rate = BLOCK / (time.monotonic() - started)
                say(
                    f"block {block}: {fuzzer.served:,} requests, {rate:,.0f}/s, "
                    f"{resident(broker) / MIB:.0f} MiB, longest wait {watchdog.longest():.2f} s"
                )
                _, _, trace = broker.log.partition("Traceback")
                assert not trace, trace[:3000]
                assert watchdog.longest() < LONGEST_WAIT, "somebody was held up"
                assert resident(broker) - memory < MAX_GROWTH, "the memory grows"
                until(lambda files=files: descriptors(broker) <= files, "descriptors to be closed")
                watchdog.waits.clear()
        say(f"{dict(fuzzer.outcomes)}")


def main():
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=0, help="go on for so long")
    parser.add_argument("--kills", type=int, default=KILLS, help="in one round")
    parser.add_argument("--seed", type=int, default=int.from_bytes(random.randbytes(4), "big"))
    parser.add_argument("--fuzz", action="store_true", help="mutated requests instead of crashes")
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first block")
    options = parser.parse_args()
    say(f"seed {options.seed}")
    try:
        if options.fuzz:
            fuzz(options.seed, options.requests, options.first)
        else:
            crashes(options.seed, options.minutes, options.kills)
    except AssertionError as error:
        say(f"VIOLATION (seed {options.seed}): {error}")
        return 1
    say("every promise was kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
