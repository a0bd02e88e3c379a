"""Frames and headers: ``int32 size``, then a header, then the message.

Request header v1 is key, version, correlation id and client id; v2 adds a tag
section and goes with flexible versions (the client id keeps its old encoding).
Response header v0 is the correlation id; v1 adds tags.  An ApiVersions response
always has header v0, so that a client can read it before it knows the version.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from tidelog.wire.compiler import decoder, encoder
from tidelog.wire.primitives import MAX_TAGS, Buffer, ProtocolError, read_uvarint
from tidelog.wire.schema import Message

API_VERSIONS_KEY = 18

REQUEST_PREFIX = struct.Struct(">hhih")  # key, version, correlation id, client id length
_RESPONSE_PREFIX = struct.Struct(">ii")  # size, correlation id

R = TypeVar("R", bound=Message)


def skip_tags(buf: Buffer, pos: int) -> int:
    """Step over a tag section."""
    if buf[pos] == 0:
        return pos + 1
    count, pos = read_uvarint(buf, pos)
    if count > MAX_TAGS:
        raise ProtocolError("a tag section has too many fields")
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
        if pos > len(buf):
            raise ProtocolError("a header tag is longer than the request")
    return pos


def encode_request(message: Message, version: int, correlation_id: int, client_id: str) -> bytes:
    """A whole request frame."""
    client = client_id.encode()
    out = bytearray(4)
    out += REQUEST_PREFIX.pack(message.api_key, version, correlation_id, len(client))
    out += client
    if version >= message.flexible:
        out.append(0)
    encoder(type(message), version)(message, out)
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    return bytes(out)


def encode_response(message: Message, version: int, correlation_id: int) -> bytes:
    """A whole response frame."""
    out = bytearray(8)
    if version >= message.flexible and message.api_key != API_VERSIONS_KEY:
        out.append(0)
    encoder(type(message), version)(message, out)
    _RESPONSE_PREFIX.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def decode_response(cls: type[R], version: int, frame: Buffer) -> tuple[int, R]:
    """Correlation id and message of a response frame (without its size)."""
    if len(frame) < 4:
        raise ProtocolError("a response is shorter than its header")
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    pos = 4
    if version >= cls.flexible and cls.api_key != API_VERSIONS_KEY:
        pos = skip_tags(frame, pos)
    message, pos = decoder(cls, version)(frame, pos)
    result: R = message
    return correlation_id, result
