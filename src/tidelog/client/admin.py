"""Administration of a cluster: topics, reassignments, settings.

Only translation: a call becomes a request to the right broker, an answer becomes plain
data.  A call about several topics returns a result or an error for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

from tidelog.client.cluster import Cluster, error_of
from tidelog.client.connection import CannotConnect
from tidelog.client.partitions import in_requests
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidelog.wire.schema import Message

R = TypeVar("R", bound=Message)

TIMEOUT_MS = 30_000
_TOPICS_IN_A_REQUEST = 50  # each has dozens of settings


class ConfigResource(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4  # named by its number; an empty name stands for all brokers
    GROUP = 32


class Change(IntEnum):
    """What may be done to one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


DEFAULT_SOURCE = "default"
_SOURCES = {1: "topic", 2: "broker", 3: "all brokers", 4: "server", 5: DEFAULT_SOURCE, 8: "group"}
_TYPES = (
    ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting, its value and where that comes from."""

    name: str
    value: str | None
    source: str
    type: str
    read_only: bool
    documentation: str | None


# -- topics ---------------------------------------------------------------------


def create_request(
    topics: Iterable[NewTopic], *, validate_only: bool = False
) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                assignments=[
                    CreatableReplicaAssignment(partition_index=i, broker_ids=list(brokers))
                    for i, brokers in enumerate(topic.assignment)
                ],
                configs=[
                    CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.config.items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )


def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool = False
) -> dict[str, tuple[int, int] | ApiError]:
    """Partitions and replication factor of each new topic (-1: unknown), or an error."""
    response = _ask_controller(
        cluster,
        create_request(topics, validate_only=validate_only),
        CreateTopicsResponse,
        lambda r: [row.error_code for row in r.topics],
    )
    return {
        row.name: _failure(row, f"topic {row.name!r}")
        or (row.num_partitions, row.replication_factor)
        for row in response.topics
    }


def delete_request(names: Sequence[str]) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=TIMEOUT_MS,
    )


def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, ApiError | None]:
    """Delete topics; None, or an error, for each."""
    response = _ask_controller(
        cluster,
        delete_request(names),
        DeleteTopicsResponse,
        lambda r: [row.error_code for row in r.responses],
    )
    return {row.name or "": _failure(row, f"topic {row.name!r}") for row in response.responses}


def grow_request(
    name: str,
    count: int,
    assignment: Sequence[Sequence[int]] | None = None,
    *,
    validate_only: bool = False,
) -> CreatePartitionsRequest:
    rows = None
    if assignment is not None:
        rows = [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignment]
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=rows)],
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )


def grow_topic(
    cluster: Cluster,
    name: str,
    count: int,
    assignment: Sequence[Sequence[int]] | None = None,
    *,
    validate_only: bool = False,
) -> None:
    """Give a topic more partitions, ``count`` in all."""
    response = _ask_controller(
        cluster,
        grow_request(name, count, assignment, validate_only=validate_only),
        CreatePartitionsResponse,
        lambda r: [row.error_code for row in r.results],
    )
    _check(*response.results, subject=f"topic {name!r}")


def reassign(
    cluster: Cluster, moves: Mapping[tuple[str, int], Sequence[int] | None]
) -> dict[tuple[str, int], ApiError | None]:
    """Start reassignments (None: cancel one); None, or an error, for each partition."""
    topics: dict[str, ReassignableTopic] = {}
    for (name, index), replicas in moves.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name, partitions=[]))
        wanted = None if replicas is None else list(replicas)
        topic.partitions.append(ReassignablePartition(partition_index=index, replicas=wanted))
    response = _ask_controller(
        cluster,
        AlterPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=TIMEOUT_MS),
        AlterPartitionReassignmentsResponse,
        lambda r: [r.error_code],
    )
    _check(response)
    return {
        (topic.name, row.partition_index): _failure(row)
        for topic in response.responses
        for row in topic.partitions
    }


class Reassignment(NamedTuple):
    """A partition that is being reassigned: its old and new replicas."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas when the reassignment is complete."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


def reassignments(cluster: Cluster) -> dict[tuple[str, int], Reassignment]:
    """The partitions that are being reassigned."""
    response = _ask_controller(
        cluster,
        ListPartitionReassignmentsRequest(topics=None, timeout_ms=TIMEOUT_MS),
        ListPartitionReassignmentsResponse,
        lambda r: [r.error_code],
    )
    _check(response)
    return {
        (topic.name, row.partition_index): Reassignment(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in response.topics
        for row in topic.partitions
    }


def elect_leaders(
    cluster: Cluster, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], ApiError | None]:
    """Have preferred leaders elected; None, or an error, for each partition."""
    wanted = list(partitions)
    topics: dict[str, TopicPartitions] = {}
    for name, index in wanted:
        topic = topics.setdefault(name, TopicPartitions(topic=name, partitions=[]))
        topic.partitions.append(index)
    response = _ask_controller(
        cluster,
        ElectLeadersRequest(topic_partitions=list(topics.values()), timeout_ms=TIMEOUT_MS),
        ElectLeadersResponse,
        lambda r: [r.error_code],
    )
    if response.error_code:
        raise error_of(response.error_code, None)
    return {
        (topic.topic, row.partition_id): _failure(row)
        for topic in response.replica_election_results
        for row in topic.partition_result
    }


class _Answer(Protocol):
    """A message, or a part of one, that reports an error."""

    error_code: int
    error_message: str | None


def _failure(answer: _Answer, subject: str = "") -> ApiError | None:
    if not answer.error_code:
        return None
    return error_of(answer.error_code, answer.error_message, subject)


def _check(*answers: _Answer, subject: str = "") -> None:
    for answer in answers:
        if (error := _failure(answer, subject)) is not None:
            raise error


def _ask_controller(
    cluster: Cluster, request: Message, answer: type[R], codes: Callable[[R], list[int]]
) -> R:
    """Ask the controller, and its successor if it has just gone."""
    response: R | None = None
    for _ in cluster.attempts():
        controller = cluster.controller()
        try:
            response = cluster.ask(request, answer, broker=controller)
        except CannotConnect as error:  # it has died, and the others do not know yet
            problem = error
            continue
        if ErrorCode.NOT_CONTROLLER not in codes(response):
            break
    if response is None:
        raise problem
    return response


# -- settings -------------------------------------------------------------------


def describe_configs(
    cluster: Cluster,
    kind: ConfigResource,
    name: str,
    *,
    documentation: bool = False,
    seen_by: int | None = None,
) -> list[ConfigEntry]:
    """Every setting of a topic or a broker, as any broker knows it, or the one ``seen_by``."""
    request = _describe_request(kind, [name], documentation)
    asked = _owner(kind, name) if seen_by is None else seen_by
    (result,) = cluster.ask(request, DescribeConfigsResponse, broker=asked).results
    _check(result, subject=_subject(kind, name))
    return _entries(result)


def topic_configs(cluster: Cluster, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
    """Every setting of these topics, or an error that names the first one that is not there."""
    found: dict[str, list[ConfigEntry]] = {}
    for some in in_requests(names, _TOPICS_IN_A_REQUEST):
        request = _describe_request(ConfigResource.TOPIC, some)
        for result in cluster.ask(request, DescribeConfigsResponse).results:
            name = result.resource_name
            _check(result, subject=_subject(ConfigResource.TOPIC, name))
            found[name] = _entries(result)
    return found


def _describe_request(
    kind: ConfigResource, names: Iterable[str], documentation: bool = False
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for name in names
        ],
        include_documentation=documentation,
    )


def _entries(result: DescribeConfigsResult) -> list[ConfigEntry]:
    return [
        ConfigEntry(
            row.name,
            None if row.is_sensitive else row.value,
            _SOURCES.get(row.config_source, "unknown"),
            _TYPES[row.config_type] if 0 <= row.config_type < len(_TYPES) else _TYPES[0],
            row.read_only,
            row.documentation,
        )
        for row in result.configs
    ]


def alter_configs(
    cluster: Cluster,
    kind: ConfigResource,
    name: str,
    changes: Sequence[tuple[Change, str, str | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Change single settings: ``(what to do, setting, value)``."""
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=setting, config_operation=change, value=value)
            for change, setting, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    response = cluster.ask(request, IncrementalAlterConfigsResponse, broker=_owner(kind, name))
    (result,) = response.responses
    _check(result, subject=_subject(kind, name))


def _owner(kind: ConfigResource, name: str) -> int | None:
    """A broker's own settings are known to that broker only."""
    return int(name) if kind is ConfigResource.BROKER and name else None


def _subject(kind: ConfigResource, name: str) -> str:
    if kind is ConfigResource.TOPIC:
        return f"topic {name!r}"
    return f"broker {name}" if name else "all brokers"
