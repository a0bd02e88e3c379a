"""CreateTopics: API key 19."""

from __future__ import annotations

from tidelog.wire.schema import (
    ZERO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    Uuid,
    field,
)


class CreatableReplicaAssignment(Struct):
    partition_index: Int32
    broker_ids: list[Int32]


class CreatableTopicConfig(Struct):
    name: String
    value: String | None


class CreatableTopic(Struct):
    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreatableReplicaAssignment]
    configs: list[CreatableTopicConfig]


class CreateTopicsRequest(Message, key=19, versions=(2, 7), flexible=5):
    topics: list[CreatableTopic]
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreatableTopicConfigs(Struct):
    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool


class CreatableTopicResult(Struct):
    name: String
    topic_id: Uuid = field(default=ZERO_UUID, since=7)
    error_code: Int16
    error_message: String | None
    topic_config_error_code: Int16 = field(default=0, since=5, tag=0)
    num_partitions: Int32 = field(default=-1, since=5)
    replication_factor: Int16 = field(default=-1, since=5)
    configs: list[CreatableTopicConfigs] | None = field(default=None, since=5)


class CreateTopicsResponse(Message, key=19, versions=(2, 7), flexible=5):
    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult]
