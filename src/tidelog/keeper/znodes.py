"""What is in the znodes of brokers, topics and settings, read with distrust.

We write them ourselves, but so do Kafka's tools, other versions of us, and people with a shell.
What makes no sense becomes :class:`UnreadableZnode`, which says where and why.  It must cost its
own broker or topic and nothing else: the caller says so in the log and goes on with the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tidelog.errors import SettingError
from tidelog.keeper import paths
from tidelog.keeper.keeper import Stat
from tidelog.metadata import BrokerInfo, PartitionInfo
from tidelog.settings import check_topic_config
from tidelog.settings_table import TOPIC_SETTINGS
from tidelog.wire.uuids import parse_uuid

log = logging.getLogger(__name__)

# Of a topic whose own settings are not known: nothing may be lost by that.
KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}


class UnreadableZnode(Exception):
    """A znode that makes no sense."""


@contextmanager
def _of(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableZnode(f"{path} makes no sense: {type(error).__name__}: {error}") from error


def broker_info(node: str, data: bytes, stat: Stat) -> BrokerInfo:
    """What a broker has said of itself, in the znode of this name."""
    with _of(f"{paths.BROKER_IDS}/{node}"):
        value = paths.from_json(data)
        host, port, rack = value["host"], value["port"], value.get("rack")
        # Kafka writes null and -1 for a broker that has other listeners than PLAINTEXT only.
        if not isinstance(host, str) or not isinstance(port, int) or not 0 <= port < 65536:
            raise ValueError(f"host {host!r} and port {port!r} are no address")
        rack = None if rack is None else _text(rack)
        return BrokerInfo(int(node), host or None, port, rack, stat.czxid)


@dataclass(frozen=True, slots=True)
class TopicValue:
    """The znode of a topic: who has its partitions."""

    topic_id: bytes
    replicas: tuple[tuple[int, ...], ...]
    adding: Mapping[int, tuple[int, ...]]
    removing: Mapping[int, tuple[int, ...]]


def topic_value(name: str, data: bytes) -> TopicValue:
    with _of(paths.topic(name)):
        value = paths.from_json(data)
        rows = value["partitions"]
        if not rows:
            raise ValueError("there are no partitions")
        return TopicValue(
            parse_uuid(value["topic_id"]),
            tuple(_replicas(rows[str(i)]) for i in range(len(rows))),
            {int(i): _brokers(row) for i, row in (value.get("adding_replicas") or {}).items()},
            {int(i): _brokers(row) for i, row in (value.get("removing_replicas") or {}).items()},
        )


def _replicas(row: Any) -> tuple[int, ...]:
    brokers = _brokers(row)
    if not brokers:
        raise ValueError("a partition has no replicas")
    return brokers


def _brokers(row: Any) -> tuple[int, ...]:
    if not isinstance(row, list) or not all(isinstance(broker, int) for broker in row):
        raise ValueError(f"{row!r} is no list of brokers")
    return tuple(row)


def partition_info(
    name: str, index: int, topic: TopicValue, found: tuple[bytes, Stat] | None
) -> PartitionInfo:
    """A partition, from the znode of its topic and its own."""
    replicas = topic.replicas[index]
    adding, removing = topic.adding.get(index, ()), topic.removing.get(index, ())
    if found is None:
        # The controller died between the topic and its partitions.
        return PartitionInfo(-1, -1, replicas, (), -1, adding, removing)
    with _of(paths.partition_state(name, index)):
        state, stat = paths.from_json(found[0]), found[1]
        return PartitionInfo(
            int(state["leader"]),
            int(state["leader_epoch"]),
            replicas,
            _brokers(state["isr"]),
            stat.version,
            adding,
            removing,
            stat.mzxid,
        )


def config(path: str, data: bytes) -> dict[str, str]:
    """Settings; of a topic only what it may have."""
    topic = path.startswith(paths.CONFIG_TOPICS + "/")
    try:
        with _of(path):
            found = paths.from_json(data)["config"] if data else {}
            values = {str(name): _text(value) for name, value in found.items()}
    except UnreadableZnode as error:
        log.error("%s; %s", error, "everything is kept" if topic else "it has no effect")
        return dict(KEEP_ALL) if topic else {}
    return _topic_config(path, values) if topic else values


def _topic_config(path: str, values: dict[str, str]) -> dict[str, str]:
    good, unsure = {}, False
    for name, value in values.items():
        try:
            check_topic_config({name: value})
            good[name] = value
        except SettingError as error:
            unsure |= name in TOPIC_SETTINGS
            log.error("%s: %s; it has no effect", path, error)
    if unsure:
        log.error("%s: as long as that is so, everything is kept", path)
        good |= KEEP_ALL
    return good


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def changed_entity(path: str, data: bytes) -> str:
    """Whose settings a note is about, as ``topics/name``; Kafka before 0.10.1 wrote it in two."""
    with _of(path):
        note = paths.from_json(data)
        if note["version"] == 1:
            return f"{_text(note['entity_type'])}/{_text(note['entity_name'])}"
        return _text(note["entity_path"])


def event_broker(path: str, data: bytes) -> int:
    """Which broker has news of its log directories."""
    with _of(path):
        return int(paths.from_json(data)["broker"])
