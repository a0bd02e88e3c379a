"""AlterPartitionReassignments: assign replicas to other brokers, or cancel that.

A reassignment ends by itself when all new replicas are in sync.  Versions: 1 whether the number of
replicas may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import deadline, in_time
from tidelog.controller.elections import target
from tidelog.controller.store import Key
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.controller.election import Election


@api(AlterPartitionReassignmentsRequest, versions=(0, 1), needs="ALTER CLUSTER")
async def alter_partition_reassignments(
    broker: Broker, message: AlterPartitionReassignmentsRequest, request: Request
) -> AlterPartitionReassignmentsResponse:
    """Reassign replicas."""
    wanted = {
        (topic.name, row.partition_index): None if row.replicas is None else tuple(row.replicas)
        for topic in message.topics
        for row in topic.partitions
    }
    work = _reassign(broker.election, wanted, message.allow_replication_factor_change)
    results = await in_time(broker, work, deadline(broker, message.timeout_ms))
    topics: dict[str, ReassignableTopicResponse] = {}
    for (name, index), problem in results.items():
        topic = topics.setdefault(name, ReassignableTopicResponse(name=name, partitions=[]))
        topic.partitions.append(
            ReassignablePartitionResponse(
                partition_index=index,
                error_code=problem.code if problem else 0,
                error_message=problem.message if problem else None,
            )
        )
    return AlterPartitionReassignmentsResponse(
        error_code=0, error_message=None, responses=list(topics.values())
    )


async def _reassign(
    election: Election, wanted: dict[Key, tuple[int, ...] | None], other_count: bool
) -> dict[Key, ApiError | None]:
    controller = await election.active()
    results = {} if other_count else _other_count(controller.metadata, wanted)
    rest = {key: to for key, to in wanted.items() if key not in results}
    results.update(await election.decide(controller.reassign(rest)))
    return results


def _other_count(
    metadata: ClusterMetadata, wanted: dict[Key, tuple[int, ...] | None]
) -> dict[Key, ApiError | None]:
    """Those that would change the number of replicas."""
    problems: dict[Key, ApiError | None] = {}
    for (name, index), replicas in wanted.items():
        topic = metadata.topics.get(name)
        if topic is None or replicas is None or not 0 <= index < len(topic.partitions):
            continue
        have = len(target(topic.partitions[index]))
        if len(replicas) != have:
            text = f"{len(replicas)} replicas instead of {have}"
            problems[name, index] = ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    return problems
