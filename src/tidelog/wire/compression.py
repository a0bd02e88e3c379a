"""The four codecs of a record batch, in the framing that the Java client reads.

gzip and zstd are plain streams.  lz4 needs independent blocks (Java refuses linked
ones).  snappy is cut into blocks with xerial's header; a bare snappy block, as
librdkafka sends it, is understood too.

Decompression is bounded: a batch that would grow past ``limit`` is refused before
the memory is touched, whatever its header promises.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import cramjam

from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.primitives import Buffer

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LENGTH = struct.Struct(">i")

DEFAULT_LIMIT = 256 * 1024 * 1024


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


def decompress(codec: Codec, data: Buffer, limit: int = DEFAULT_LIMIT) -> Buffer:
    """Undo :func:`compress`; an error if the data is damaged or grows past ``limit``."""
    if codec is Codec.NONE:
        return data
    try:
        if codec is Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), limit)
        module = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}[codec]
        return _decompress_stream(module, data, limit)
    except (cramjam.DecompressionError, struct.error) as error:
        raise _damaged(codec, error) from error


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
    if bytes(view[:8]) != _XERIAL:
        return _snappy_block_into(view, out)
    used = 0
    pos = len(_XERIAL_HEADER)
    while pos < len(view):
        (length,) = _LENGTH.unpack_from(view, pos)
        pos += _LENGTH.size
        if length < 0 or length > len(view) - pos:
            raise cramjam.DecompressionError("a snappy block is longer than the batch")
        used += _snappy_block_into(view[pos : pos + length], out[used:])
        pos += length
    return used


def _snappy_block_into(block: memoryview, out: memoryview) -> int:
    if cramjam.snappy.decompress_raw_len(block) > len(out):
        raise TooSmall
    return int(cramjam.snappy.decompress_raw_into(block, out))


def _decompress_stream(module: Any, data: Buffer, limit: int) -> Buffer:
    # The streams do not say how large they become: try a buffer, then a larger one.
    size = min(limit, max(64 * 1024, 4 * len(data)))
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: module.decompress_into(data, out)]
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise
        if size >= limit:
            raise _too_large(limit)
        size = min(limit, 4 * size)


def _decompress_snappy(view: memoryview, limit: int) -> Buffer:
    if bytes(view[:8]) != _XERIAL:
        if cramjam.snappy.decompress_raw_len(view) > limit:
            raise _too_large(limit)
        return bytes(cramjam.snappy.decompress_raw(view))
    out = bytearray()
    pos = len(_XERIAL_HEADER)
    while pos < len(view):
        (length,) = _LENGTH.unpack_from(view, pos)
        pos += _LENGTH.size
        if length < 0 or length > len(view) - pos:
            raise cramjam.DecompressionError("a snappy block is longer than the batch")
        block = view[pos : pos + length]
        if len(out) + cramjam.snappy.decompress_raw_len(block) > limit:
            raise _too_large(limit)
        out += bytes(cramjam.snappy.decompress_raw(block))
        pos += length
    return out


def _damaged(codec: Codec, error: Exception) -> ApiError:
    message = f"a batch says it is {codec.name.lower()} but does not decompress: {error}"
    return ApiError(ErrorCode.CORRUPT_MESSAGE, message)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch decompresses to more than {limit} bytes; send smaller batches",
    )
