"""A cluster of three real brokers on a real ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.keeper.zookeeper_server import ZooKeeperServer
from tidelog.testing import LocalCluster

# Short, so that the dead are noticed soon; who is only slow joins again by itself.
SETTINGS = {
    "zookeeper.session.timeout.ms": 4000,
    "replica.lag.time.max.ms": 4000,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 5,
}


# Where nobody dies: no broker is given up, however busy the machine.
PATIENT = {"zookeeper.session.timeout.ms": 30_000, "replica.lag.time.max.ms": 30_000}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each waits for several things in turn; on a slow machine the usual limit is for one."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def new_cluster(zookeeper_server: ZooKeeperServer) -> Any:
    """Makes clusters, each with a tree of its own in the ZooKeeper of this worker."""

    def make(
        brokers: int = 3, settings: dict[str, Any] | None = None, zookeeper: str | None = None
    ) -> LocalCluster:
        connect = zookeeper or f"{zookeeper_server.connect}/{uuid.uuid4().hex}"
        return LocalCluster(brokers, {**SETTINGS, **(settings or {})}, zookeeper=connect)

    return make


def no_surprises(cluster: LocalCluster) -> None:
    for broker in cluster.brokers.values():
        assert "Traceback" not in broker.log, f"broker {broker.broker_id}: {broker.log}"


@pytest.fixture(scope="module")
def cluster(new_cluster: Any) -> Iterator[LocalCluster]:
    """Three brokers for the tests of a module that leave them as they are."""
    with new_cluster(settings=PATIENT) as running:
        yield running
        no_surprises(running)


@pytest.fixture
def own_cluster(new_cluster: Any) -> Iterator[LocalCluster]:
    """Three brokers for one test, to kill and to restart."""
    with new_cluster() as running:
        yield running
        no_surprises(running)
