"""A cluster under load while its brokers die, for as long as you like.

    PYTHONPATH=tests python -m faults.cluster_soak --minutes 10 --seed 7

Every few seconds something happens: a broker, the controller or all of them are killed, frozen
for longer than their session, or restarted; ZooKeeper is restarted.  Producers are idempotent
and wait for all replicas in sync.  After each round everything that was acknowledged must be
there, once and in order, and the replicas must have the same bytes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from cluster.test_failover import back_in_sync, same_logs
from cluster_support import Load, controller, create_topic, everybody_knows, leaders
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


def restart(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    broker = cluster.brokers[chance.choice(list(cluster.brokers))]
    assert broker.stop() == 0
    broker.start()


def restart_zookeeper(cluster: LocalCluster, chance: random.Random, topic: str) -> None:
    assert cluster._server is not None
    cluster._server.kill()
    cluster._server.start()
    cluster._server.wait_ready()


EVENTS = [kill_leader, kill_controller, kill_all, freeze, restart, restart_zookeeper]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}: run it again with --seed {seed}", flush=True)
    end = time.monotonic() + options.minutes * 60
    number = total = 0
    with LocalCluster(3, SETTINGS) as cluster:
        while time.monotonic() < end:
            number += 1
            topic = f"soak-{number}"
            create_topic(cluster.brokers[1], topic, PARTITIONS)
            everybody_knows(cluster, topic)
            events = chance.choices(EVENTS, k=4)
            print(f"round {number}: {', '.join(e.__name__ for e in events)}", flush=True)
            with Load(cluster.bootstrap, topic, PARTITIONS) as load:
                for event in events:
                    load.more()
                    event(cluster, chance, topic)
                    load.more()
                back_in_sync(cluster, topic)
            load.check(cluster.bootstrap)
            same_logs(cluster, topic, PARTITIONS)
            total += load.total
            for broker in cluster.brokers.values():
                if "Traceback" in broker.log:
                    sys.exit(f"broker {broker.broker_id}:\n{broker.log}")
            print(f"  {load.total} records acknowledged, all there", flush=True)
    print(f"{number} rounds, {total} records: nothing lost, nothing twice, all in order")


if __name__ == "__main__":
    main()
