"""Fetch: API key 1."""

from __future__ import annotations

from tidelog.wire.schema import (
    ZERO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Struct,
    Uuid,
    field,
)


class ReplicaState(Struct):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Struct):
    partition: Int32
    current_leader_epoch: Int32 = field(default=-1, since=9)
    fetch_offset: Int64
    last_fetched_epoch: Int32 = field(default=-1, since=12)
    log_start_offset: Int64 = field(default=-1, since=5)
    partition_max_bytes: Int32
    replica_directory_id: Uuid = field(default=ZERO_UUID, since=17, tag=0)
    high_watermark: Int64 = field(default=9223372036854775807, since=18, tag=1)


class FetchTopic(Struct):
    topic: String = field(default="", until=12)
    topic_id: Uuid = field(default=ZERO_UUID, since=13)
    partitions: list[FetchPartition]


class ForgottenTopic(Struct):
    topic: String = field(default="", until=12)
    topic_id: Uuid = field(default=ZERO_UUID, since=13)
    partitions: list[Int32]


class FetchRequest(Message, key=1, versions=(4, 18), flexible=12):
    cluster_id: String | None = field(default=None, since=12, tag=0)
    replica_id: Int32 = field(default=-1, until=14)
    replica_state: ReplicaState | None = field(default=None, since=15, tag=1)
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Int32 = field(default=0, since=7)
    session_epoch: Int32 = field(default=-1, since=7)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = field(default=(), since=7)
    rack_id: String = field(default="", since=11)


class EpochEndOffset(Struct):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Struct):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Struct):
    producer_id: Int64
    first_offset: Int64


class PartitionData(Struct):
    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = field(default=-1, since=5)
    diverging_epoch: EpochEndOffset | None = field(default=None, since=12, tag=0)
    current_leader: LeaderIdAndEpoch | None = field(default=None, since=12, tag=1)
    snapshot_id: SnapshotId | None = field(default=None, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None
    preferred_read_replica: Int32 = field(default=-1, since=11)
    records: Records | None


class FetchableTopicResponse(Struct):
    topic: String = field(default="", until=12)
    topic_id: Uuid = field(default=ZERO_UUID, since=13)
    partitions: list[PartitionData]


class NodeEndpoint(Struct):
    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None


class FetchResponse(Message, key=1, versions=(4, 18), flexible=12):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(default=0, since=7)
    session_id: Int32 = field(default=0, since=7)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = field(default=(), since=16, tag=0)
