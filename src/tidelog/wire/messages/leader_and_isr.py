"""LeaderAndIsr: API key 4.  From the controller to a broker: lead this, follow that."""

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


class LeaderAndIsrPartitionState(Struct):
    partition_index: Int32
    controller_epoch: Int32
    leader: Int32
    leader_epoch: Int32
    isr: list[Int32]
    partition_epoch: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32] = field(default=(), since=3)
    removing_replicas: list[Int32] = field(default=(), since=3)
    is_new: Bool = field(default=False, since=1)
    leader_recovery_state: Int8 = field(default=0, since=6)


class LeaderAndIsrTopicState(Struct):
    topic_name: String
    topic_id: Uuid = field(default=ZERO_UUID, since=5)
    partition_states: list[LeaderAndIsrPartitionState]


class LeaderAndIsrLiveLeader(Struct):
    broker_id: Int32
    host_name: String
    port: Int32


class LeaderAndIsrRequest(Message, key=4, versions=(5, 7), flexible=4):
    controller_id: Int32
    is_k_raft_controller: Bool = field(default=False, since=7)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    type: Int8 = field(default=0, since=5)
    topic_states: list[LeaderAndIsrTopicState]
    live_leaders: list[LeaderAndIsrLiveLeader]


class LeaderAndIsrPartitionError(Struct):
    partition_index: Int32
    error_code: Int16


class LeaderAndIsrTopicError(Struct):
    topic_id: Uuid
    partition_errors: list[LeaderAndIsrPartitionError]


class LeaderAndIsrResponse(Message, key=4, versions=(5, 7), flexible=4):
    error_code: Int16
    topics: list[LeaderAndIsrTopicError] = field(default=(), since=5)
