"""A cluster under load while its brokers die, for as long as you like.

    ./dev soak --minutes 10
    ./dev soak --minutes 10 --seed 7

Every few seconds something happens: a broker, the controller or all of them are killed, frozen
for longer than their session, or restarted one by one; a broker can write to its disk no longer,
or finds its logs damaged; ZooKeeper is restarted; all leaders move, many times in a row.
Producers are idempotent and wait for all replicas in sync; a group reads and commits.  After each
event the group must have what it was told is committed.  After each round everything that was
acknowledged must be there, once and in order, and the replicas must have the same bytes.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections import Counter

from cluster.test_failover import back_in_sync, damage_log, same_logs
from cluster_support import (
    Load,
    controller,
    create_topic,
    everybody_knows,
    leaders,
    move_leaders,
    without,
)
from commit_checker import Committer
from waiting import until

from tidelog.testing import LocalCluster

PARTITIONS = 6
SETTINGS = {
    "zookeeper.session.timeout.ms": 4000,
    "replica.lag.time.max.ms": 4000,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}


def kill_leader(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    known = leaders(next(cluster.running()), topic)
    kill(cluster, known[chance.randrange(PARTITIONS)])


def kill_controller(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    kill(cluster, controller(cluster).broker_id)


def kill(cluster: LocalCluster, broker_id: int) -> None:
    if broker_id in cluster.brokers:
        cluster.brokers[broker_id].kill()
        cluster.brokers[broker_id].start()


def kill_all(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    for broker in cluster.brokers.values():
        broker.kill()
    for broker in cluster.brokers.values():
        broker.launch()
    for broker in cluster.brokers.values():
        broker.wait_ready()


def freeze(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    victim = cluster.brokers[chance.choice(list(cluster.brokers))]
    others = [b for b in cluster.brokers.values() if b is not victim]
    victim.freeze()
    try:
        until(
            lambda: victim.broker_id not in leaders(others[0], topic).values(),
            "others lead",
            60,
        )
    finally:
        victim.thaw()


def restart_each(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    for broker in cluster.brokers.values():
        assert broker.stop() == 0
        broker.start()
        back_in_sync(cluster, topic)


def full_disk(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    """The kernel refuses what one broker writes, until the others go on without it."""
    victim = cluster.brokers[chance.choice(list(cluster.brokers))]
    _, most = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (0, most))

    def others_go_on() -> bool:
        """After a death of all, the victim may be the only one in sync, and lead everything."""
        other = next(b for b in cluster.brokers.values() if b is not victim)
        alone = set(leaders(other, topic).values()) == {victim.broker_id}
        return alone or without(cluster, victim.broker_id, topic)

    try:
        until(others_go_on, "the others go on", 100)
    finally:
        resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (most, most))


def damage(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    """A follower finds its log of one partition cut, with other bytes, or gone."""
    index = chance.randrange(PARTITIONS)
    leader = leaders(next(cluster.running()), topic)[index]
    victim = chance.choice([b for b in cluster.brokers.values() if b.broker_id != leader])
    victim.kill()
    damage_log(victim, f"{topic}-{index}", chance.choice(["cut", "flip", "gone"]))
    victim.start()


def restart_zookeeper(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    assert cluster._server is not None
    cluster._server.kill()
    cluster._server.start()
    cluster._server.wait_ready()


def move(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    """Leaders move again and again, with requests under way."""
    for _ in range(chance.randrange(5, 30)):
        move_leaders(cluster, topic)


EVENTS = [
    kill_leader,
    kill_controller,
    kill_all,
    freeze,
    restart_each,
    full_disk,
    damage,
    restart_zookeeper,
    move,
]


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
    try:
        summary = soak(chance, options.minutes)
    except AssertionError as error:
        sys.exit(f"VIOLATION (seed {seed}): {error}")
    print(f"seed {seed}: {summary}")


def soak(chance: random.Random, minutes: float) -> str:
    end = time.monotonic() + minutes * 60
    number = records = commits = 0
    happened: Counter[str] = Counter()
    with LocalCluster(3, SETTINGS) as cluster:
        while time.monotonic() < end:
            number += 1
            topic = f"soak-{number}"
            create_topic(cluster.brokers[1], topic, PARTITIONS)
            everybody_knows(cluster, topic)
            events = chance.choices(EVENTS, k=4)
            print(f"round {number}: {', '.join(e.__name__ for e in events)}", flush=True)
            with (
                Load(cluster.bootstrap, topic, PARTITIONS) as load,
                Committer(cluster.bootstrap, "soak", topic) as committer,
            ):
                committer.more()
                for event in events:
                    load.more()
                    event(cluster, chance, topic)
                    back_in_sync(cluster, topic)
                    load.more()
                    committer.check()
                    committer.more()
            load.check(cluster.bootstrap)
            committer.check()
            same_logs(cluster, topic, PARTITIONS)
            for broker in cluster.brokers.values():
                assert "Traceback" not in broker.log, f"broker {broker.broker_id}:\n{broker.log}"
            happened.update(event.__name__ for event in events)
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
