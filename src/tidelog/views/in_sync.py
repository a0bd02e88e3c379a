"""Which replicas are in sync; and why a topic takes no records: too few are in sync, it has no
leader, or it cannot be created."""

from __future__ import annotations

from collections.abc import Container, Iterable

from tidelog.client import admin
from tidelog.client.admin import ConfigResource
from tidelog.client.cluster import NO_LEADER, Cluster, TopicView, error_of
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.text import plural
from tidelog.wire.messages.create_topics import CreateTopicsResponse


def newcomers(
    cluster: Cluster, brokers: Container[int], topics: Iterable[TopicView]
) -> dict[tuple[str, int], set[int]]:
    """Replicas that are being copied, by partition: they are not in sync yet, and need not be."""
    missing = [set(part.replicas) - set(part.isr) for topic in topics for part in topic.partitions]
    if not any(broker in brokers for behind in missing for broker in behind):
        return {}  # they are all down: no need to ask the controller, which may be down as well
    try:
        moves = admin.reassignments(cluster)
    except ApiError:
        return {}
    return {key: set(move.adding) for key, move in moves.items()}


def _minimum(cluster: Cluster, topic: str) -> int | None:
    """The topic's min.insync.replicas; None if it cannot be known now."""
    try:
        rows = admin.describe_configs(cluster, ConfigResource.TOPIC, topic)
    except ApiError:
        return None
    values = [row.value for row in rows if row.name == "min.insync.replicas"]
    return int(values[0]) if values and values[0] else None


def why_not_created(cluster: Cluster, topic: str) -> str:
    """Why a topic of this name cannot be created now, if the controller is missing."""
    request = admin.create_request([NewTopic(topic)], validate_only=True)
    (row,) = cluster.ask(
        request, CreateTopicsResponse
    ).topics  # any broker: there may be no controller
    if row.error_code != ErrorCode.REQUEST_TIMED_OUT:
        return ""
    return row.error_message or error_of(row.error_code).message


def why_not_written(cluster: Cluster, topic: str, acks: str) -> str:
    """What keeps the topic from being written to, as far as it can be seen; maybe nothing."""
    try:
        parts = cluster.metadata([topic]).topics[topic].partitions
    except ApiError:
        return ""
    offline = [part.index for part in parts if part.leader == NO_LEADER]
    if offline:
        return f"{plural(len(offline), 'partition')} of {len(parts)} without a leader"
    need = _minimum(cluster, topic) if acks in ("all", "-1") else None
    few = [
        part for part in parts if need is not None and len(part.isr) < min(need, len(part.replicas))
    ]
    if not few:
        return ""
    have = plural(min(len(part.isr) for part in few), "replica")
    return f"NOT_ENOUGH_REPLICAS: {have} in sync, and min.insync.replicas={need}"
