"""DescribeTopicPartitions: topics page by page, for clusters with very many partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker import authorized_operations
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ErrorCode
from tidelog.metadata import TopicInfo
from tidelog.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_MAX_PARTITIONS = 2000


@api(DescribeTopicPartitionsRequest, versions=(0, 0), needs="DESCRIBE TOPIC")
def describe_topic_partitions(
    broker: Broker, message: DescribeTopicPartitionsRequest, request: Request
) -> DescribeTopicPartitionsResponse:
    """Describe topics page by page."""
    known = broker.metadata.topics
    names = sorted({topic.name for topic in message.topics} or known)
    first, skip = "", 0
    if message.cursor is not None:
        first, skip = message.cursor.topic_name, message.cursor.partition_index
    left = max(1, min(message.response_partition_limit, _MAX_PARTITIONS))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if name < first:
            continue
        if left == 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        topic = known.get(name)
        if topic is None:
            topics.append(_missing(name))
            continue
        start = skip if name == first else 0
        page = _describe(broker, topic, start, start + left)
        left -= len(page.partitions)
        topics.append(page)
        if start + len(page.partitions) < len(topic.partitions):
            cursor = Cursor(topic_name=name, partition_index=start + len(page.partitions))
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics)


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=name,
        topic_id=bytes(16),
        partitions=[],
        topic_authorized_operations=authorized_operations.on_topic(),
    )


def _describe(
    broker: Broker, topic: TopicInfo, start: int, end: int
) -> DescribeTopicPartitionsResponseTopic:
    live = broker.metadata.brokers
    return DescribeTopicPartitionsResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=authorized_operations.on_topic(),
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=0 if info.leader in live else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=info.leader,
                leader_epoch=info.leader_epoch,
                replica_nodes=list(info.replicas),
                isr_nodes=list(info.isr),
                # Nullable in the schema, but the Java admin client fails on null.
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[b for b in info.replicas if b not in live],
            )
            for index, info in enumerate(topic.partitions[start:end], start)
        ],
    )
