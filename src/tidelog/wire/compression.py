"""The four codecs of a record batch, in the framing that the Java client reads.

gzip and zstd are plain streams.  lz4 needs independent blocks (Java refuses linked
ones).  snappy is cut into blocks with xerial's header; a bare snappy block, as
librdkafka sends it, is understood too.

Decompression is bounded: a batch that would grow past ``limit`` is refused before
the memory is touched, whatever its header promises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import cramjam

from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.primitives import Buffer

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LENGTH = struct.Struct(">i")

# Readers take what any Kafka wrote: their bound is memory, and what a Java array can hold.
READ_LIMIT = 2**31 - 1


class Codec(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def codec_of(attributes: int) -> Codec:
    """The codec of a batch, or an error for the three unused numbers."""
    try:
        return Codec(attributes & 7)
    except ValueError:
        message = f"a batch names compression codec {attributes & 7}; there are 0 to 4"
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message) from None


# Kafka's defaults; they are what -1 (gzip) and no level mean.
_DEFAULT_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records part of a batch, at one of Kafka's levels for this codec."""
    if codec is Codec.NONE:
        return bytes(data)
    if level is None or (codec is Codec.GZIP and level == -1):
        level = _DEFAULT_LEVELS.get(codec)
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=level))
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    if codec is Codec.LZ4:
        # In Kafka 9 is the fast compressor and the rest the high one; here 1 is, and 2 to 12 are.
        depth = 1 if level == 9 else min(max(level or 0, 2), 12)
        compressor = cramjam.lz4.Compressor(level=depth, block_linked=False)
        compressor.compress(bytes(data))  # it refuses anything but bytes
        return bytes(compressor.finish())
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK])
        out += _LENGTH.pack(len(block))
        out += bytes(block)
    return bytes(out)


def decompress(codec: Codec, data: Buffer, limit: int = READ_LIMIT) -> Buffer:
    """Undo :func:`compress`; an error if the data is damaged or grows past ``limit``."""
    if codec is Codec.NONE:
        return data
    # Snappy says how large it becomes.  The streams do not: try a buffer, then a larger one.
    size = _snappy_size(data) if codec is Codec.SNAPPY else max(64 * 1024, 4 * len(data))
    if codec is Codec.SNAPPY and size > limit:
        raise DecompressedTooLarge(limit)
    while True:
        size = min(size, limit)
        try:
            out = bytearray(size)
        except MemoryError:
            raise _no_memory(size) from None
        try:
            return memoryview(out)[: decompress_into(codec, data, out)]
        except TooSmall:
            if size >= limit:
                raise DecompressedTooLarge(limit) from None
        size *= 4


class DecompressedTooLarge(ApiError):
    """A batch becomes larger than it may."""

    def __init__(self, limit: int) -> None:
        message = f"a batch decompresses to more than {limit} bytes; send smaller batches"
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


class TooSmall(Exception):
    """The records do not fit into the buffer; with a larger one they might."""


def decompress_into(codec: Codec, data: Buffer, out: Buffer) -> int:
    """Undo :func:`compress` into memory that is there already; how many bytes it became.

    For those who read many batches: no new buffer for each, and never more than ``out``.
    """
    try:
        if codec is Codec.SNAPPY:
            return _snappy_into(memoryview(data), memoryview(out))
        module = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}[codec]
        return int(module.decompress_into(data, out))
    except (cramjam.DecompressionError, struct.error) as error:
        if "write whole buffer" in str(error):
            raise TooSmall from None
        raise _damaged(codec, error) from error


def _snappy_into(view: memoryview, out: memoryview) -> int:
    used = 0
    for block in _snappy_blocks(view):
        if cramjam.snappy.decompress_raw_len(block) > len(out) - used:
            raise TooSmall
        used += cramjam.snappy.decompress_raw_into(block, out[used:])
    return used


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    if bytes(view[:8]) != _XERIAL:
        yield view
        return
    pos = len(_XERIAL_HEADER)
    while pos < len(view):
        (length,) = _LENGTH.unpack_from(view, pos)
        pos += _LENGTH.size
        if length < 0 or length > len(view) - pos:
            raise cramjam.DecompressionError("a snappy block is longer than the batch")
        yield view[pos : pos + length]
        pos += length


def _snappy_size(data: Buffer) -> int:
    """What the blocks say that they become."""
    try:
        return sum(map(cramjam.snappy.decompress_raw_len, _snappy_blocks(memoryview(data))))
    except (cramjam.DecompressionError, struct.error) as error:
        raise _damaged(Codec.SNAPPY, error) from error


def _damaged(codec: Codec, error: Exception) -> ApiError:
    message = f"a batch says it is {codec.name.lower()} but does not decompress: {error}"
    return ApiError(ErrorCode.CORRUPT_MESSAGE, message)


def _no_memory(size: int) -> ApiError:
    message = f"there is no memory for a batch that decompresses to up to {size} bytes"
    return ApiError(ErrorCode.MESSAGE_TOO_LARGE, message)
