"""OffsetCommit: API key 8."""

from __future__ import annotations

from tidelog.wire.schema import ZERO_UUID, Int16, Int32, Int64, Message, String, Struct, Uuid, field


class OffsetCommitRequestPartition(Struct):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(default=-1, since=6)
    committed_metadata: String | None


class OffsetCommitRequestTopic(Struct):
    name: String = field(default="", until=9)
    topic_id: Uuid = field(default=ZERO_UUID, since=10)
    partitions: list[OffsetCommitRequestPartition]


class OffsetCommitRequest(Message, key=8, versions=(2, 10), flexible=8):
    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String
    group_instance_id: String | None = field(default=None, since=7)
    retention_time_ms: Int64 = field(default=-1, until=4)
    topics: list[OffsetCommitRequestTopic]


class OffsetCommitResponsePartition(Struct):
    partition_index: Int32
    error_code: Int16


class OffsetCommitResponseTopic(Struct):
    name: String = field(default="", until=9)
    topic_id: Uuid = field(default=ZERO_UUID, since=10)
    partitions: list[OffsetCommitResponsePartition]


class OffsetCommitResponse(Message, key=8, versions=(2, 10), flexible=8):
    throttle_time_ms: Int32 = field(default=0, since=3)
    topics: list[OffsetCommitResponseTopic]
