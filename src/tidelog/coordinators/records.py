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
from tidelog.wire.schema import Bytes, Int32, Int64, Message, String, Struct, Uuid, field

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


# Type of record -> (key, value, the version of the value that is written).
TYPES: dict[int, tuple[type[Message], type[Message], int]] = {
    1: (OffsetCommitKey, OffsetCommitValue, 3),
    2: (GroupMetadataKey, GroupMetadataValue, 3),
}


class CoordinatorRecord(NamedTuple):
    """A record before it is bytes; a value of None deletes what the key names."""

    key: Message
    value: Message | None
    reason: str = ""
    version: int | None = None  # of the value, where it is not the usual one

    def encode(self) -> tuple[bytes, bytes | None, Headers]:
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
