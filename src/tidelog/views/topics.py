"""Topics: partitions with their replicas, offsets and sizes, and settings.

A leader that does not answer costs only what it alone knows: the rest is there, with None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.client import admin
from tidelog.client.admin import DEFAULT_SOURCE, ConfigEntry
from tidelog.client.cluster import NO_LEADER, Cluster, TopicView, check_topic
from tidelog.client.partitions import extents, log_sizes
from tidelog.errors import ApiError
from tidelog.topic_partition import TopicPartition
from tidelog.views.in_sync import newcomers
from tidelog.wire.uuids import uuid_text


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list."""

    name: str
    partitions: int
    replication_factor: int
    internal: bool


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition; what its leader does not say is None."""

    partition: int
    leader: int  # -1: none
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    adding: list[int]  # being copied: not in sync yet
    offline: list[int]
    start: int | None
    end: int | None
    offsets: int | None
    records: int | None  # None also if compaction may have left gaps
    bytes: int | None

    @property
    def is_silent(self) -> bool:
        """It has a leader, as far as other brokers know, which has not answered."""
        return self.leader >= 0 and self.offsets is None

    @property
    def under_replicated(self) -> bool:
        return bool({*self.replicas} - {*self.isr, *self.adding})


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with all its partitions and its settings."""

    name: str
    topic_id: str
    internal: bool
    replication_factor: int
    partitions: list[PartitionDescription]
    config: dict[str, str | None]  # set on the topic
    inherited: dict[str, str | None]  # set on brokers


@dataclass(frozen=True, slots=True)
class TopicDescriptions:
    """The topics that could be described, and why others could not."""

    topics: list[TopicDescription]
    silent: list[int]  # leaders that do not answer
    error: ApiError | None  # of the first topic that is missing


def list_topics(cluster: Cluster) -> list[TopicSummary]:
    return [
        TopicSummary(
            topic.name,
            len(topic.partitions),
            len(topic.partitions[0].replicas) if topic.partitions else 0,
            topic.internal,
        )
        for topic in sorted(cluster.metadata().topics.values(), key=lambda topic: topic.name)
    ]


def describe_topics(cluster: Cluster, names: Iterable[str]) -> TopicDescriptions:
    """These topics; if none is named, all but the brokers' own."""
    wanted = list(dict.fromkeys(names))
    metadata = cluster.metadata(wanted or None)
    found = sorted(metadata.topics.values(), key=lambda topic: topic.name)
    shown = [topic for topic in found if wanted or not topic.internal]
    leaders = {part.leader for topic in shown for part in topic.partitions} - {NO_LEADER}
    silent = cluster.silent(leaders)
    coming = newcomers(cluster, metadata.brokers, shown)
    error: ApiError | None = None
    there = []
    for topic in shown:
        try:
            check_topic(topic)
            there.append(topic)
        except ApiError as missing:
            error = error or missing
    described = []
    answers = ask(cluster, there, silent)
    for topic in there:
        answer = answers[topic.name]
        if isinstance(answer, ApiError):
            error = error or answer
        else:
            described.append(_describe(topic, answer, coming))
    return TopicDescriptions(described, sorted(silent), error)


class _Answers:
    """What brokers answer about these topics: few requests, each about many of them."""

    def __init__(self, cluster: Cluster, topics: Sequence[TopicView], silent: set[int]) -> None:
        leaders = {
            TopicPartition(topic.name, part.index): part.leader
            for topic in topics
            for part in topic.partitions
            if part.leader not in (NO_LEADER, *silent)
        }
        troubled = {topic.name for topic in topics if topic.error}
        led = [partition for partition in leaders if partition.topic not in troubled]
        self.logs = extents(cluster, led, known_only=True)
        sizes = log_sizes(cluster, leaders, set(leaders.values()))
        self.sizes = {
            size.partition: size.size for size in sizes if size.broker_id == leaders[size.partition]
        }
        self.configs = admin.topic_configs(cluster, [topic.name for topic in topics])


def ask(
    cluster: Cluster, topics: Sequence[TopicView], silent: set[int]
) -> dict[str, _Answers | ApiError]:
    """The answers for each topic.  If one fails (deleted meanwhile), the others do not: each half
    of them is asked about again."""
    try:
        found = _Answers(cluster, topics, silent)
    except ApiError as error:
        if len(topics) == 1:
            return {topics[0].name: error}
        middle = len(topics) // 2
        return {
            **ask(cluster, topics[:middle], silent),
            **ask(cluster, topics[middle:], silent),
        }
    return {topic.name: found for topic in topics}


def _describe(
    topic: TopicView, answers: _Answers, coming: Mapping[tuple[str, int], set[int]]
) -> TopicDescription:
    configs = answers.configs[topic.name]
    exact = _counts_records(configs)
    partitions = []
    for part in topic.partitions:
        key = TopicPartition(topic.name, part.index)
        log = answers.logs.get(key)
        offsets = log.end - log.start if log else None
        partitions.append(
            PartitionDescription(
                part.index,
                part.leader,
                part.leader_epoch,
                list(part.replicas),
                list(part.isr),
                sorted(coming.get(key, set())),
                list(part.offline),
                log.start if log else None,
                log.end if log else None,
                offsets,
                offsets if exact else None,
                answers.sizes.get(key),
            )
        )
    return TopicDescription(
        topic.name,
        uuid_text(topic.topic_id),
        topic.internal,
        min((len({*part.replicas} - {*part.adding}) for part in partitions), default=0),
        partitions,
        {row.name: row.value for row in configs if row.source == "topic"},
        {row.name: row.value for row in configs if row.source not in ("topic", DEFAULT_SOURCE)},
    )


def _counts_records(configs: list[ConfigEntry]) -> bool:
    """Is there a record for each offset?  Compaction leaves gaps, and they stay.

    A policy that was set on the topic itself may have been another one before.
    """
    policy = next((row for row in configs if row.name == "cleanup.policy"), None)
    return policy is not None and policy.source != "topic" and "compact" not in str(policy.value)
