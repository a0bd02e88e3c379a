"""The records of ``__consumer_offsets``: Kafka's own keys and values.

    key    int16 type of record, then the fields of the key
    value  int16 version, then the fields of that version; null is a tombstone

Kafka 3.9 reads types 0 to 8, 4.x up to 16.  We write the versions that both write.  A record
of a type that is not in ``TYPES`` is left alone: a newer broker may have written it.

A tombstone of ours may carry the header ``tidelog.reason``, so that after a restart it can
still be said why an offset is gone.  Kafka ignores headers here.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.wire.compiler import decoder, encoder
from tidelog.wire.primitives import Buffer, ProtocolError
from tidelog.wire.records import Headers
from tidelog.wire.schema import Bytes, Int8, Int32, Int64, Message, String, Struct, Uuid, field

REASON_HEADER = "tidelog.reason"

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


# Type of record -> (key, value, the version of the value that is written).
TYPES: dict[int, tuple[type[Message], type[Message], int]] = {
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
}


EncodedRecord = tuple[bytes, bytes | None, Headers]  # key, value, headers


class CoordinatorRecord(NamedTuple):
    """A record before it is bytes; a value of None deletes what the key names."""

    key: Message
    value: Message | None
    reason: str = ""
    version: int | None = None  # of the value, where it is not the usual one

    def encode(self) -> EncodedRecord:
        """Key, value and headers as they go into a batch."""
        kind = self.key.api_key
        key = bytearray(kind.to_bytes(2, "big"))
        encoder(type(self.key), 0)(self.key, key)
        headers = ((REASON_HEADER, self.reason.encode()),) if self.reason else ()
        if self.value is None:
            return bytes(key), None, headers
        version = TYPES[kind][2] if self.version is None else self.version
        value = bytearray(version.to_bytes(2, "big"))
        encoder(type(self.value), version)(self.value, value)
        return bytes(key), bytes(value), headers


def decode_record(
    key: Buffer, value: Buffer | None, headers: Headers = ()
) -> CoordinatorRecord | None:
    """What a record says; None if it is of a type that we do not know.

    Raises ProtocolError if it is of a type that we know, and damaged.
    """
    if len(key) < 2:
        raise ProtocolError(f"a coordinator key of {len(key)} bytes has no type")
    kind = int.from_bytes(key[:2], "big", signed=True)
    found = TYPES.get(1 if kind == _OLD_OFFSET_KEY else kind)
    if found is None:
        return None
    key_class, value_class, _ = found
    read_key, _ = decoder(key_class, 0)(key, 2)
    reason = next((v or b"" for name, v in headers if name == REASON_HEADER), b"")
    if value is None:
        return CoordinatorRecord(read_key, None, reason.decode("utf-8", "replace"))
    if len(value) < 2:
        raise ProtocolError(f"{value_class.__name__} has no version")
    version = int.from_bytes(value[:2], "big", signed=True)
    low, high = value_class.versions
    if not low <= version <= high:
        raise ProtocolError(f"{value_class.__name__} v{version} is not known")
    read_value, _ = decoder(value_class, version)(value, 2)
    return CoordinatorRecord(read_key, read_value, reason.decode("utf-8", "replace"), version)
