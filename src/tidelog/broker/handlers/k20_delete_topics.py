"""DeleteTopics: forget topics and their records.

Versions: 1 throttle time; 4 flexible; 5 error messages; 6 by topic id.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import deadline, for_each, in_time
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DeleteTopicsRequest, versions=(1, 6), needs="DELETE TOPIC")
async def delete_topics(
    broker: Broker, message: DeleteTopicsRequest, request: Request
) -> DeleteTopicsResponse:
    """Delete topics."""
    wanted = message.topics or [DeleteTopicState(name=name) for name in message.topic_names]
    work = partial(_delete, broker, deadline(broker, message.timeout_ms))
    distinct = {(row.name, row.topic_id): row for row in wanted}.values()
    return DeleteTopicsResponse(responses=await for_each(distinct, work, DeletableTopicResult))


async def _delete(
    broker: Broker, until: float | None, row: DeleteTopicState
) -> DeletableTopicResult:
    if row.name is None:
        found = broker.metadata.topic_by_id(row.topic_id)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        row.name = found.name
    elif row.topic_id != ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
    if not broker.settings["delete.topic.enable"]:
        text = "delete.topic.enable is false on this broker"
        raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED, text)
    known = broker.metadata.topics.get(row.name)
    await in_time(broker, broker.controller.delete_topic(row.name), until)
    topic_id = known.topic_id if known else row.topic_id
    return DeletableTopicResult(name=row.name, topic_id=topic_id, error_code=0)
