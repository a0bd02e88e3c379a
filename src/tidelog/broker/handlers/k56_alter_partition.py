"""AlterPartition: the leader of a partition asks the controller for another in-sync set.

Versions: 2 topic ids; 3 the replicas come with their broker epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.controller.in_sync_changes import IsrChange
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ChangedPartition,
    ChangedTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_FIRST_WITH_EPOCHS = 3


@api(AlterPartitionRequest, versions=(2, 3), needs="CLUSTER_ACTION CLUSTER")
async def alter_partition(
    broker: Broker, message: AlterPartitionRequest, request: Request
) -> AlterPartitionResponse:
    """Change the in-sync replicas of partitions, for their leader."""
    controller = broker.election.controller
    asked = [
        IsrChange(
            topic.topic_id,
            row.partition_index,
            row.leader_epoch,
            tuple(state.broker_id for state in row.new_isr_with_epochs)
            if request.version >= _FIRST_WITH_EPOCHS
            else tuple(row.new_isr),
            row.partition_epoch,
            {state.broker_id: state.broker_epoch for state in row.new_isr_with_epochs},
        )
        for topic in message.topics
        for row in topic.partitions
    ]
    if controller is None or broker.standalone:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    answers = await broker.election.decide(
        controller.alter_partitions(message.broker_id, message.broker_epoch, asked)
    )
    topics: dict[bytes, ChangedTopic] = {}
    for change, (code, now) in zip(asked, answers, strict=True):
        topic = topics.setdefault(
            change.topic_id, ChangedTopic(topic_id=change.topic_id, partitions=[])
        )
        topic.partitions.append(
            ChangedPartition(
                partition_index=change.partition,
                error_code=code,
                leader_id=now.leader if now else -1,
                leader_epoch=now.leader_epoch if now else -1,
                isr=list(now.isr) if now else [],
                partition_epoch=now.partition_epoch if now else -1,
            )
        )
    return AlterPartitionResponse(error_code=0, topics=list(topics.values()))
