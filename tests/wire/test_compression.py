"""Codecs: every framing that clients use, and no bomb."""

from __future__ import annotations

import gzip
import tracemalloc

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard
from support.log import SEED, generator
from support.messages import damage

from tidelog.errors import ApiError, ErrorCode
from tidelog.wire import compression
from tidelog.wire.compression import Codec, codec_of, compress, decompress, decompress_into

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
SIZES = (0, 1, 100, 32 * 1024 - 1, 32 * 1024, 32 * 1024 + 1, 65536, 300_000)
XERIAL = bytes.fromhex("82534e4150505900 00000001 00000001")


def samples(what: object) -> list[bytes]:
    rng = generator("compression", what)
    return [data for n in SIZES for data in (rng.randbytes(n), (b"tidelog %d " % n * n)[:n])]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_round_trips(codec: Codec, buffer: type) -> None:
    for data in samples(codec):
        packed = compress(codec, buffer(data))
        assert bytes(decompress(codec, buffer(packed))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_others_unpack_ours(codec: Codec) -> None:
    for data in samples(codec):
        packed = compress(codec, data)
        if codec is Codec.GZIP:
            assert gzip.decompress(packed) == data
        elif codec is Codec.LZ4:
            assert lz4.frame.decompress(packed) == data
        elif codec is Codec.ZSTD:
            assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == data
        else:
            assert unpack_xerial(packed) == data


def unpack_xerial(packed: bytes) -> bytes:
    assert packed.startswith(XERIAL)
    out, pos = b"", len(XERIAL)
    while pos < len(packed):
        size = int.from_bytes(packed[pos : pos + 4], "big")
        out += snappy.uncompress(packed[pos + 4 : pos + 4 + size])
        pos += 4 + size
    return out


def test_ours_unpack_others() -> None:
    streaming = zstandard.ZstdCompressor(write_content_size=False)
    for data in samples("others"):
        assert bytes(decompress(Codec.GZIP, gzip.compress(data))) == data
        assert bytes(decompress(Codec.ZSTD, zstandard.compress(data))) == data
        assert bytes(decompress(Codec.ZSTD, streaming.compress(data))) == data
        assert bytes(decompress(Codec.LZ4, lz4.frame.compress(data))) == data
        linked = lz4.frame.compress(data, block_linked=True, content_checksum=True)
        assert bytes(decompress(Codec.LZ4, linked)) == data
        assert bytes(decompress(Codec.SNAPPY, snappy.compress(data))) == data  # a bare block


def test_lz4_blocks_are_independent() -> None:
    """Byte 4 of the frame: version 01 and bit 5.  Java refuses linked blocks."""
    for data in samples("lz4"):
        packed = compress(Codec.LZ4, data)
        assert packed[:4] == b"\x04\x22\x4d\x18"
        assert packed[4] & 0xE0 == 0x60


def test_xerial_blocks_of_32_kib() -> None:
    packed = compress(Codec.SNAPPY, bytes(100_000))
    pos, sizes = len(XERIAL), []
    while pos < len(packed):
        size = int.from_bytes(packed[pos : pos + 4], "big")
        sizes.append(cramjam.snappy.decompress_raw_len(packed[pos + 4 : pos + 4 + size]))
        pos += 4 + size
    assert sizes == [32768, 32768, 32768, 100_000 - 3 * 32768]


def test_unknown_codecs() -> None:
    assert [codec_of(0xF8 | n) for n in range(5)] == list(Codec)
    for n in (5, 6, 7):
        with pytest.raises(ApiError) as refused:
            codec_of(n)
        assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_streams(codec: Codec) -> None:
    """Any bytes unpack to something small, or to an error that a client understands."""
    rng = generator("damaged", codec)
    whole = [compress(codec, data) for data in samples("damage")[:8]]
    if codec is Codec.SNAPPY:
        whole += [snappy.compress(data) for data in samples("damage")[2:6]]
    for _ in range(400):
        data = damage(rng, rng.choice(whole))
        try:
            decompress(codec, data, limit=1 << 20)
        except ApiError as error:
            assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
        except BaseException as error:
            error.add_note(f"seed {SEED}, bytes {data.hex()}")
            raise


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_that_is_cut_is_corrupt_and_cheap(codec: Codec) -> None:
    packed = compress(codec, b"tidelog" * 3000)
    cuts = [n for n in range(0, len(packed), max(1, len(packed) // 40)) if n != len(XERIAL)]
    tracemalloc.start()
    try:
        for size in cuts:
            if codec is Codec.SNAPPY and size > 8:
                continue  # between two blocks it is whole; inside one, see the fuzz above
            with pytest.raises(ApiError) as refused:
                decompress(codec, packed[:size])
            assert refused.value.code == ErrorCode.CORRUPT_MESSAGE, size
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def bombs() -> dict[str, tuple[Codec, bytes]]:
    zeros = bytes(64 << 20)
    xerial = compress(Codec.SNAPPY, zeros)
    return {
        "gzip": (Codec.GZIP, gzip.compress(zeros, 6)),
        "zstd": (Codec.ZSTD, zstandard.compress(zeros)),
        "lz4": (Codec.LZ4, lz4.frame.compress(zeros)),
        "xerial": (Codec.SNAPPY, xerial),
        "bare snappy": (Codec.SNAPPY, snappy.compress(zeros)),
        "snappy that promises 4 GB": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(40)),
        "a block that promises 4 GB": (
            Codec.SNAPPY,
            XERIAL + (9).to_bytes(4, "big") + b"\xff\xff\xff\xff\x0f" + bytes(4),
        ),
    }


def test_bombs_are_refused() -> None:
    limit = 1 << 20
    for name, (codec, packed) in bombs().items():
        tracemalloc.start()
        try:
            with pytest.raises(ApiError) as refused:
                decompress(codec, packed, limit)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE, name
        assert peak < 3 * limit + len(packed), name


@pytest.mark.parametrize("length", [5, 2**31 - 1, -1, -4])
def test_a_snappy_block_lies_within_the_batch(length: int) -> None:
    block = snappy.compress(b"tide")
    claimed = len(block) + length if length == 5 else length
    packed = XERIAL + claimed.to_bytes(4, "big", signed=True) + block
    with pytest.raises(ApiError, match="longer than the batch"):
        decompress(Codec.SNAPPY, packed)
    with pytest.raises(ApiError, match="longer than the batch"):
        decompress_into(Codec.SNAPPY, packed, bytearray(100))


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_exact(codec: Codec) -> None:
    data = b"tide" * 30_000
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, limit=len(data))) == data
    with pytest.raises(ApiError):
        decompress(codec, packed, limit=len(data) - 1)


def test_a_reader_says_when_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(size: int) -> bytearray:
        raise MemoryError(size)

    packed = {codec: compress(codec, b"tide") for codec in CODECS}
    monkeypatch.setattr(compression, "bytearray", no_memory, raising=False)
    for codec, data in packed.items():
        with pytest.raises(ApiError, match="there is no memory for a batch that decompresses"):
            decompress(codec, data)
