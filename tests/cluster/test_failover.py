"""Brokers die under load; nothing that was acknowledged is lost, repeated or out of order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import PATIENT, no_surprises
from support.cluster import (
    Load,
    back_in_sync,
    controller,
    create_topic,
    damage_log,
    everybody_knows,
    in_sync,
    kill_at_once,
    leaders,
    metadata,
    same_logs,
)
from support.commit_checker import Committer
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalCluster
from tidelog.testing.cluster import ClusterBroker

PARTITIONS = 3


def a_survivor(cluster: LocalCluster) -> ClusterBroker:
    return next(cluster.running())


def test_the_leader_dies(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    create_topic(cluster.brokers[1], "load", PARTITIONS)
    everybody_knows(cluster, "load")
    with Load(cluster.bootstrap, "load", PARTITIONS) as load:
        load.more()
        victim = cluster.brokers[leaders(cluster.brokers[1], "load")[0]]
        victim.kill()
        load.more(1000)
        assert victim.broker_id not in leaders(a_survivor(cluster), "load").values()
        victim.start()
        back_in_sync(cluster, "load")
        load.more()
    load.check(cluster.bootstrap)


def test_the_controller_dies(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    create_topic(cluster.brokers[1], "load", PARTITIONS)
    everybody_knows(cluster, "load")
    first = controller(cluster)
    with Load(cluster.bootstrap, "load", PARTITIONS) as load:
        load.more()
        first.kill()
        load.more(500)
        survivor = a_survivor(cluster)
        until(
            lambda: metadata(survivor).controller_id not in (-1, first.broker_id),
            "there is another controller",
        )
        create_topic(survivor, "made-by-the-next", 3, replicas=2)
        first.start()
        back_in_sync(cluster, "load")
        load.more()
    load.check(cluster.bootstrap)


def test_all_die_at_once(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    create_topic(cluster.brokers[1], "load", PARTITIONS)
    everybody_knows(cluster, "load")
    with (
        Load(cluster.bootstrap, "load", PARTITIONS) as load,
        Committer(cluster.bootstrap, "group", "load") as committer,
    ):
        load.more(1000)
        committer.more()
        kill_at_once(cluster)
        for broker in cluster.brokers.values():
            broker.launch()
        for broker in cluster.brokers.values():
            broker.wait_ready()
        load.more(500)
        committer.check()
        committer.more()
        back_in_sync(cluster, "load")
    load.check(cluster.bootstrap)
    committer.check()


def test_a_rolling_restart(own_cluster: LocalCluster) -> None:
    """Stopped cleanly one after the other: leaders move first, and come back in sync."""
    cluster = own_cluster
    create_topic(cluster.brokers[1], "load", PARTITIONS)
    everybody_knows(cluster, "load")
    with (
        Load(cluster.bootstrap, "load", PARTITIONS) as load,
        Committer(cluster.bootstrap, "group", "load") as committer,
    ):
        for broker in cluster.brokers.values():
            load.more()
            committer.more()
            assert broker.stop() == 0
            load.more()
            committer.check()
            broker.start()
            back_in_sync(cluster, "load")
    load.check(cluster.bootstrap)
    committer.check()
    for broker in cluster.brokers.values():
        assert "that nobody has taken over" not in broker.log


def test_a_zombie_leader(own_cluster: LocalCluster) -> None:
    """Frozen for longer than its session, it wakes and still takes itself for the leader."""
    cluster = own_cluster
    create_topic(cluster.brokers[1], "load", PARTITIONS)
    everybody_knows(cluster, "load")
    with Load(cluster.bootstrap, "load", PARTITIONS) as load:
        load.more()
        zombie = cluster.brokers[leaders(cluster.brokers[1], "load")[0]]
        others = [b for b in cluster.brokers.values() if b is not zombie]
        zombie.freeze()
        until(
            lambda: leaders(others[0], "load")[0] in {b.broker_id for b in others},
            "another leads",
        )
        with RawClient(zombie.port) as client:
            request = client.produce_request("load", batch_of(b"999999999"), timeout_ms=30_000)
            client.send(request, 9)
            zombie.thaw()
            from tidelog.wire.messages.produce import ProduceResponse

            _, answer = client.receive(ProduceResponse, 9)
        code = answer.responses[0].partition_responses[0].error_code
        assert code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.NOT_ENOUGH_REPLICAS,
        ), ErrorCode(code).name
        back_in_sync(cluster, "load")
        load.more()
    load.check(cluster.bootstrap)
    assert "the session with ZooKeeper has expired" in zombie.log


@pytest.mark.parametrize("replicas", [3])
def test_not_enough_replicas(own_cluster: LocalCluster, replicas: int) -> None:
    """With min.insync.replicas=2 the last one alone takes no acks=all, but serves reads."""
    cluster = own_cluster
    create_topic(cluster.brokers[1], "careful", 1, replicas=replicas)
    everybody_knows(cluster, "careful")
    leader = cluster.brokers[leaders(cluster.brokers[1], "careful")[0]]
    with RawClient(leader.port) as client:
        assert client.produce("careful", batch_of(b"1"), timeout_ms=30_000).error_code == 0
        for broker in cluster.brokers.values():
            if broker is not leader:
                broker.kill()
        until(lambda: in_sync(leader, "careful", 1), "the others are out of sync")
        answer = client.produce("careful", batch_of(b"2"))
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        written = client.produce("careful", batch_of(b"3"), acks=1)
        assert written.error_code == 0
        (part,) = client.fetch(("careful", 0, written.base_offset))
        assert not part.records, "KIP-966: what too few have is not committed"
        assert client.read_values("careful") == [b"1"]
    for broker in cluster.brokers.values():
        if broker is not leader:
            broker.launch()
    for broker in cluster.brokers.values():
        if broker is not leader:
            broker.wait_ready()
    until(lambda: in_sync(leader, "careful", 3), "all are back")
    with RawClient(leader.port) as client:
        assert client.produce("careful", batch_of(b"4"), timeout_ms=30_000).error_code == 0
        assert client.read_values("careful") == [b"1", b"3", b"4"]


def test_a_broker_is_added(own_cluster: LocalCluster) -> None:
    """It is known everywhere and gets its share of new topics; nobody changes a setting."""
    cluster = own_cluster
    new = cluster.add_broker()
    for broker in cluster.brokers.values():
        until(lambda b=broker: len(metadata(b).brokers) == 4, "all four are known")
    create_topic(cluster.brokers[1], "wide", 8)
    everybody_knows(cluster, "wide")
    until(lambda: set(leaders(new, "wide").values()) == {1, 2, 3, 4}, "the new one leads, too")


def test_a_dead_process_is_noticed_before_its_session_ends(new_cluster: Any) -> None:
    """Its connections end and its port refuses: nobody waits for ZooKeeper."""
    with new_cluster(settings={"zookeeper.session.timeout.ms": 100_000}) as cluster:
        create_topic(cluster.brokers[1], "load", PARTITIONS)
        everybody_knows(cluster, "load")
        with Load(cluster.bootstrap, "load", PARTITIONS) as load:
            for victim in (controller(cluster), cluster.brokers[2]):
                load.more()
                victim.kill()
                load.more(500)
                victim.start()
                back_in_sync(cluster, "load")
        load.check(cluster.bootstrap)


def test_a_follower_with_a_damaged_log(own_cluster: LocalCluster) -> None:
    """It keeps what is good, fetches the rest again, and has what the others have."""
    cluster = own_cluster
    create_topic(cluster.brokers[1], "load", 1)
    everybody_knows(cluster, "load")
    with Load(cluster.bootstrap, "load", 1) as load:
        for damage in ("cut", "flip", "gone"):
            load.more(500)
            leader = leaders(cluster.brokers[1], "load")[0]
            victim = next(b for b in cluster.brokers.values() if b.broker_id != leader)
            victim.kill()
            damage_log(victim, "load-0", damage)
            load.more(500)
            victim.start()
            back_in_sync(cluster, "load")
            load.more()
    load.check(cluster.bootstrap)
    same_logs(cluster, "load", 1)


def test_its_id_was_taken_while_it_was_frozen(new_cluster: Any, tmp_path: Path) -> None:
    """It wakes up as a leader that it no longer is: it serves no more, and says why it ends."""
    cluster = new_cluster(2, PATIENT)
    settings = cluster.brokers[1].settings.copy()
    cluster.brokers[1].settings["zookeeper.session.timeout.ms"] = 2000
    with cluster:
        frozen, other = cluster.brokers[1], cluster.brokers[2]
        with RawClient(frozen.port) as client:
            frozen.freeze()
            until(lambda: {row.node_id for row in metadata(other).brokers} == {2}, "it is gone")
            twin = ClusterBroker(1, tmp_path / "twin", settings)
            try:
                twin.start()
                frozen.thaw()
                assert client.hung_up()
                assert frozen.process is not None
                assert frozen.process.wait(100) == 1, "as if the id had been taken at its start"
                said = f"a broker with this id is running already, on 127.0.0.1:{twin.port}"
                assert frozen.log.count(said) == 1
                assert "ERROR" not in frozen.log
                until(lambda: len(metadata(twin).brokers) == 2, "the other one goes on")
            finally:
                twin.kill()
        no_surprises(cluster)
