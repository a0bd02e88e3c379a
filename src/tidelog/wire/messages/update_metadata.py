"""UpdateMetadata: API key 6.  From the controller to every broker: what exists, who leads."""

from __future__ import annotations

from tidelog.wire.schema import (
    ZERO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    field,
)


class UpdateMetadataPartitionState(Struct):
    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: list[Int32]
    zk_version: Int32
    replicas: list[Int32]
    offline_replicas: list[Int32] = field(default=(), since=4)


class UpdateMetadataTopicState(Struct):
    topic_name: String
    topic_id: Uuid = field(default=ZERO_UUID, since=7)
    partition_states: list[UpdateMetadataPartitionState]


class UpdateMetadataEndpoint(Struct):
    port: Int32
    host: String
    listener: String = field(default="", since=3)
    security_protocol: Int16


class UpdateMetadataBroker(Struct):
    id: Int32
    endpoints: list[UpdateMetadataEndpoint]
    rack: String | None = None


class UpdateMetadataRequest(Message, key=6, versions=(7, 8), flexible=6):
    controller_id: Int32
    is_k_raft_controller: Bool = field(default=False, since=8)
    type: Int8 = field(default=0, since=8, tag=0)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    topic_states: list[UpdateMetadataTopicState]
    live_brokers: list[UpdateMetadataBroker]


class UpdateMetadataResponse(Message, key=6, versions=(7, 8), flexible=6):
    error_code: Int16
