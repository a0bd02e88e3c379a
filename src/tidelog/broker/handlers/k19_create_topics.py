"""CreateTopics: make topics, by count or by manual assignment.

Versions: 2 throttle time; 4 defaults for partitions and replicas (-1); 5 flexible, and
the answer carries the new topic's settings; 7 topic ids.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.configs import describe_topic
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import deadline, for_each, in_time
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import INTERNAL_TOPICS
from tidelog.new_topic import NewTopic
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(CreateTopicsRequest, versions=(2, 7), needs="CREATE CLUSTER or CREATE TOPIC")
async def create_topics(
    broker: Broker, message: CreateTopicsRequest, request: Request
) -> CreateTopicsResponse:
    """Create topics."""
    names = Counter(topic.name for topic in message.topics)
    topics = {topic.name: topic for topic in message.topics}.values()
    until = deadline(broker, message.timeout_ms)
    work = partial(_result, broker, names, message.validate_only, until)
    return CreateTopicsResponse(topics=await for_each(topics, work, CreatableTopicResult))


async def _result(
    broker: Broker,
    names: Counter[str],
    validate_only: bool,
    until: float | None,
    topic: CreatableTopic,
) -> CreatableTopicResult:
    if names[topic.name] > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "this topic is in the request twice")
    return await in_time(broker, _create(broker, topic, validate_only), until)


async def _create(
    broker: Broker, topic: CreatableTopic, validate_only: bool
) -> CreatableTopicResult:
    indexes = sorted(row.partition_index for row in topic.assignments)
    if indexes != list(range(len(indexes))):
        text = "the assigned partitions must be 0, 1, 2, ... without gaps"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    assignment = [
        row.broker_ids for row in sorted(topic.assignments, key=lambda r: r.partition_index)
    ]
    config = {row.name: row.value for row in topic.configs if row.value is not None}
    if topic.name in INTERNAL_TOPICS:
        # With the usual policy everything that a coordinator knows would be gone in a week.
        config.setdefault("cleanup.policy", "compact")
    new = NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignment, config)
    created = await broker.controller.create_topic(new, validate_only=validate_only)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=created.topic_id,
        error_code=0,
        error_message=None,
        num_partitions=len(created.partitions),
        replication_factor=len(created.partitions[0].replicas),
        configs=[
            CreatableTopicConfigs(
                name=row.name,
                value=row.value,
                read_only=row.read_only,
                config_source=row.source,
                is_sensitive=False,
            )
            for row in describe_topic(broker, created)
        ],
    )
