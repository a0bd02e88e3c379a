"""ElectLeaders: API key 43."""

from __future__ import annotations

from tidelog.wire.schema import Int8, Int16, Int32, Message, String, Struct, field


class TopicPartitions(Struct):
    topic: String
    partitions: list[Int32]


class ElectLeadersRequest(Message, key=43, versions=(0, 2), flexible=2):
    election_type: Int8 = field(default=0, since=1)
    topic_partitions: list[TopicPartitions] | None
    timeout_ms: Int32 = 60000


class PartitionResult(Struct):
    partition_id: Int32
    error_code: Int16
    error_message: String | None


class ReplicaElectionResult(Struct):
    topic: String
    partition_result: list[PartitionResult]


class ElectLeadersResponse(Message, key=43, versions=(0, 2), flexible=2):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(default=0, since=1)
    replica_election_results: list[ReplicaElectionResult]
