"""A cluster under load while its brokers die, for as long as you like.

    ./dev soak --minutes 10
    ./dev soak --minutes 10 --seed 7

Every few seconds something happens, see ``cluster_faults``: all of it in a random order, then again
in another.  Producers are idempotent and wait for all replicas in sync; a group reads and commits.
After each fault the group must have what it was told is committed.  After each round of four
everything that was acknowledged must be there, once and in order, and the replicas must have the
same bytes.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.cluster_faults import FAULTS, LAG_MS, PARTITIONS, SESSION_MS, Scene
from support.cluster import Load, back_in_sync, create_topic, everybody_knows, same_logs
from support.commit_checker import Committer
from support.cut_network import CutNetwork
from support.waiting import until

from tidelog.client.admin import delete_topics
from tidelog.client.cluster import Cluster
from tidelog.testing import LocalCluster

SETTINGS = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": LAG_MS,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}
IN_A_ROUND = 4


def schedule(chance: random.Random) -> Iterator[Callable[[Scene], None]]:
    while True:
        yield from chance.sample(FAULTS, len(FAULTS))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev soak", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--cluster", action="store_true", help="this one, also without --minutes")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}: run it again with --seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="tidelog-soak-"))
    try:
        summary = soak(chance, options.minutes, folder)
    except BaseException as error:
        print(f"what the brokers said and have is in {folder}", file=sys.stderr)
        if not isinstance(error, AssertionError):
            raise
        traceback.print_exc()
        sys.exit(f"VIOLATION (seed {seed}): {error}")
    shutil.rmtree(folder)
    print(f"seed {seed}: {summary}")


def delete(cluster: LocalCluster, topic: str) -> None:
    """So that the cluster does not grow; the logs of the topic before are gone by now."""
    with Cluster(cluster.bootstrap) as client:
        assert delete_topics(client, [topic]) == {topic: None}
    name, _, number = topic.rpartition("-")
    before = f"{name}-{int(number) - 1}-[0-9]"
    until(
        lambda: not any(list(b.data.glob(before)) for b in cluster.brokers.values()),
        f"{before} is deleted everywhere",
    )


def soak(chance: random.Random, minutes: float, folder: Path) -> str:
    end = time.monotonic() + minutes * 60
    number = records = commits = 0
    happened: Counter[str] = Counter()
    # Faults have a stream of their own: what they draw does not change what comes next.
    faults = schedule(random.Random(chance.random()))
    cluster = LocalCluster(3, SETTINGS, folder)
    with CutNetwork(cluster) as network, cluster:
        while time.monotonic() < end:
            number += 1
            topic = f"soak-{number}"
            print(f"round {number}", flush=True)
            create_topic(cluster.brokers[1], topic, PARTITIONS)
            everybody_knows(cluster, topic)
            with (
                Load(cluster.bootstrap, topic, PARTITIONS) as load,
                Committer(cluster.bootstrap, "soak", topic) as committer,
            ):
                committer.more()
                scene = Scene(cluster, network, chance, topic, load)
                for fault in itertools.islice(faults, IN_A_ROUND):
                    load.more()
                    fault(scene)
                    back_in_sync(cluster, topic)
                    load.more()
                    committer.check()
                    committer.more()
                    happened[fault.__name__] += 1
            load.check(cluster.bootstrap)
            committer.check()
            same_logs(cluster, topic, PARTITIONS)
            for broker in cluster.brokers.values():
                assert "Traceback" not in broker.log, f"broker {broker.broker_id}:\n{broker.log}"
            delete(cluster, topic)
            records += load.total
            commits += committer.count
            print(
                f"  {load.total} records and {committer.count} commits acknowledged, all there",
                flush=True,
            )
    times = ", ".join(f"{count} x {name}" for name, count in sorted(happened.items()))
    return (
        f"{number} rounds ({times}), {records} records: none lost, none twice, each in its order; "
        f"{commits} commits: none went back"
    )


if __name__ == "__main__":
    main()
