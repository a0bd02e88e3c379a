"""ListPartitionReassignments: reassignments in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import deadline, in_time
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(ListPartitionReassignmentsRequest, versions=(0, 0), needs="DESCRIBE CLUSTER")
async def list_partition_reassignments(
    broker: Broker, message: ListPartitionReassignmentsRequest, request: Request
) -> ListPartitionReassignmentsResponse:
    """List reassignments that are in progress."""
    until = deadline(broker, message.timeout_ms)
    controller = await in_time(broker, broker.election.active(), until)
    wanted = None
    if message.topics is not None:
        wanted = {(row.name, i) for row in message.topics for i in row.partition_indexes}
    topics = []
    for topic in controller.metadata.topics.values():
        rows = [
            OngoingPartitionReassignment(
                partition_index=i,
                replicas=list(row.replicas),
                adding_replicas=list(row.adding),
                removing_replicas=list(row.removing),
            )
            for i, row in enumerate(topic.partitions)
            if (row.adding or row.removing) and (wanted is None or (topic.name, i) in wanted)
        ]
        if rows:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=rows))
    return ListPartitionReassignmentsResponse(error_code=0, error_message=None, topics=topics)
