"""Our bytes against kafka-python's, which compiles Kafka's JSON schemas at run time.

A second opinion next to kio: it shares no code with kio, still speaks the old
versions of Produce, and is a client that people use.
"""

from __future__ import annotations

import importlib
import uuid
from functools import cache
from typing import Any

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.schemas.fields.codecs import BitField
from support.messages import SEED, all_cases, case_id, gaps, instances, params

from tidelog.wire.compiler import decode, encode
from tidelog.wire.messages.api_versions import ApiVersionsResponse
from tidelog.wire.schema import ZERO_UUID, Message, Struct

INSTANCES = 40

# ExplainGroup is tidelog's own; kafka-python does not speak the protocol of KIP-848.
NOT_IN_KAFKA_PYTHON = gaps(
    {
        "ExplainGroupRequest": (0,),
        "ExplainGroupResponse": (0,),
        "ConsumerGroupDescribeRequest": (0, 1),
        "ConsumerGroupDescribeResponse": (0, 1),
        "ConsumerGroupHeartbeatRequest": (0, 1),
        "ConsumerGroupHeartbeatResponse": (0, 1),
        # Between brokers.
        "LeaderAndIsrRequest": (5, 6, 7),
        "LeaderAndIsrResponse": (5, 6, 7),
        "StopReplicaRequest": (3, 4),
        "StopReplicaResponse": (3, 4),
        "UpdateMetadataRequest": (7, 8),
        "UpdateMetadataResponse": (7, 8),
        "ControlledShutdownRequest": (2, 3),
        "ControlledShutdownResponse": (2, 3),
        "AlterPartitionRequest": (2, 3),
        "AlterPartitionResponse": (2, 3),
    }
)

# kafka-python gives these fields a shorter name, and the type "set of bits".
RENAMED = {
    ("MetadataResponse", "authorized_operations"): "cluster_authorized_operations",
    ("MetadataResponseTopic", "authorized_operations"): "topic_authorized_operations",
    ("DescribeClusterResponse", "authorized_operations"): "cluster_authorized_operations",
}


@cache
def kafka_python_classes() -> dict[str, Any]:
    packages = ("admin", "consumer", "metadata", "producer", "sasl")
    modules = [importlib.import_module(f"kafka.protocol.{name}") for name in packages]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, ApiMessage)
    }


def covered(cls: type[Message], version: int) -> bool:
    theirs = kafka_python_classes().get(cls.__name__)
    return theirs is not None and version <= theirs.max_version


CASES = [case for case in all_cases() if covered(*case)]


def test_kafka_python_covers_all_but_the_expected_gaps() -> None:
    missing = {case_id(*case) for case in all_cases() if not covered(*case)}
    assert missing == NOT_IN_KAFKA_PYTHON


@params(CASES)
def test_same_bytes_as_kafka_python(cls: type[Message], version: int) -> None:
    theirs = kafka_python_classes()[cls.__name__]
    assert cls.api_key == theirs.API_KEY
    for message in instances("kafka-python", cls, version, INSTANCES):
        twin = to_kafka_python(message, theirs, version)
        expected = bytes(twin.encode(version=version))
        assert encode(message, version) == expected, (SEED, message)
        assert decode(cls, version, expected) == message, SEED
        if not _read_as_version_0(message):
            assert theirs.decode(expected, version=version) == twin, SEED


def _read_as_version_0(message: Message) -> bool:
    """A bug of kafka-python: it reads ApiVersions with *any* error as version 0.

    KIP-511 says so for UNSUPPORTED_VERSION only.  (A broker that wants kafka-python
    to read its error had better answer in version 0.)
    """
    return isinstance(message, ApiVersionsResponse) and message.error_code != 0


def to_kafka_python(message: Struct, theirs: Any, version: int) -> Any:
    """The same message as an instance of kafka-python's class."""
    values = {}
    for name, field in theirs._struct.fields.items():
        if field.for_version_q(version):
            ours = RENAMED.get((type(message).__name__, name), name)
            values[name] = _to_kafka_python_value(getattr(message, ours), field, version)
    return theirs(version=version, **values)


def _to_kafka_python_value(value: Any, field: Any, version: int) -> Any:
    if value is None:
        return None
    if field.is_struct_array():
        return [to_kafka_python(item, field.data_class, version) for item in value]
    if field.is_struct():
        return to_kafka_python(value, field.data_class, version)
    if field.is_array():
        return list(value)
    if field.type_str == "uuid":
        return None if value == ZERO_UUID else uuid.UUID(bytes=value)
    if field.type_str == "bitfield":
        bits = BitField.from_32_bit_field(value & 0xFFFFFFFF)
        return None if bits == {31} else bits
    return value
