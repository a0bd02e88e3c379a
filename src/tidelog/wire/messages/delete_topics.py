"""DeleteTopics: API key 20."""

from __future__ import annotations

from tidelog.wire.schema import ZERO_UUID, Int16, Int32, Message, String, Struct, Uuid, field


class DeleteTopicState(Struct):
    name: String | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message, key=20, versions=(1, 6), flexible=4):
    topics: list[DeleteTopicState] = field(default=(), since=6)
    topic_names: list[String] = field(default=(), until=5)
    timeout_ms: Int32


class DeletableTopicResult(Struct):
    name: String | None = field(default=None, nullable_since=6)
    topic_id: Uuid = field(default=ZERO_UUID, since=6)
    error_code: Int16
    error_message: String | None = field(default=None, since=5)


class DeleteTopicsResponse(Message, key=20, versions=(1, 6), flexible=4):
    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult]
