"""OffsetDelete: API key 47."""

from __future__ import annotations

from tidelog.wire.schema import Int16, Int32, Message, String, Struct


class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32


class OffsetDeleteRequestTopic(Struct):
    name: String
    partitions: list[OffsetDeleteRequestPartition]


class OffsetDeleteRequest(Message, key=47, versions=(0, 0)):
    group_id: String
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32
    error_code: Int16


class OffsetDeleteResponseTopic(Struct):
    name: String
    partitions: list[OffsetDeleteResponsePartition]


class OffsetDeleteResponse(Message, key=47, versions=(0, 0)):
    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic]
