"""What happens to a cluster in ``./dev soak --minutes N``, one function each.

Each says in one line what it does to whom, and returns when all is well again but for replicas
that still catch up.  How often one asks ``chance`` does not depend on the cluster, so that a seed
makes the same choices.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

from support.cluster import (
    Load,
    back_in_sync,
    controller,
    damage_log,
    kill_at_once,
    leaders,
    metadata,
    move_leaders,
    topic_state,
    without,
)
from support.cut_network import ZOOKEEPER, CutNetwork
from support.waiting import until

from tidelog.testing import LocalCluster
from tidelog.testing.cluster import ClusterBroker

PARTITIONS = 6
SESSION_MS = 4000
LAG_MS = 4000
_LONGEST = 200  # seconds, on a slow machine


@dataclass(frozen=True)
class Scene:
    """A cluster under load."""

    cluster: LocalCluster
    network: CutNetwork
    chance: random.Random
    topic: str
    load: Load

    def say(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def any_broker(self) -> ClusterBroker:
        return self.chance.choice(list(self.cluster.brokers.values()))

    def second(self, victim: ClusterBroker) -> ClusterBroker | None:
        """Somebody else who dies while the victim is away, sometimes."""
        place = self.chance.randrange(6)
        return self.others(victim)[place] if place < 2 else None

    def others(self, victim: ClusterBroker) -> list[ClusterBroker]:
        return [broker for broker in self.cluster.brokers.values() if broker is not victim]


# -- brokers die ------------------------------------------------------------------------


def kill_leader(scene: Scene) -> None:
    index = scene.chance.randrange(PARTITIONS)
    leader = leaders(scene.cluster.brokers[1], scene.topic)[index]
    _kill(scene, scene.cluster.brokers[leader], f"the leader of partition {index}")


def kill_controller(scene: Scene) -> None:
    _kill(scene, controller(scene.cluster), "the controller")


def _kill(scene: Scene, victim: ClusterBroker, what: str) -> None:
    """It is back before the others have gone on without it, or after that."""
    wait = scene.chance.random() < 0.5
    when = "when the others have gone on" if wait else "at once"
    scene.say(f"kill -9 of broker {victim.broker_id}, {what}; started again {when}")
    victim.kill()
    if wait:
        until(lambda: _unregistered(scene, victim), "the others know", _LONGEST)
        scene.load.more()
    victim.start()


def kill_all(scene: Scene) -> None:
    scene.say("kill -9 of all brokers; all are started again")
    kill_at_once(scene.cluster)
    for broker in scene.cluster.brokers.values():
        broker.launch()
    for broker in scene.cluster.brokers.values():
        broker.wait_ready()


def freeze(scene: Scene) -> None:
    victim = scene.any_broker()
    second = scene.second(victim)
    scene.say(
        f"SIGSTOP of broker {victim.broker_id} for longer than its session{_named(second)}, "
        "then SIGCONT"
    )
    victim.freeze()
    try:
        until(lambda: _unregistered(scene, victim), "the others know", _LONGEST)
        scene.load.more()
        _kill_also(second)
    finally:
        victim.thaw()


def _named(second: ClusterBroker | None, joined: str = ", with") -> str:
    return f"{joined} a kill -9 of broker {second.broker_id}" if second else ""


def _kill_also(second: ClusterBroker | None) -> None:
    """One broker is left, which must not acknowledge anything before the second is back."""
    if second is not None:
        second.kill()
        second.start()


def _unregistered(scene: Scene, victim: ClusterBroker) -> bool:
    """Do all the others know that the session of the victim is over, and lead without it?"""
    return all(
        victim.broker_id not in {row.node_id for row in metadata(broker).brokers}
        and victim.broker_id not in leaders(broker, scene.topic).values()
        for broker in scene.others(victim)
    )


def restart_each(scene: Scene) -> None:
    scene.say("rolling restart: each broker is stopped cleanly and started again")
    for broker in scene.cluster.brokers.values():
        assert broker.stop() == 0
        scene.load.more()
        broker.start()
        back_in_sync(scene.cluster, scene.topic)


# -- the network is cut -------------------------------------------------------------------


def cut_from_brokers(scene: Scene) -> None:
    victim = scene.any_broker()
    others = scene.others(victim)
    _cut(scene, victim, [broker.broker_id for broker in others], "the other brokers")


def cut_from_zookeeper(scene: Scene) -> None:
    _cut(scene, scene.any_broker(), [ZOOKEEPER], "ZooKeeper")


def cut_from_all(scene: Scene) -> None:
    victim = scene.any_broker()
    others = [broker.broker_id for broker in scene.others(victim)]
    _cut(scene, victim, [*others, ZOOKEEPER], "ZooKeeper and the other brokers")


def _cut(scene: Scene, victim: ClusterBroker, others: list[int], whom: str) -> None:
    """Clients still reach it.  Healed before anything is decided, or when it is."""
    short = scene.chance.random() < 0.3
    seconds = scene.chance.uniform(0.1, SESSION_MS / 1000)
    what = f"broker {victim.broker_id} is cut off from {whom}"
    second = scene.second(victim)
    governs = controller(scene.cluster) is victim
    with scene.network.cut(victim.broker_id, *others):
        if short:
            scene.say(f"{what} for {seconds:.1f} s")
            time.sleep(seconds)
        elif ZOOKEEPER in others:
            scene.say(f"{what} for longer than its session{_named(second)}")
            # A client that is connected to the victim only asks nobody else who leads, and waits.
            until(lambda: _unregistered(scene, victim), "the others lead", _LONGEST)
            _kill_also(second)
        elif governs:
            # Only the controller takes replicas out of sync, and only where it leads it can:
            # as with Apache Kafka, what others lead waits.
            scene.say(f"{what}, as the controller, until it leads without followers")
            until(lambda: _leads_alone(scene, victim), "it leads alone", _LONGEST)
        else:
            scene.say(f"{what}, until they go on without it{_named(second, ', and then')}")
            until(lambda: _others_go_on(scene, victim), "the others go on", _LONGEST)
            if second is not None:
                second.kill()
                until(lambda: _somebody_governs(scene, second), "there is a controller", _LONGEST)
    if second is not None and second.process is None:
        second.start()  # not before: if the victim governs, nobody else can be told


def _somebody_governs(scene: Scene, dead: ClusterBroker) -> bool:
    """Whoever is left, be it the one that is cut off."""
    named = {metadata(broker).controller_id for broker in scene.others(dead)}
    return not named <= {-1, dead.broker_id}


def _leads_alone(scene: Scene, victim: ClusterBroker) -> bool:
    rows = topic_state(victim, scene.topic).partitions
    return all(
        row.isr_nodes == [victim.broker_id] for row in rows if row.leader_id == victim.broker_id
    )


def _others_go_on(scene: Scene, victim: ClusterBroker) -> bool:
    """After a death of all, the victim may lead everything."""
    led = set(leaders(scene.others(victim)[0], scene.topic).values())
    return led == {victim.broker_id} or without(scene.cluster, victim.broker_id, scene.topic)


# -- disks --------------------------------------------------------------------------------


def full_disk(scene: Scene) -> None:
    """The kernel refuses what one broker writes."""
    victim = scene.any_broker()
    scene.say(f"broker {victim.broker_id} cannot write, until the others go on without it")
    _, most = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        until(lambda: _others_go_on(scene, victim), "the others go on", _LONGEST)
    finally:
        resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (most, most))


def damage(scene: Scene) -> None:
    """A follower finds its log of one partition cut, with other bytes, or gone."""
    index = scene.chance.randrange(PARTITIONS)
    place = scene.chance.randrange(2)
    how = scene.chance.choice(["cut", "flip", "gone"])
    leader = leaders(scene.cluster.brokers[1], scene.topic)[index]
    victim = scene.others(scene.cluster.brokers[leader])[place]
    result = {"cut": "is cut in half", "flip": "has a wrong byte", "gone": "is gone"}[how]
    scene.say(f"kill -9 of broker {victim.broker_id}; its log of partition {index} {result}")
    victim.kill()
    damage_log(victim, f"{scene.topic}-{index}", how)
    victim.start()


# -- ZooKeeper, leaders -------------------------------------------------------------------


def restart_zookeeper(scene: Scene) -> None:
    """Records go on meanwhile."""
    server = scene.cluster._server
    assert server is not None
    clean = scene.chance.random() < 0.5
    scene.say(f"ZooKeeper is {'stopped' if clean else 'killed'}, and started again under load")
    if clean:
        server.stop()
    else:
        server.kill()
    try:
        scene.load.more(500)
    finally:
        server.start()
    server.wait_ready()


def move(scene: Scene) -> None:
    """Leaders move again and again, with requests under way."""
    times = scene.chance.randrange(5, 30)
    scene.say(f"all leaders move to the next replica, {times} times")
    for number in range(times):
        move_leaders(scene.cluster, scene.topic)
        if number % 2:
            scene.load.more_everywhere()


FAULTS: list[Callable[[Scene], None]] = [
    kill_leader,
    kill_controller,
    kill_all,
    freeze,
    restart_each,
    cut_from_brokers,
    cut_from_zookeeper,
    cut_from_all,
    full_disk,
    damage,
    restart_zookeeper,
    move,
]
