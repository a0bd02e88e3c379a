"""Kafka's variable-length integers, and the one error that every decoder raises.

Unsigned varints carry lengths in flexible messages; zig-zag varints carry the
numbers inside a record.  Fixed-width numbers are left to :mod:`struct`.
"""

from __future__ import annotations

from tidelog.errors import ApiError, ErrorCode

Buffer = bytes | bytearray | memoryview


# No message has more than a handful; a client that sends a million only wants our time.
MAX_TAGS = 1000


class ProtocolError(ApiError):
    """The bytes are not a valid message of the announced API and version."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint (7 bits a byte, least significant first)."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Decode a length: at most five bytes, 32 bits."""
    result = shift = 0
    while True:
        if pos >= len(buf):
            raise ProtocolError("a varint runs past the end of the message")
        byte = buf[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result > 0xFFFFFFFF:
                raise ProtocolError("a varint is larger than 32 bits")
            return result, pos
        shift += 7
        if shift > 28:
            raise ProtocolError("a varint is longer than five bytes")


def varint(value: int) -> bytes:
    """Encode a zig-zag varint; serves 32 and 64 bits alike."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Decode a zig-zag varint of up to ten bytes (64 bits)."""
    result = shift = 0
    while True:
        if pos >= len(buf):
            raise ProtocolError("a varint runs past the end of the record")
        byte = buf[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result > 0xFFFFFFFFFFFFFFFF:
                raise ProtocolError("a varint is larger than 64 bits")
            return (result >> 1) ^ -(result & 1), pos
        shift += 7
        if shift > 63:
            raise ProtocolError("a varint is longer than ten bytes")
