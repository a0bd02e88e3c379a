"""OffsetForLeaderEpoch: where did an epoch end?  For readers that suspect truncation.

Versions: 2 current leader epoch; 3 replica id; 4 flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.failures import answer_row
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(
    OffsetForLeaderEpochRequest,
    versions=(2, 4),
    needs="DESCRIBE TOPIC or CLUSTER_ACTION CLUSTER",
)
def offset_for_leader_epoch(
    broker: Broker, message: OffsetForLeaderEpochRequest, request: Request
) -> OffsetForLeaderEpochResponse:
    """Find where a leader epoch ended."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    answer_row(EpochEndOffset, row, partial(_look_up, broker, topic.topic))
                    for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _look_up(broker: Broker, topic: str, row: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = broker.replicas.find(topic, row.partition)
    partition.check_leader(row.current_leader_epoch)
    log = partition.log
    epoch, end = log.epochs.end_offset(row.leader_epoch, log.end_offset)
    return EpochEndOffset(error_code=0, partition=row.partition, leader_epoch=epoch, end_offset=end)
