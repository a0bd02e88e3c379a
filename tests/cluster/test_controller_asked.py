"""What an administrator asks while the controller is dead is done by the next one."""

from __future__ import annotations

from support.cluster import controller

from tidelog.client import admin
from tidelog.client.cluster import Cluster
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalCluster


def test_right_after_its_death(own_cluster: LocalCluster) -> None:
    victim = controller(own_cluster)
    with Cluster(own_cluster.bootstrap, patience=100) as client:
        assert client.controller() == victim.broker_id
        victim.kill()
        others = [b for b in own_cluster.brokers if b != victim.broker_id]
        with Cluster(own_cluster.brokers[others[0]].bootstrap, patience=100) as client:
            made = admin.create_topics(client, [NewTopic("t", assignment=[others])])
            assert made == {"t": (1, 2)}
            assert admin.delete_topics(client, ["t"]) == {"t": None}
