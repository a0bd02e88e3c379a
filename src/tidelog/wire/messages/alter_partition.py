"""AlterPartition: API key 56.  A leader asks the controller to change its in-sync replicas."""

from __future__ import annotations

from tidelog.wire.schema import (
    ZERO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Struct,
    Uuid,
    field,
)


class BrokerState(Struct):
    broker_id: Int32
    broker_epoch: Int64 = -1


class PartitionChange(Struct):
    partition_index: Int32
    leader_epoch: Int32
    new_isr: list[Int32] = field(default=(), until=2)
    new_isr_with_epochs: list[BrokerState] = field(default=(), since=3)
    leader_recovery_state: Int8 = field(default=0, since=1)
    partition_epoch: Int32


class TopicChange(Struct):
    topic_id: Uuid = field(default=ZERO_UUID, since=2)
    partitions: list[PartitionChange]


class AlterPartitionRequest(Message, key=56, versions=(2, 3), flexible=0):
    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: list[TopicChange]


class ChangedPartition(Struct):
    partition_index: Int32
    error_code: Int16
    leader_id: Int32
    leader_epoch: Int32
    isr: list[Int32]
    leader_recovery_state: Int8 = field(default=0, since=1)
    partition_epoch: Int32


class ChangedTopic(Struct):
    topic_id: Uuid = field(default=ZERO_UUID, since=2)
    partitions: list[ChangedPartition]


class AlterPartitionResponse(Message, key=56, versions=(2, 3), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    topics: list[ChangedTopic]
