"""The records of ``__consumer_offsets``: Kafka's own keys and values.

Kafka 3.9 reads types 0 to 8, 4.x up to 16.  We write the versions that both write.
"""

from __future__ import annotations

from tidelog.coordinators.records import RecordSerde
from tidelog.wire.schema import Bytes, Int8, Int32, Int64, Message, String, Struct, Uuid, field

_OLD_OFFSET_KEY = 0  # of Kafka 0.8.2: the same fields as type 1


class OffsetCommitKey(Message, key=1, versions=(0, 0)):
    group: String
    topic: String
    partition: Int32


class OffsetCommitValue(Message, key=1, versions=(0, 4), flexible=4):
    offset: Int64
    leader_epoch: Int32 = field(default=-1, since=3)
    metadata: String
    commit_timestamp: Int64
    expire_timestamp: Int64 = field(default=-1, since=1, until=1)
    topic_id: Uuid = field(default=bytes(16), since=4, tag=0)


class GroupMetadataKey(Message, key=2, versions=(0, 0)):
    group: String


class MemberMetadata(Struct):
    member_id: String
    group_instance_id: String | None = field(default=None, since=3)
    client_id: String
    client_host: String
    rebalance_timeout: Int32 = field(default=-1, since=1)
    session_timeout: Int32
    subscription: Bytes
    assignment: Bytes


class GroupMetadataValue(Message, key=2, versions=(0, 4), flexible=4):
    protocol_type: String
    generation: Int32
    protocol: String | None
    leader: String | None
    current_state_timestamp: Int64 = field(default=-1, since=2)
    members: list[MemberMetadata]


# -- consumer groups (KIP-848) ----------------------------------------------------


class ConsumerGroupMetadataKey(Message, key=3, versions=(0, 0)):
    group_id: String


class ConsumerGroupMetadataValue(Message, key=3, versions=(0, 0), flexible=0):
    epoch: Int32
    metadata_hash: Int64 = field(default=0, tag=0)  # since Kafka 4.1; older ones skip it


class ConsumerGroupMemberMetadataKey(Message, key=5, versions=(0, 0)):
    group_id: String
    member_id: String


class ClassicProtocol(Struct):
    name: String
    metadata: Bytes


class ClassicMemberMetadata(Struct):
    # Kafka declares the struct nullable, and so it has a byte in front, even with a tag.
    present: Int8 = 1
    session_timeout_ms: Int32
    supported_protocols: list[ClassicProtocol]


class ConsumerGroupMemberMetadataValue(Message, key=5, versions=(0, 0), flexible=0):
    instance_id: String | None
    rack_id: String | None
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: String | None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None
    classic_member_metadata: ClassicMemberMetadata | None = field(default=None, tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Message, key=6, versions=(0, 0)):
    group_id: String


class ConsumerGroupTargetAssignmentMetadataValue(Message, key=6, versions=(0, 0), flexible=0):
    assignment_epoch: Int32
    assignment_timestamp: Int64 = field(default=0, tag=0)


class TopicPartitions(Struct):
    topic_id: Uuid
    partitions: list[Int32]


class ConsumerGroupTargetAssignmentMemberKey(Message, key=7, versions=(0, 0)):
    group_id: String
    member_id: String


class ConsumerGroupTargetAssignmentMemberValue(Message, key=7, versions=(0, 0), flexible=0):
    topic_partitions: list[TopicPartitions]


class ConsumerGroupCurrentMemberAssignmentKey(Message, key=8, versions=(0, 0)):
    group_id: String
    member_id: String


class AssignedPartitions(Struct):
    topic_id: Uuid
    partitions: list[Int32]
    # Of each partition, since Kafka 4.3 (KIP-1251); older ones skip it.
    assignment_epochs: list[Int32] | None = field(default=None, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, key=8, versions=(0, 0), flexible=0):
    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: list[AssignedPartitions]
    partitions_pending_revocation: list[AssignedPartitions]


class ConsumerGroupRegularExpressionKey(Message, key=16, versions=(0, 0)):
    group_id: String
    regular_expression: String


class ConsumerGroupRegularExpressionValue(Message, key=16, versions=(0, 0), flexible=0):
    topics: list[String]
    version: Int64
    timestamp: Int64


ConsumerGroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)


SERDE = RecordSerde(
    {
        1: (OffsetCommitKey, OffsetCommitValue, 3),
        2: (GroupMetadataKey, GroupMetadataValue, 3),
        3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0),
        5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, 0),
        6: (
            ConsumerGroupTargetAssignmentMetadataKey,
            ConsumerGroupTargetAssignmentMetadataValue,
            0,
        ),
        7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, 0),
        8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, 0),
        16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, 0),
    },
    aliases={_OLD_OFFSET_KEY: OffsetCommitKey.api_key},
)
