"""ControlledShutdown: API key 7.  A broker asks the controller to move its leaders away."""

from __future__ import annotations

from tidelog.wire.schema import Int16, Int32, Int64, Message, String, Struct, field


class ControlledShutdownRequest(Message, key=7, versions=(2, 3), flexible=3):
    broker_id: Int32
    broker_epoch: Int64 = field(default=-1, since=2)


class RemainingPartition(Struct):
    topic_name: String
    partition_index: Int32


class ControlledShutdownResponse(Message, key=7, versions=(2, 3), flexible=3):
    error_code: Int16
    remaining_partitions: list[RemainingPartition]
