"""StopReplica: API key 5.  From the controller to a broker: let go of this, or delete it."""

from __future__ import annotations

from tidelog.wire.schema import Bool, Int16, Int32, Int64, Message, String, Struct, field


class StopReplicaPartitionState(Struct):
    partition_index: Int32
    leader_epoch: Int32 = -1
    delete_partition: Bool


class StopReplicaTopicState(Struct):
    topic_name: String
    partition_states: list[StopReplicaPartitionState]


class StopReplicaRequest(Message, key=5, versions=(3, 4), flexible=2):
    controller_id: Int32
    is_k_raft_controller: Bool = field(default=False, since=4)
    controller_epoch: Int32
    broker_epoch: Int64 = -1
    topic_states: list[StopReplicaTopicState]


class StopReplicaPartitionError(Struct):
    topic_name: String
    partition_index: Int32
    error_code: Int16


class StopReplicaResponse(Message, key=5, versions=(3, 4), flexible=2):
    error_code: Int16
    partition_errors: list[StopReplicaPartitionError]
