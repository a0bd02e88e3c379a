"""Three brokers of tidelog on ZooKeeper, three of Apache Kafka in KRaft mode, side by side.

Both have the shape of ``LocalCluster``: ``bootstrap``, and ``brokers`` by number, each of which
can be killed and started again.  What is asked of a cluster is asked with tidelog's own client,
which speaks to both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import load
from bench.kafka_peer import KafkaNode
from bench.system import BROKER, ROLLING, Bench, data_folder
from bench.wire import (
    HOST,
    BenchError,
    ask,
    batch_of,
    connect,
    produce_request,
    produce_until,
)
from tidelog.client import admin
from tidelog.client.cluster import Cluster, PartitionView
from tidelog.client.connection import BrokerUnreachable
from tidelog.errors import ApiError
from tidelog.keeper.zookeeper_server import ZooKeeperServer
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalCluster
from tidelog.testing.cluster import ClusterBroker
from tidelog.testing.ports import free_port
from tidelog.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

BROKERS = 3
ALL = -1  # acks
SETTINGS = {
    "log.retention.check.interval.ms": BROKER["log.retention.check.interval.ms"],
    "default.replication.factor": BROKERS,
    "min.insync.replicas": BROKERS - 1,
    "auto.leader.rebalance.enable": "false",  # leaders stay where a row has put them
}
_PATIENCE = 120.0
_LOOK_SECONDS = 0.002
_CONTROLLERS = 2  # endpoint type of DescribeCluster


class KafkaMember(KafkaNode):
    """One of several nodes, each broker and controller."""

    heap = ("-Xmx512m", "-Xms512m")

    def __init__(
        self, number: int, controllers: Mapping[int, int], settings: Mapping[str, Any], data: Path
    ) -> None:
        self._number = number
        self._controllers = controllers
        self.controller_port = controllers[number]
        super().__init__(settings, data)

    def _place(self) -> dict[str, Any]:
        ports, mine = self._controllers, self.controller_port
        return {
            "node.id": self._number,
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{mine}",
            "controller.quorum.voters": ",".join(f"{i}@{HOST}:{port}" for i, port in ports.items()),
            "offsets.topic.replication.factor": BROKERS,
        }


class KafkaCluster:
    """See the module."""

    def __init__(self, settings: Mapping[str, Any], data: Path) -> None:
        controllers = {i: free_port() for i in range(1, BROKERS + 1)}
        self.brokers = {
            i: KafkaMember(i, controllers, settings, data / f"kafka-{i}") for i in controllers
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.brokers.values())

    def controller(self) -> int:
        """Only controllers know which of them leads; brokers name any broker."""
        for node in self.brokers.values():
            with connect(node.controller_port) as sock:
                request = DescribeClusterRequest(
                    include_cluster_authorized_operations=False, endpoint_type=_CONTROLLERS
                )
                return ask(sock, request, 1, DescribeClusterResponse).controller_id
        raise BenchError("no node runs")

    def start(self) -> KafkaCluster:
        for node in self.brokers.values():
            node.launch()
        for node in self.brokers.values():
            node.wait_ready()
        return self

    def stop(self) -> None:
        for node in self.brokers.values():
            node.kill()


Peer = LocalCluster | KafkaCluster
Peers = dict[str, Peer]
Member = ClusterBroker | KafkaNode


@contextlib.contextmanager
def clusters(bench: Bench) -> Iterator[Peers]:
    """Both, running; Kafka is warm."""
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(data_folder(bench))
        # With its own default: what it has acknowledged is on disk.
        keeper = stack.enter_context(ZooKeeperServer(data / "zookeeper", free_port()))
        local = LocalCluster(BROKERS, SETTINGS, data / "tidelog", keeper.connect)
        stack.callback(local.stop)
        peers: Peers = {"tidelog": local.start()}
        if bench.kafka:
            bench.progress("starting Kafka")
            kafka = KafkaCluster(SETTINGS, data)
            stack.callback(kafka.stop)
            peers["kafka"] = kafka.start()
            bench.progress("warming up Kafka")
            _warm_up(kafka, 0.3 if bench.quick else 1.2)
        yield peers


def _warm_up(kafka: KafkaCluster, seconds: float) -> None:
    """Every node leads and follows, small and large batches, for so long each."""
    with client(kafka) as cluster:
        for leader, node in kafka.brokers.items():
            topic = f"warm-up-{leader}"
            replicas = [leader, *(i for i in kafka.brokers if i != leader)]
            make(cluster, topic, assignment=[replicas], config=ROLLING)
            with connect(node.port) as sock:
                for size in (0, 16 << 10, 1 << 20):
                    request = produce_request(batch_of(size)[0], topic, ALL)
                    answer = produce_until(sock, request)
                    load.pipelined(sock, request, answer, 5, seconds)


# -- questions ------------------------------------------------------------------------


def until(condition: Callable[[], bool], what: str) -> None:
    """Look again and again, and take nothing for an answer while a broker is away."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(ApiError, BrokerUnreachable, OSError, BenchError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not in {_PATIENCE:.0f} s")
        time.sleep(_LOOK_SECONDS)


def client(peer: Peer, without: int = 0) -> Cluster:
    """A client that asks any broker but one."""
    addresses = [node.bootstrap for i, node in peer.brokers.items() if i != without]
    return Cluster(",".join(addresses), patience=_PATIENCE)


def controller(peer: Peer) -> int:
    """The broker whose process is the controller."""
    if isinstance(peer, KafkaCluster):
        return peer.controller()
    with client(peer) as cluster:
        return cluster.controller()


def make(
    cluster: Cluster,
    name: str,
    partitions: int = -1,
    assignment: Sequence[Sequence[int]] = (),
    config: Mapping[str, object] | None = None,
) -> None:
    """Create a topic with a replica on every broker, and wait until it can be written."""
    factor = -1 if assignment else BROKERS
    settings = {key: str(value) for key, value in (config or {}).items()}
    created = admin.create_topics(
        cluster, [NewTopic(name, partitions, factor, assignment, settings)]
    )
    answer = created[name]
    if isinstance(answer, ApiError):
        raise BenchError(f"topic {name}: {answer.message}")
    until(lambda: all(row.leader >= 0 for row in rows(cluster, name)), f"{name} has leaders")


def drop(cluster: Cluster, name: str) -> None:
    error = admin.delete_topics(cluster, [name])[name]
    if error is not None:
        raise BenchError(f"topic {name}: {error.message}")


def rows(cluster: Cluster, name: str) -> tuple[PartitionView, ...]:
    """The partitions of a topic; an error if there are none."""
    topic = cluster.metadata([name]).topics[name]
    if not topic.partitions:
        raise BenchError(f"topic {name}: {topic.error.name}")
    return topic.partitions


def in_sync(cluster: Cluster, name: str, count: int = BROKERS) -> bool:
    return all(row.leader >= 0 and len(row.isr) == count for row in rows(cluster, name))
