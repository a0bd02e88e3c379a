"""Records of coordinators: what state is written as, and read from.

    key    int16 type of record, then the fields of the key
    value  int16 version, then the fields of that version; null is a tombstone

Each coordinator declares its types in a :class:`RecordSerde`.  A tombstone of ours may carry the
header ``tidelog.reason``, so that the reason is still known after a restart; Kafka ignores headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.wire.compiler import decoder, encoder
from tidelog.wire.primitives import Buffer, ProtocolError
from tidelog.wire.records import Headers
from tidelog.wire.schema import Message

REASON_HEADER = "tidelog.reason"

EncodedRecord = tuple[bytes, bytes | None, Headers]  # key, value, headers

# Type of record -> key, value, and the version of the value that is written.
RecordTypes = Mapping[int, tuple[type[Message], type[Message], int]]


class CoordinatorRecord(NamedTuple):
    """A record before it is encoded; a value of None deletes what the key names."""

    key: Message
    value: Message | None
    reason: str = ""
    version: int | None = None  # of the value, where it is not the usual one


class RecordSerde:
    """Encodes and decodes the records of one internal topic."""

    def __init__(self, types: RecordTypes, aliases: Mapping[int, int] | None = None) -> None:
        self.types = types
        self._aliases = aliases or {}  # types that are read as another one, and never written

    def encode(self, record: CoordinatorRecord) -> EncodedRecord:
        """Key, value and headers as they go into a batch."""
        kind = record.key.api_key
        key = bytearray(kind.to_bytes(2, "big"))
        encoder(type(record.key), 0)(record.key, key)
        headers = ((REASON_HEADER, record.reason.encode()),) if record.reason else ()
        if record.value is None:
            return bytes(key), None, headers
        version = self.types[kind][2] if record.version is None else record.version
        value = bytearray(version.to_bytes(2, "big"))
        encoder(type(record.value), version)(record.value, value)
        return bytes(key), bytes(value), headers

    def decode(
        self, key: Buffer, value: Buffer | None, headers: Headers = ()
    ) -> CoordinatorRecord | None:
        """The record; None if its type is not known: a newer broker may have written it.

        Raises ProtocolError for a damaged record of a known type.
        """
        if len(key) < 2:
            raise ProtocolError(f"a coordinator key of {len(key)} bytes has no type")
        kind = int.from_bytes(key[:2], "big", signed=True)
        known = self.types.get(self._aliases.get(kind, kind))
        if known is None:
            return None
        key_class, value_class, _ = known
        read_key, _ = decoder(key_class, 0)(key, 2)
        header = next((v or b"" for name, v in headers if name == REASON_HEADER), b"")
        reason = header.decode("utf-8", "replace")
        if value is None:
            return CoordinatorRecord(read_key, None, reason)
        if len(value) < 2:
            raise ProtocolError(f"{value_class.__name__} has no version")
        version = int.from_bytes(value[:2], "big", signed=True)
        low, high = value_class.versions
        if not low <= version <= high:
            raise ProtocolError(f"{value_class.__name__} v{version} is not known")
        read_value, _ = decoder(value_class, version)(value, 2)
        return CoordinatorRecord(read_key, read_value, reason, version)
