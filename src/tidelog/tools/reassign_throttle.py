"""The throttle of a reassignment: four settings, on the brokers and the topics that take part.

Kafka's tool sets and removes the same ones, so that either may finish what the other began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping

from tidelog.client import admin
from tidelog.client.admin import Change, ConfigEntry, ConfigResource
from tidelog.client.cluster import Cluster
from tidelog.client.connection import BrokerUnreachable
from tidelog.controller.placement import Key, Replicas
from tidelog.errors import ApiError, ErrorCode
from tidelog.partition.throttle import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
)

_RATES = (LEADER_RATE, FOLLOWER_RATE)
_REPLICAS = (LEADER_REPLICAS, FOLLOWER_REPLICAS)


def set_throttle(
    cluster: Cluster,
    current: Mapping[Key, Replicas],
    moves: Mapping[Key, Replicas],
    bytes_per_second: int,
) -> None:
    """Who has a partition now may lead it and send; who gets it fetches."""
    senders: dict[str, list[str]] = {}
    receivers: dict[str, list[str]] = {}
    brokers: set[int] = set()
    for (name, index), wanted in moves.items():
        if (name, index) not in current:
            continue  # the move is refused, with the reason
        have = current[name, index]
        new = [broker for broker in wanted if broker not in have]
        senders.setdefault(name, []).extend(f"{index}:{broker}" for broker in have)
        receivers.setdefault(name, []).extend(f"{index}:{broker}" for broker in new)
        brokers.update(have, wanted)
    live = sorted(brokers & cluster.metadata([]).brokers.keys())
    for broker in live:
        rate = str(bytes_per_second)
        changes = [(Change.SET, name, rate) for name in _RATES]
        admin.alter_configs(cluster, ConfigResource.BROKER, str(broker), changes)
    for name, rows in senders.items():
        values = {LEADER_REPLICAS: ",".join(rows), FOLLOWER_REPLICAS: ",".join(receivers[name])}
        changes = [(Change.SET, setting, value) for setting, value in values.items()]
        admin.alter_configs(cluster, ConfigResource.TOPIC, name, changes)
        for broker in live:
            _until_known(cluster, broker, name, values)


def _until_known(cluster: Cluster, broker: int, topic: str, values: Mapping[str, str]) -> None:
    """Wait until a broker has the settings: it would copy at full speed until then."""
    for _ in cluster.attempts():
        rows = admin.describe_configs(cluster, ConfigResource.TOPIC, topic, seen_by=broker)
        if values.items() <= {row.name: row.value for row in rows}.items():
            return
    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"broker {broker} has not applied the throttle")


def rates_in_force(cluster: Cluster, moves: Iterable[Key]) -> list[int]:
    """The limits, in bytes a second, that an earlier run has set and that hold for these moves."""
    topics = sorted({name for name, _ in moves})
    if not any(_own(cluster, ConfigResource.TOPIC, name, "topic", _REPLICAS) for name in topics):
        return []
    found: set[int] = set()
    for broker in sorted(cluster.metadata([]).brokers):
        with contextlib.suppress(BrokerUnreachable):  # who is down copies nothing
            rows = _own(cluster, ConfigResource.BROKER, str(broker), "broker", _RATES)
            found.update(int(row.value) for row in rows if row.value)
    return sorted(found)


def remove_throttle(cluster: Cluster, topics: Iterable[str]) -> bool:
    """Remove what :func:`set_throttle` has set; False if there was nothing."""
    found = [_remove(cluster, ConfigResource.TOPIC, name, "topic", _REPLICAS) for name in topics]
    brokers = sorted(cluster.metadata([]).brokers)
    found += [_remove(cluster, ConfigResource.BROKER, str(b), "broker", _RATES) for b in brokers]
    return any(found)


def _remove(
    cluster: Cluster, kind: ConfigResource, name: str, source: str, settings: Collection[str]
) -> bool:
    own = [row.name for row in _own(cluster, kind, name, source, settings)]
    if own:
        admin.alter_configs(cluster, kind, name, [(Change.DELETE, one, None) for one in own])
    return bool(own)


def _own(
    cluster: Cluster, kind: ConfigResource, name: str, source: str, settings: Collection[str]
) -> list[ConfigEntry]:
    rows = admin.describe_configs(cluster, kind, name)
    return [row for row in rows if row.name in settings and row.source == source]
