"""``./dev soak``: the faults of tests/faults for as long as you like.

    ./dev soak                        a hundred kills, then a hundred power cuts
    ./dev soak --kills 500            five hundred kills, no power cuts
    ./dev soak --kills 100 --minutes 60   a hundred kills, again and again (without --kills or
                                      --cuts, --minutes is the soak of a cluster)
    ./dev soak --fuzz                 ten million mutated requests
    ./dev soak --fuzz 500000          half a million
    ./dev soak --fuzz --from 1200     ... from block 1200 of the same seed on
    ./dev soak --fuzz 500000 --member   the same to a member of a cluster, with the brokers' own

It prints its seed and what it does; the last line sums up.  Exit code 1 is a broken promise.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from faults.episodes import FLUSHED, kills, power_cuts
from faults.fuzzing import PROBE_EVERY, Fuzzer, Watchdog, tidy
from faults.member import Member
from faults.mutations import Mutator
from support.measure import (
    GIVE_BACK,
    MIB,
    check_log,
    closed_again,
    descriptors,
    in_memory,
    resident,
)
from support.raw_client import RawClient

from tidelog.testing import LocalBroker

MEMBER_BLOCK = 2_000
BLOCK = 10_000  # requests of one seed; a run goes on from any block
WARM = 3  # blocks until every decoder is compiled and every buffer has been large
# What the broker keeps by design: answers (16 MiB), fetch sessions (1,000, small ones here), and
# holes in its heap (see GIVE_BACK).
MAX_GROWTH = 30 * MIB
LONGEST_WAIT = 20.0


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def crashes(seed, minutes, killed, cut):
    end = time.monotonic() + minutes * 60
    episode = done = records = 0
    stories = {"kills": killed} | {how: -(-cut // len(FLUSHED)) for how in FLUSHED}
    while episode == 0 or time.monotonic() < end:
        for story, count in stories.items():
            if not count:
                continue
            rng = random.Random(f"{seed} {episode} {story}")
            parent = Path(tempfile.mkdtemp(prefix="tidelog-soak-"))
            say(f"round {episode}: {story}, in {parent}")
            if story == "kills":
                total = kills(parent / "data", rng, count, say)
            else:
                total = power_cuts(parent / "data", rng, count, story, say)
            say(f"round {episode}: {total:,} records acknowledged, none lost")
            shutil.rmtree(parent)
            done += count
            records += total
        episode += 1
    return (
        f"{done} crashes ({killed} kills, {cut} power cuts a round), {records:,} records "
        "acknowledged: none lost, none twice, each in its order"
    )


class Samples:
    """What the broker's process uses after each block, and whether that is a leak."""

    def __init__(self, broker):
        self._broker = broker
        self._log_read = 0
        self.memory, self.files = [], []
        self.topics = self.partitions = 0  # at most

    def take(self, topics, partitions, *, files=True):
        """``files``: descriptors are as they were (those of a member come and go)."""
        self.topics, self.partitions = max(self.topics, topics), max(self.partitions, partitions)
        if len(self.files) <= WARM or not files:
            self.files.append(descriptors(self._broker))
        else:
            self.files.append(closed_again(self._broker, min(self.files)))
        self.memory.append(resident(self._broker))
        assert self.growth() < MAX_GROWTH, f"the memory grows: {self.told()}"

    def growth(self):
        """From the end of the warm-up to now."""
        return self.memory[-1] - self.memory[min(WARM, len(self.memory) - 1)]

    def told(self):
        warm = self.memory[min(WARM, len(self.memory) - 1)]
        return (
            f"memory {warm / MIB:.1f} MiB after the warm-up, {max(self.memory) / MIB:.1f} at most, "
            f"{self.memory[len(self.memory) // 2] / MIB:.1f} at half time, "
            f"{self.memory[-1] / MIB:.1f} at the end (allowed: {MAX_GROWTH // MIB} more); "
            f"descriptors {min(self.files)} and {self.files[-1]} (allowed: none more); "
            f"at most {self.topics} topics with {self.partitions} partitions at a time"
        )

    def check_log(self):
        with open(f"{self._broker.data}.log") as file:
            file.seek(self._log_read)
            new = file.read()
            self._log_read = file.tell()
        check_log(new)


def fuzz(seed, requests, first):
    os.environ.setdefault(*GIVE_BACK)
    blocks = max(1, requests // BLOCK)
    with (
        tempfile.TemporaryDirectory(dir=in_memory(), prefix="tidelog-soak-") as folder,
        LocalBroker(data=f"{folder}/data") as broker,
        RawClient(broker.port) as client,
        Watchdog(broker.port) as watchdog,
    ):
        say(f"the broker is process {broker.pid}, its log {broker.data}.log")
        samples = Samples(broker)
        topic_id, *_ = tidy(client)
        fuzzer = Fuzzer(broker.port, seed, topic_id)
        longest = 0.0
        begun = time.monotonic()
        for block in range(first, first + blocks):
            started = time.monotonic()
            fuzzer.mutator = Mutator(f"{seed} {block}", topic_id)
            fuzzer.run(BLOCK)
            fuzzer.close()
            topic_id, *made = tidy(client)
            samples.take(*made)
            samples.check_log()
            longest = max(longest, watchdog.longest())
            watchdog.waits.clear()
            assert longest < LONGEST_WAIT, f"somebody was held up for {longest:.1f} s"
            rate = BLOCK / (time.monotonic() - started)
            say(
                f"block {block}: {fuzzer.served:,} of {blocks * BLOCK:,} requests, {rate:,.0f}/s, "
                f"{samples.memory[-1] / MIB:.1f} MiB, {made[0]} topics"
            )
        fuzzer.probes.check_all(client)
        rate = blocks * BLOCK / (time.monotonic() - begun)
        outcomes = ", ".join(
            f"{count / fuzzer.served:.1%} {name}" for name, count in fuzzer.outcomes.most_common()
        )
        return (
            f"{fuzzer.served:,} requests, {rate:,.0f}/s: {outcomes}; one in {PROBE_EVERY} was a "
            f"probe, answered correctly; longest wait {longest:.2f} s; {samples.told()}"
        )


def fuzz_member(seed, requests, first):
    os.environ.setdefault(*GIVE_BACK)
    blocks = max(1, requests // MEMBER_BLOCK)
    with (
        tempfile.TemporaryDirectory(dir=in_memory(), prefix="tidelog-soak-") as folder,
        Member(Path(folder) / "cluster") as member,
        Watchdog(member.broker.port) as watchdog,
    ):
        broker = member.broker
        say(f"the member is process {broker.pid}, its log {broker.log_path}")
        samples = Samples(broker)
        longest = 0.0
        begun = time.monotonic()
        for block in range(first, first + blocks):
            made = member.run(f"{seed} {block}", MEMBER_BLOCK)
            samples.take(*made, files=False)
            samples.check_log()
            longest = max(longest, watchdog.longest())
            watchdog.waits.clear()
            assert longest < LONGEST_WAIT, f"somebody was held up for {longest:.1f} s"
            rate = member.fuzzer.served / (time.monotonic() - begun)
            say(
                f"block {block}: {member.fuzzer.served:,} requests, {rate:,.0f}/s, "
                f"{samples.memory[-1] / MIB:.1f} MiB, {made[0]} topics"
            )
        check_log(member.other.log)
        with RawClient(broker.port) as client:
            member.fuzzer.probes.check_all(client)
        outcomes = ", ".join(
            f"{count / member.fuzzer.served:.1%} {name}"
            for name, count in member.fuzzer.outcomes.most_common()
        )
        return (
            f"{member.fuzzer.served:,} requests to a member, {blocks} elections, each obeyed: "
            f"{outcomes}; longest wait {longest:.2f} s; {samples.told()}"
        )


def main():
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=0, help="go on for so long")
    parser.add_argument("--kills", type=int, help="in one round (100)")
    parser.add_argument("--cuts", type=int, help="power cuts in one round (100)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(random.randbytes(4), "big"))
    parser.add_argument(
        "--fuzz",
        type=int,
        nargs="?",
        const=10_000_000,
        metavar="N",
        help="N mutated requests (ten million if not said) instead of crashes",
    )
    parser.add_argument("--member", action="store_true", help="fuzz a member of a cluster")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first block")
    options = parser.parse_args()
    say(f"seed {options.seed}")
    try:
        if options.fuzz is not None:
            run = fuzz_member if options.member else fuzz
            summary = run(options.seed, options.fuzz, options.first)
        else:
            # Who names one of the two wants only that.
            named = options.kills is not None or options.cuts is not None
            kill_count, cut_count = (options.kills or 0, options.cuts or 0) if named else (100, 100)
            summary = crashes(options.seed, options.minutes, kill_count, cut_count)
    except AssertionError as error:
        say(f"VIOLATION (seed {options.seed}): {error}")
        return 1
    say(f"seed {options.seed}: every promise was kept. {summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
