"""Our bytes against kio's, an independent codec generated from Kafka's own schemas.

For every message and version: the same bytes, and both sides read them back.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
import uuid
from functools import cache
from typing import Any

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records
from support.messages import SEED, all_cases, case_id, gaps, instances, params

from tidelog.wire.compiler import decode, encode
from tidelog.wire.schema import ZERO_UUID, Message, Struct

INSTANCES = 40

# kio follows Kafka 4, which dropped these.  They are declared only because librdkafka
# before 2.11.1 does not compress unless the broker announces them (KAFKA-18659).
# ExplainGroup is tidelog's own.
NOT_IN_KIO = gaps(
    {
        "ProduceRequest": (0, 1, 2),
        "ProduceResponse": (0, 1, 2),
        "ExplainGroupRequest": (0,),
        "ExplainGroupResponse": (0,),
        # Between brokers of Kafka up to 3.9, and of tidelog.
        "LeaderAndIsrRequest": (5, 6, 7),
        "LeaderAndIsrResponse": (5, 6, 7),
        "StopReplicaRequest": (3, 4),
        "StopReplicaResponse": (3, 4),
        "UpdateMetadataRequest": (7, 8),
        "UpdateMetadataResponse": (7, 8),
        "ControlledShutdownRequest": (2, 3),
        "ControlledShutdownResponse": (2, 3),
    }
)


@cache
def kio_class(cls: type[Message], version: int) -> Any:
    load = load_request_schema if cls.__name__.endswith("Request") else load_response_schema
    try:
        return load(cls.api_key, version)
    except (UnknownAPIKey, UnknownEntity):
        return None


CASES = [case for case in all_cases() if kio_class(*case)]


def test_kio_covers_all_but_the_expected_gaps() -> None:
    missing = {case_id(*case) for case in all_cases() if not kio_class(*case)}
    assert missing == NOT_IN_KIO


@params(CASES)
def test_same_bytes_as_kio(cls: type[Message], version: int) -> None:
    theirs = kio_class(cls, version)
    read = entity_reader(theirs)
    for message in instances("kio", cls, version, INSTANCES):
        expected = write(to_kio(message, theirs, version))
        assert encode(message, version) == expected, (SEED, message)
        assert decode(cls, version, expected) == message, SEED
        # Compared as bytes: kio reads dates through floats, some a microsecond off.
        theirs_read, size = read(expected, 0)
        assert (write(theirs_read), size) == (expected, len(expected)), SEED


def write(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@params(CASES)
def test_same_fields_and_defaults_as_kio(cls: type[Message], version: int) -> None:
    _compare_declarations(cls, kio_class(cls, version), version)


def _compare_declarations(ours: type[Struct], theirs: Any, version: int) -> None:
    fields = {_our_name(f): f for f in dataclasses.fields(theirs)}
    assert set(fields) == {n for n, spec in ours._fields.items() if spec.in_version(version)}
    for name, field in fields.items():
        spec = ours._fields[name]
        assert field.metadata.get("tag") == spec.tag, name
        # A tagged struct that is not sent is None here and a default instance in kio.
        nested = _dataclass_in(field.type)
        if field.default is not dataclasses.MISSING and not (spec.tag is not None and nested):
            assert _to_kio_value(spec.default, field, version) == field.default, name


def to_kio(message: Struct, theirs: Any, version: int) -> Any:
    """The same message as an instance of kio's class."""
    return theirs(
        **{
            field.name: _to_kio_value(getattr(message, _our_name(field)), field, version)
            for field in dataclasses.fields(theirs)
        }
    )


def _our_name(field: dataclasses.Field[Any]) -> str:
    """kio drops the unit from a name when it gives the field a type with units."""
    with_unit = field.metadata.get("kafka_type", "").startswith(("timedelta", "datetime"))
    return f"{field.name}_ms" if with_unit else field.name


def _to_kio_value(value: Any, field: dataclasses.Field[Any], version: int) -> Any:
    nested = _dataclass_in(field.type)
    if isinstance(value, list | tuple):
        return tuple(to_kio(v, nested, version) if nested else v for v in value)
    if nested and value is None:
        # A tagged struct that is not sent is kio's default instance; any other is null.
        return field.default if "tag" in field.metadata else None
    if nested:
        return to_kio(value, nested, version)
    if value is None:
        return None
    match field.metadata["kafka_type"]:
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            return None if value == -1 else epoch + datetime.timedelta(milliseconds=value)
        case "uuid":
            return None if value == ZERO_UUID else uuid.UUID(bytes=value)
        case "records":
            return Records(value)
        case _:
            return value


@cache
def _dataclass_in(hint: Any) -> Any:
    """The struct inside ``X``, ``X | None`` or ``tuple[X, ...]``, or None."""
    if dataclasses.is_dataclass(hint):
        return hint
    return next(filter(None, map(_dataclass_in, typing.get_args(hint))), None)
