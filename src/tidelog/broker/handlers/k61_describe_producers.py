"""DescribeProducers: the idempotent producers that a partition remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ErrorCode, describe
from tidelog.log.producer_state import NO_TRANSACTION
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DescribeProducersRequest, versions=(0, 0), needs="READ TOPIC")
def describe_producers(
    broker: Broker, message: DescribeProducersRequest, request: Request
) -> DescribeProducersResponse:
    """Describe the producers of partitions."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _describe(broker, topic.name, index)
                    for index in dict.fromkeys(topic.partition_indexes)
                ],
            )
            for topic in {row.name: row for row in message.topics}.values()
        ]
    )


def _describe(broker: Broker, topic: str, index: int) -> PartitionResponse:
    partition = broker.replicas.partitions.get((topic, index))
    if partition is None or not partition.leads:
        known_topic = broker.metadata.topics.get(topic)
        known_index = known_topic is not None and index < len(known_topic.partitions)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known_index:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return PartitionResponse(
            partition_index=index,
            error_code=code,
            error_message=describe(code),
            active_producers=[],
        )
    known = partition.log.producers
    return PartitionResponse(
        partition_index=index,
        error_code=0,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=known.transactions.get(producer_id, NO_TRANSACTION),
            )
            for producer_id, producer in known.producers.items()
        ],
    )
