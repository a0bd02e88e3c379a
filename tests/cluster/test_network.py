"""The network is cut between brokers; clients reach all of them."""

from __future__ import annotations

from typing import Any

import pytest
from cluster.test_failover import back_in_sync, same_logs
from cluster_support import (
    Load,
    controller,
    create_topic,
    everybody_knows,
    leaders,
    without,
)
from cut_network import ZOOKEEPER, CutNetwork
from raw_client import RawClient, batch_of
from waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalCluster

PARTITIONS = 3
NOT_COMMITTED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


@pytest.mark.parametrize("also", [(), (ZOOKEEPER,)], ids=["from-brokers", "from-all"])
def test_a_leader_is_cut_off(new_cluster: Any, also: tuple[int, ...]) -> None:
    """Clients still reach it: it must not acknowledge what the others never get."""
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
        with Load(cluster.bootstrap, "load", PARTITIONS) as load:
            load.more()
            network.cut(victim, *others, *also)
            until(lambda: without(cluster, victim, "load"), "the others go on", 200)
            with RawClient(cluster.brokers[victim].port, timeout=200) as client:
                answer = client.produce("asked", batch_of(b"1"), partition=index, timeout_ms=1000)
                assert answer.error_code in NOT_COMMITTED, ErrorCode(answer.error_code).name
            if also:
                until(
                    lambda: victim not in leaders(cluster.brokers[others[0]], "asked").values(),
                    "another leads what was the victim's",
                    200,
                )
            network.heal()
            back_in_sync(cluster, "load")
            load.more()
        load.check(cluster.bootstrap)
        same_logs(cluster, "load", PARTITIONS)
        same_logs(cluster, "asked", PARTITIONS)
