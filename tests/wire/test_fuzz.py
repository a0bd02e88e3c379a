"""A decoder returns a message or raises ProtocolError, whatever the bytes are.

Anything else (another exception, a hang, an allocation that the input does not
justify) would let one client hurt the broker.  A failure shows the seed and the
bytes; run again with ``TIDELOG_SEED``.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from support.messages import SEED, all_layouts, damage, generator, instances, params

from tidelog.wire.compiler import decode, encode
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest
from tidelog.wire.messages.describe_configs import DescribeConfigsRequest
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import ProduceRequest
from tidelog.wire.primitives import ProtocolError, read_uvarint, read_varint, uvarint
from tidelog.wire.schema import Message

MUTANTS = 400
RANDOM_INPUTS = 100


def attempt(cls: type[Message], version: int, data: bytes) -> None:
    """Decode; if that works, the message must survive a round trip as well."""
    try:
        # The broker decodes views of its receive buffer.
        message = decode(cls, version, memoryview(data))
        again = decode(cls, version, encode(message, version))
    except ProtocolError:
        return
    except Exception as error:
        error.add_note(f"seed {SEED}, {cls.__name__} v{version}, bytes {data.hex()}")
        raise
    assert again == message, (SEED, data.hex())


@params(all_layouts())
def test_every_prefix_is_refused(cls: type[Message], version: int) -> None:
    for message in instances("prefix", cls, version, 2):
        data = encode(message, version)
        for size in range(len(data)):
            try:
                decode(cls, version, data[:size])
            except ProtocolError:
                continue
            pytest.fail(f"seed {SEED}: {size} of {len(data)} bytes were taken for {message}")


@params(all_layouts())
def test_damaged_messages(cls: type[Message], version: int) -> None:
    rng = generator("damage", cls, version)
    originals = [encode(m, version) for m in instances("damage", cls, version, 10)]
    for _ in range(MUTANTS):
        attempt(cls, version, damage(rng, rng.choice(originals)))


@params(all_layouts())
def test_random_bytes(cls: type[Message], version: int) -> None:
    rng = generator("random", cls, version)
    for _ in range(RANDOM_INPUTS):
        # Small bytes are likelier to be sensible lengths, and so to get further.
        top = rng.choice((3, 16, 256))
        attempt(cls, version, bytes(rng.randrange(top) for _ in range(rng.randrange(60))))


# -- lengths that lie ---------------------------------------------------------------

FIXED_LIES = (
    struct.pack(">i", 0x7FFFFFFF),
    struct.pack(">i", -0x80000000),
    struct.pack(">i", 100_000_000),
    struct.pack(">h", 0x7FFF),
    struct.pack(">h", -2),
)
VARINT_LIES = (
    uvarint(100_000_000),
    uvarint(0x80000000),
    uvarint(0xFFFFFFFF),
    b"\xff" * 9 + b"\x01",  # a varint of ten bytes
)


def peak_of(action: Callable[[], None]) -> int:
    """How many bytes the action had allocated at its worst moment."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@params(all_layouts())
def test_a_lie_at_any_place_costs_no_memory(cls: type[Message], version: int) -> None:
    """Every offset of a message gets every lie, so every length field gets them all."""
    data = short_message(cls, version)
    lies = VARINT_LIES if version >= cls.flexible else FIXED_LIES
    told = [data[:at] + lie + data[at + len(lie) :] for at in range(len(data)) for lie in lies]
    attempt(cls, version, data)  # compiles the functions: not part of the measurement

    def decode_all() -> None:
        for lie in told:
            with suppress(ProtocolError):
                decode(cls, version, lie)

    assert peak_of(decode_all) < 64 * len(data) + 65536, (SEED, data.hex())


def short_message(cls: type[Message], version: int) -> bytes:
    """Of some random messages the shortest that has something in it."""
    choice = [encode(m, version) for m in instances("lies", cls, version, 20)]
    return min(choice, key=lambda data: (len(data) < 40, len(data)))


HUGE = uvarint(0xFFFFFFFF)
NULL, LONG, VARINT = "may not be null", "is longer than the request", "a varint"
CRAFTED = {
    "array of 2^31-1": (MetadataRequest, 1, struct.pack(">i", 0x7FFFFFFF), LONG),
    "array that may not be null": (MetadataRequest, 0, struct.pack(">i", -1), NULL),
    "compact array of 2^32-2": (MetadataRequest, 9, HUGE, LONG),
    "compact array over 32 bits": (MetadataRequest, 9, b"\xff\xff\xff\xff\x7f", VARINT),
    "compact array that may not be null": (FetchRequest, 12, bytes(25) + b"\0", NULL),
    "array in an array": (CreatePartitionsRequest, 2, b"\x02\x02a" + bytes(4) + HUGE, LONG),
    "array in a tag": (ApiVersionsResponse, 3, b"\0\0\x01\0\0\0\0\x01\0\x05" + HUGE, LONG),
    "string that may not be null": (DescribeConfigsRequest, 1, b"\0\0\0\x01\x02\xff\xff", NULL),
    "compact string of 2^32-2": (ApiVersionsRequest, 3, HUGE, LONG),
    "varint without end": (ApiVersionsRequest, 3, b"\xff" * 64, VARINT),
    "tag section of 2^32-1 tags": (
        ApiVersionsRequest,
        3,
        b"\x01\x01" + HUGE,
        "too many tagged fields",
    ),
    "tag of 2^32-1 bytes": (ApiVersionsRequest, 3, b"\x01\x01\x01\x63" + HUGE, "too long"),
    "records of 2^31-1": (
        ProduceRequest,
        3,
        struct.pack(">hhiihiii", -1, 1, 1, 1, 0, 1, 0, 0x7FFFFFFF),
        LONG,
    ),
}


@pytest.mark.parametrize("name", CRAFTED)
@pytest.mark.parametrize("padding", [0, 100_000])
def test_crafted_lies_are_refused_at_once(name: str, padding: int) -> None:
    cls, version, lie, why = CRAFTED[name]
    refuse(cls, version, lie + bytes(padding), why)


@pytest.mark.parametrize(
    ("version", "count", "topic"),
    [(1, struct.pack(">i", 100_000), b"\0\0"), (9, uvarint(100_001), b"\x01\0")],
)
def test_the_largest_count_that_passes_the_first_check(
    version: int, count: bytes, topic: bytes
) -> None:
    """As many topics as bytes are left, and true to the last one: the dearest lie."""
    refuse(MetadataRequest, version, count + topic * 50_000, "cut short|varint")


def refuse(cls: type[Message], version: int, data: bytes, why: str) -> None:
    def refused() -> None:
        with pytest.raises(ProtocolError, match=why):
            decode(cls, version, data)

    refused()  # once for the compilation
    assert peak_of(refused) < 64 * len(data) + 65536


@pytest.mark.parametrize("read", [read_uvarint, read_varint])
def test_a_varint_ends_and_fits(read: Callable[[bytes, int], tuple[int, int]]) -> None:
    rng = random.Random(SEED)
    for _ in range(2000):
        data = bytes(rng.choice((0x80, 0xFF, rng.randrange(256))) for _ in range(rng.randrange(13)))
        try:
            value, end = read(data, 0)
        except ProtocolError:
            continue
        assert 0 < end <= len(data), (SEED, data.hex())
        low, high = (0, 1 << 32) if read is read_uvarint else (-(1 << 63), 1 << 63)
        assert low <= value < high, (SEED, data.hex())
