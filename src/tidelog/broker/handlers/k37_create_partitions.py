"""CreatePartitions: grow topics.

Versions: 2 flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import deadline, for_each, in_time
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import INTERNAL_TOPICS
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(CreatePartitionsRequest, versions=(0, 3), needs="ALTER TOPIC")
async def create_partitions(
    broker: Broker, message: CreatePartitionsRequest, request: Request
) -> CreatePartitionsResponse:
    """Add partitions to topics."""
    work = partial(_grow, broker, message.validate_only, deadline(broker, message.timeout_ms))
    results = await for_each(message.topics, work, CreatePartitionsTopicResult)
    return CreatePartitionsResponse(results=results)


async def _grow(
    broker: Broker, validate_only: bool, until: float | None, topic: CreatePartitionsTopic
) -> CreatePartitionsTopicResult:
    if topic.name in INTERNAL_TOPICS:
        text = f"groups are found by the number of partitions of {topic.name}: it stays"
        raise ApiError(ErrorCode.INVALID_PARTITIONS, text)
    assignment = None
    if topic.assignments is not None:
        assignment = [row.broker_ids for row in topic.assignments]
    work = broker.controller.create_partitions(
        topic.name, topic.count, assignment, validate_only=validate_only
    )
    await in_time(broker, work, until)
    return CreatePartitionsTopicResult(name=topic.name, error_code=0)
