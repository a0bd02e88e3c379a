"""The network is cut between brokers; clients reach all of them."""

from __future__ import annotations

from typing import Any

import pytest
from support.cluster import (
    Load,
    back_in_sync,
    controller,
    create_topic,
    everybody_knows,
    leaders,
    same_logs,
    without,
)
from support.cut_network import ZOOKEEPER, CutNetwork
from support.group_client import GroupClient
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalCluster
from tidelog.testing.cluster import ClusterBroker

PARTITIONS = 3
NOT_COMMITTED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


@pytest.mark.parametrize("also", [(), (ZOOKEEPER,)], ids=["from-brokers", "from-all"])
def test_a_leader_is_cut_off(new_cluster: Any, also: tuple[int, ...]) -> None:
    """Clients still reach it: it must not acknowledge what the others never get, nor say how
    far a group has read when another broker may know better."""
    cluster: LocalCluster = new_cluster()
    with CutNetwork(cluster) as network, cluster:
        create_topic(cluster.brokers[1], "load", PARTITIONS)
        create_topic(cluster.brokers[1], "asked", PARTITIONS)
        everybody_knows(cluster, "load")
        everybody_knows(cluster, "asked")
        governor = controller(cluster).broker_id
        index, victim = next(
            item for item in leaders(cluster.brokers[1], "asked").items() if item[1] != governor
        )
        others = [broker for broker in cluster.brokers if broker != victim]
        group = group_of(cluster.brokers[victim])
        commit(cluster, cluster.brokers[victim], group, 1)
        with Load(cluster.bootstrap, "load", PARTITIONS) as load:
            load.more()
            with network.cut(victim, *others, *also):
                until(lambda: without(cluster, victim, "load"), "the others go on")
                with RawClient(cluster.brokers[victim].port) as client:
                    answer = client.produce(
                        "asked", batch_of(b"1"), partition=index, timeout_ms=1000
                    )
                    assert answer.error_code in NOT_COMMITTED, ErrorCode(answer.error_code).name
                with GroupClient(cluster.brokers[victim].port, timeout=200) as client:
                    assert client.commit(group, "asked", 2) in (
                        ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        ErrorCode.NOT_COORDINATOR,
                    )
                    if also:
                        other = cluster.brokers[others[0]]
                        until(
                            lambda: victim not in leaders(other, "asked").values(),
                            "another leads what was the victim's",
                        )
                        commit(cluster, other, group, 3)
                    found = client.fetch_offset(group, "asked")
                    assert found.error_code == ErrorCode.NOT_COORDINATOR, found
            back_in_sync(cluster, "load")
            load.more()
        load.check(cluster.bootstrap)
        same_logs(cluster, "load", PARTITIONS)
        same_logs(cluster, "asked", PARTITIONS)
        if also:
            until(lambda: committed(cluster, group) == 3, "everybody knows what is committed")


def find(broker: ClusterBroker, group: str) -> int | None:
    """The id of the broker that coordinates a group, as far as this one knows."""
    with GroupClient(broker.port, timeout=200) as client:
        row = client.find(group)
        return None if row.error_code else row.node_id


def group_of(broker: ClusterBroker) -> str:
    """A group that this broker coordinates."""
    until(lambda: find(broker, "any") is not None, "there are coordinators")
    names = (f"group-{number}" for number in range(1000))
    return next(name for name in names if find(broker, name) == broker.broker_id)


def commit(cluster: LocalCluster, asked: ClusterBroker, group: str, offset: int) -> None:
    def tried() -> bool:
        found = find(asked, group)
        if found is None:
            return False
        with GroupClient(cluster.brokers[found].port, timeout=200) as client:
            return client.commit(group, "asked", offset) == 0

    until(tried, f"{offset} is committed")


def committed(cluster: LocalCluster, group: str) -> int:
    found = find(next(cluster.running()), group)
    if found is None:
        return -1
    with GroupClient(cluster.brokers[found].port, timeout=200) as client:
        row = client.fetch_offset(group, "asked")
        return -1 if row.error_code else row.topics[0].partitions[0].committed_offset
