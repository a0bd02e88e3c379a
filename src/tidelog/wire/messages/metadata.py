"""Metadata: API key 3."""

from __future__ import annotations

from tidelog.wire.schema import ZERO_UUID, Bool, Int16, Int32, Message, String, Struct, Uuid, field


class MetadataRequestTopic(Struct):
    topic_id: Uuid = field(default=ZERO_UUID, since=10)
    name: String | None = field(default=None, nullable_since=10)


class MetadataRequest(Message, key=3, versions=(0, 13), flexible=9):
    topics: list[MetadataRequestTopic] | None = field(default=None, nullable_since=1)
    allow_auto_topic_creation: Bool = field(default=True, since=4)
    include_cluster_authorized_operations: Bool = field(default=False, since=8, until=10)
    include_topic_authorized_operations: Bool = field(default=False, since=8)


class MetadataResponseBroker(Struct):
    node_id: Int32
    host: String
    port: Int32
    rack: String | None = field(default=None, since=1)


class MetadataResponsePartition(Struct):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = field(default=-1, since=7)
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: list[Int32] = field(default=(), since=5)


class MetadataResponseTopic(Struct):
    error_code: Int16
    name: String | None = field(default=None, nullable_since=12)
    topic_id: Uuid = field(default=ZERO_UUID, since=10)
    is_internal: Bool = field(default=False, since=1)
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: Int32 = field(default=-2147483648, since=8)


class MetadataResponse(Message, key=3, versions=(0, 13), flexible=9):
    throttle_time_ms: Int32 = field(default=0, since=3)
    brokers: list[MetadataResponseBroker]
    cluster_id: String | None = field(default=None, since=2)
    controller_id: Int32 = field(default=-1, since=1)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: Int32 = field(default=-2147483648, since=8, until=10)
    error_code: Int16 = field(default=0, since=13)
