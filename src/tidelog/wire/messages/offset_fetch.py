"""OffsetFetch: API key 9."""

from __future__ import annotations

from tidelog.wire.schema import (
    ZERO_UUID,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    field,
)


class OffsetFetchRequestTopic(Struct):
    name: String
    partition_indexes: list[Int32]


class OffsetFetchRequestTopics(Struct):
    name: String = field(default="", until=9)
    topic_id: Uuid = field(default=ZERO_UUID, since=10)
    partition_indexes: list[Int32]


class OffsetFetchRequestGroup(Struct):
    group_id: String
    member_id: String | None = field(default=None, since=9)
    member_epoch: Int32 = field(default=-1, since=9)
    topics: list[OffsetFetchRequestTopics] | None


class OffsetFetchRequest(Message, key=9, versions=(1, 10), flexible=6):
    group_id: String = field(default="", until=7)
    topics: list[OffsetFetchRequestTopic] | None = field(default=None, until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = field(default=(), since=8)
    require_stable: Bool = field(default=False, since=7)


class OffsetFetchResponsePartition(Struct):
    partition_index: Int32
    committed_offset: Int64 = -1
    committed_leader_epoch: Int32 = field(default=-1, since=5)
    metadata: String | None
    error_code: Int16


class OffsetFetchResponseTopic(Struct):
    name: String
    partitions: list[OffsetFetchResponsePartition]


class OffsetFetchResponsePartitions(Struct):
    partition_index: Int32
    committed_offset: Int64 = -1
    committed_leader_epoch: Int32 = -1
    metadata: String | None
    error_code: Int16


class OffsetFetchResponseTopics(Struct):
    name: String = field(default="", until=9)
    topic_id: Uuid = field(default=ZERO_UUID, since=10)
    partitions: list[OffsetFetchResponsePartitions]


class OffsetFetchResponseGroup(Struct):
    group_id: String
    topics: list[OffsetFetchResponseTopics]
    error_code: Int16 = 0


class OffsetFetchResponse(Message, key=9, versions=(1, 10), flexible=6):
    throttle_time_ms: Int32 = field(default=0, since=3)
    topics: list[OffsetFetchResponseTopic] = field(default=(), until=7)
    error_code: Int16 = field(default=0, since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = field(default=(), since=8)
