"""What the members of a classic group tell each other: subscriptions and assignments.

To the protocol these are opaque bytes that pass through the coordinator; only the members
with the protocol type ``consumer`` agree on this content.  The broker looks into them to say
who reads what and which topics a group still reads, never to decide who gets a partition.

    int16 version, then the message of that version.  A newer version than ours is read as
    ours: fields are only ever added at the end (so says Kafka's own schema).
"""

from __future__ import annotations

from typing import TypeVar

from tidelog.wire.compiler import decoder, encoder
from tidelog.wire.primitives import Buffer, ProtocolError
from tidelog.wire.schema import Bytes, Int32, Message, String, Struct, field

PROTOCOL_TYPE = "consumer"

M = TypeVar("M", bound=Message)


class SubscribedPartitions(Struct):
    topic: String
    partitions: list[Int32]


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    topics: list[String]
    user_data: Bytes | None = None
    owned_partitions: list[SubscribedPartitions] = field(default=(), since=1)
    generation_id: Int32 = field(default=-1, since=2)
    rack_id: String | None = field(default=None, since=3)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: list[SubscribedPartitions]
    user_data: Bytes | None = None


def encode_consumer(message: Message, version: int) -> bytes:
    """A subscription or an assignment with its version in front."""
    out = bytearray(version.to_bytes(2, "big"))
    encoder(type(message), version)(message, out)
    return bytes(out)


def decode_consumer(cls: type[M], data: Buffer) -> M:
    """A subscription or an assignment.  Raises ProtocolError if it is neither."""
    if len(data) < 2:
        raise ProtocolError(f"{cls.__name__} has no version")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise ProtocolError(f"{cls.__name__} has version {version}")
    message, _ = decoder(cls, min(version, cls.versions[1]))(data, 2)
    result: M = message
    return result


def subscribed_topics(data: Buffer) -> set[str] | None:
    """The topics that a member asks for; None if its metadata is not a subscription."""
    try:
        return set(decode_consumer(ConsumerProtocolSubscription, data).topics)
    except ProtocolError:
        return None


def assigned_partitions(data: Buffer) -> list[tuple[str, int]] | None:
    """The partitions that a member was given; None if that is not what the bytes say."""
    if not data:
        return []
    try:
        rows = decode_consumer(ConsumerProtocolAssignment, data).assigned_partitions
    except ProtocolError:
        return None
    return [(row.topic, partition) for row in rows for partition in row.partitions]
