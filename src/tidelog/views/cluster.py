"""A cluster: its brokers, what they lead, what they have on disk, and what is wrong."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from tidelog.client.cluster import Cluster
from tidelog.client.partitions import log_sizes
from tidelog.errors import ApiError
from tidelog.views.in_sync import newcomers


@dataclass(frozen=True, slots=True)
class BrokerSummary:
    """A broker that is registered."""

    id: int
    address: str
    rack: str | None
    leads: int
    replicas: int
    bytes: int | None  # None: it does not answer
    answers: bool


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """Brokers, and how many partitions are as they should be."""

    cluster_id: str | None
    controller: int
    topics: int
    partitions: int
    under_replicated: int
    moving: int
    offline: int
    brokers: list[BrokerSummary]
    down: list[int]  # they have replicas, and are not registered


def describe_cluster(cluster: Cluster) -> ClusterSummary:
    metadata = cluster.metadata()
    partitions = [view for topic in metadata.topics.values() for view in topic.partitions]
    silent = cluster.silent(metadata.brokers)
    coming = newcomers(cluster, metadata.brokers, metadata.topics.values())
    assigned = {broker for view in partitions for broker in view.replicas}
    return ClusterSummary(
        metadata.cluster_id,
        metadata.controller_id,
        len(metadata.topics),
        len(partitions),
        sum(
            bool({*view.replicas} - {*view.isr} - coming.get((topic.name, view.index), set()))
            for topic in metadata.topics.values()
            for view in topic.partitions
        ),
        len(coming),
        sum(view.leader < 0 for view in partitions),
        [
            BrokerSummary(
                broker.broker_id,
                broker.address,
                broker.rack,
                sum(view.leader == broker.broker_id for view in partitions),
                sum(broker.broker_id in view.replicas for view in partitions),
                None if broker.broker_id in silent else _size(cluster, broker.broker_id),
                broker.broker_id not in silent,
            )
            for broker in metadata.brokers.values()
        ],
        sorted(assigned - metadata.brokers.keys()),
    )


def _size(cluster: Cluster, broker_id: int) -> int | None:
    with contextlib.suppress(ApiError):
        return sum(row.size for row in log_sizes(cluster, brokers=[broker_id]))
    return None
