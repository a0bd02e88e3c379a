"""ConsumerGroupDescribe: API key 69."""

from __future__ import annotations

from tidelog.wire.schema import Bool, Int8, Int16, Int32, Message, String, Struct, Uuid, field


class ConsumerGroupDescribeRequest(Message, key=69, versions=(0, 1), flexible=0):
    group_ids: list[String] = field(default=())
    include_authorized_operations: Bool = False


class TopicPartitions(Struct):
    topic_id: Uuid
    topic_name: String
    partitions: list[Int32]


class Assignment(Struct):
    topic_partitions: list[TopicPartitions]


class DescribedMember(Struct):
    member_id: String
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: String | None = None
    assignment: Assignment
    target_assignment: Assignment
    member_type: Int8 = field(default=-1, since=1)


class DescribedConsumerGroup(Struct):
    error_code: Int16
    error_message: String | None = None
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: list[DescribedMember]
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Message, key=69, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedConsumerGroup]
