"""What exists, as one immutable value.  A change makes a new one; readers never wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = (OFFSETS_TOPIC, "__transaction_state")


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition: who has it and who leads.

    The leader epoch grows with each new leader, the partition epoch (the version of the znode)
    with each change.  While replicas move, ``replicas`` holds the old and the new ones.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    written: int = field(default=-1, compare=False)  # the transaction, when read from the tree


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic and its own settings."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionInfo, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One live broker.  Without a host, clients are told the address they used."""

    broker_id: int
    host: str | None
    port: int
    rack: str | None
    epoch: int = -1  # of its registration: a restarted broker has another


def _frozen(values: Mapping[str, TopicInfo]) -> Mapping[str, TopicInfo]:
    return MappingProxyType(dict(values))


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The whole cluster at one moment."""

    cluster_id: str = ""
    controller_id: int = -1
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def topic_by_id(self, topic_id: bytes) -> TopicInfo | None:
        name = self.topic_names.get(topic_id)
        return self.topics[name] if name is not None else None

    def partition(self, key: tuple[str, int]) -> PartitionInfo | None:
        topic = self.topics.get(key[0])
        if topic is None or not 0 <= key[1] < len(topic.partitions):
            return None
        return topic.partitions[key[1]]

    def racks(self) -> dict[int, str | None]:
        return {broker: info.rack for broker, info in self.brokers.items()}

    def with_topic(self, topic: TopicInfo) -> ClusterMetadata:
        return self.with_topics([topic])

    def with_topics(self, topics: Collection[TopicInfo]) -> ClusterMetadata:
        return replace(
            self,
            topics=_frozen({**self.topics, **{topic.name: topic for topic in topics}}),
            topic_names={**self.topic_names, **{topic.topic_id: topic.name for topic in topics}},
        )

    def without_topics(self, names: Collection[str]) -> ClusterMetadata:
        return replace(
            self,
            topics=_frozen({n: t for n, t in self.topics.items() if n not in names}),
            topic_names={i: n for i, n in self.topic_names.items() if n not in names},
        )
