"""The schema language, one rule at a time, on messages small enough to read as bytes."""

from __future__ import annotations

import pytest

from tidelog.wire.compiler import decode, decoder, encode
from tidelog.wire.frame import skip_tags
from tidelog.wire.primitives import ProtocolError, read_varint, uvarint, varint
from tidelog.wire.schema import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Struct,
    Uuid,
    field,
)

ID = bytes(range(16))


class Leaves(Message, versions=(0, 1), flexible=1):
    """One field of every leaf type."""

    flag: Bool
    tiny: Int8
    small: Int16
    medium: Int32
    large: Int64
    id: Uuid
    name: String
    blob: Bytes
    records: Records


LEAVES = Leaves(
    flag=True, tiny=-1, small=2, medium=3, large=4, id=ID, name="é", blob=b"b", records=b"rr"
)
FIXED = b"\x01\xff\x00\x02" + bytes(3) + b"\x03" + bytes(7) + b"\x04" + ID


def test_plain_versions_have_fixed_lengths() -> None:
    data = FIXED + b"\0\x02\xc3\xa9" + b"\0\0\0\x01b" + b"\0\0\0\x02rr"
    assert encode(LEAVES, 0) == data
    assert decode(Leaves, 0, data) == LEAVES


def test_flexible_versions_have_varint_lengths_and_a_tag_section() -> None:
    data = FIXED + b"\x03\xc3\xa9" + b"\x02b" + b"\x03rr" + b"\0"
    assert encode(LEAVES, 1) == data
    assert decode(Leaves, 1, data) == LEAVES


def test_records_are_a_view_of_the_request_and_bytes_are_a_copy() -> None:
    data = bytearray(encode(LEAVES, 0))
    message = decode(Leaves, 0, data)
    assert isinstance(message.records, memoryview)
    data[-1] = ord("x")
    assert bytes(message.records) == b"rx"
    assert type(message.blob) is bytes


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_decoders_take_any_buffer_and_start_anywhere(buffer: type) -> None:
    data = encode(LEAVES, 1)
    message, end = decoder(Leaves, 1)(buffer(b"header" + data + b"next"), 6)
    assert (message, end) == (LEAVES, 6 + len(data))


def test_a_message_fills_its_bytes_exactly() -> None:
    with pytest.raises(ProtocolError, match="1 bytes too many"):
        decode(Leaves, 0, encode(LEAVES, 0) + b"\0")


def test_tags_are_bounded() -> None:
    """In a message and in a header; each costs a little and a request has room for many."""
    head, few, many = encode(LEAVES, 1)[:-1], 1000, 1001
    tags = {n: uvarint(n) + b"".join(uvarint(9 + i) + b"\0" for i in range(n)) for n in (few, many)}
    assert decode(Leaves, 1, head + tags[few]) == LEAVES
    assert skip_tags(tags[few], 0) == len(tags[few])
    with pytest.raises(ProtocolError, match="tag"):
        decode(Leaves, 1, head + tags[many])
    with pytest.raises(ProtocolError, match="too many"):
        skip_tags(tags[many], 0)


def test_text_must_be_utf8() -> None:
    with pytest.raises(ProtocolError, match="not UTF-8"):
        decode(Leaves, 0, encode(LEAVES, 0).replace("é".encode(), b"\xc3\x28"))


# -- versions and defaults ----------------------------------------------------------


class Aging(Message, versions=(0, 3)):
    """A field that leaves, one that stays, one that comes."""

    old: Int8 = field(default=7, until=1)
    stays: Int8
    new: Int8 = field(default=9, since=2)


@pytest.mark.parametrize(("version", "data"), [(0, "0102"), (1, "0102"), (2, "0203"), (3, "0203")])
def test_since_and_until_are_inclusive(version: int, data: str) -> None:
    assert encode(Aging(old=1, stays=2, new=3), version).hex() == data


def test_a_field_outside_the_version_keeps_its_default() -> None:
    assert decode(Aging, 0, b"\x01\x02") == Aging(old=1, stays=2, new=9)
    assert decode(Aging, 2, b"\x02\x03") == Aging(old=7, stays=2, new=3)


def test_an_unset_field_is_sent_with_its_default() -> None:
    assert encode(Aging(stays=2), 0) == b"\x07\x02"


def test_a_field_without_default_must_be_set() -> None:
    with pytest.raises(AttributeError, match="stays"):
        encode(Aging(), 0)  # type: ignore[call-arg]


def test_equality_is_by_value_and_type() -> None:
    assert Aging(stays=2) == Aging(old=7, stays=2, new=9)
    assert Aging(stays=2) != Aging(stays=3)
    assert Aging(stays=2) != Node(stays=2)  # type: ignore[call-arg]
    assert Listed(names=[]) == Listed(names=())  # the default of an array is a tuple


# -- null ---------------------------------------------------------------------------


class Node(Struct):
    number: Int8


class Nulls(Message, versions=(0, 2), flexible=1):
    name: String | None
    blob: Bytes | None
    numbers: list[Int8] | None
    node: Node | None = field(default=None, since=1)


class Listed(Message, versions=(0, 2), flexible=1):
    names: list[String] | None = field(default=(), nullable_since=2)


@pytest.mark.parametrize(("version", "data"), [(0, "ffffffffffffffffffff"), (1, "000000ff00")])
def test_null_of_every_kind(version: int, data: str) -> None:
    message = Nulls(name=None, blob=None, numbers=None)
    assert encode(message, version).hex() == data
    assert decode(Nulls, version, bytes.fromhex(data)) == message


def test_a_struct_that_may_be_null_says_that_it_is_there() -> None:
    message = Nulls(name="", blob=b"", numbers=[], node=Node(number=5))
    assert encode(message, 1).hex() == "01010101050000"
    assert decode(Nulls, 1, encode(message, 1)) == message


def test_any_negative_length_is_null_as_in_kafka() -> None:
    data = bytes.fromhex("8000fffffffe80000000")
    null = Nulls(name=None, blob=None, numbers=None)
    assert decode(Nulls, 0, data) == null
    assert decode(Nulls, 1, b"\0\0\0\x80\0") == null  # the byte before a struct, likewise


@pytest.mark.parametrize(("version", "null"), [(0, "ffffffff"), (1, "0000")])
def test_null_is_refused_before_nullable_since(version: int, null: str) -> None:
    with pytest.raises(ProtocolError, match="names may not be null"):
        decode(Listed, version, bytes.fromhex(null))
    with pytest.raises(TypeError):
        encode(Listed(names=None), version)


def test_null_is_taken_from_nullable_since_on() -> None:
    assert decode(Listed, 2, b"\0\0") == Listed(names=None)
    assert encode(Listed(names=None), 2) == b"\0\0"


@pytest.mark.parametrize(("version", "data"), [(0, "00000001ffff"), (1, "020000")])
def test_an_item_is_not_null_because_its_array_may_be(version: int, data: str) -> None:
    with pytest.raises(ProtocolError, match="may not be null"):
        decode(Listed, version, bytes.fromhex(data))


def test_a_string_of_more_than_32767_bytes_is_refused() -> None:
    """Kafka's limit in all versions; a plain version could not send it on."""
    assert decode(Listed, 1, b"\x02" + uvarint(32768) + b"a" * 32767 + b"\0")
    with pytest.raises(ProtocolError, match="over 32767 bytes"):
        decode(Listed, 1, b"\x02" + uvarint(32769) + b"a" * 32768 + b"\0")


# -- tags ---------------------------------------------------------------------------


class Inner(Struct):
    number: Int8 = 0
    left: Int8 = field(default=0, tag=0)
    right: Int8 = field(default=0, tag=1)


class Tagged(Message, versions=(0, 2), flexible=1):
    second: String | None = field(default=None, since=1, tag=5)
    first: Inner | None = field(default=None, since=1, tag=0)
    third: list[Int8] = field(default=(), since=1, tag=300)
    late: Int8 = field(default=-1, since=2, tag=1)


def test_tags_are_not_sent_in_plain_versions() -> None:
    assert encode(Tagged(second="x"), 0) == b""


@pytest.mark.parametrize("message", [Tagged(), Tagged(third=[]), Tagged(third=(), late=-1)])
def test_defaults_are_not_sent(message: Tagged) -> None:
    """An empty list is the default of an array, although it is not the tuple ``()``."""
    assert encode(message, 2) == b"\0"


def test_tags_are_sent_in_order_with_tag_and_size() -> None:
    message = Tagged(second="x", first=Inner(number=7), third=[8])
    first, second, third = b"\0\x02\x07\0", b"\x05\x02\x02x", b"\xac\x02\x02\x02\x08"
    assert encode(message, 1) == b"\x03" + first + second + third
    assert decode(Tagged, 1, encode(message, 1)) == message


def test_unknown_tags_are_skipped() -> None:
    assert decode(Tagged, 1, b"\x03" + b"\x05\x02\x02x" + b"\x06\x01?" + b"\x63\0") == Tagged(
        second="x"
    )


def test_a_tag_from_a_later_version_is_unknown_in_an_earlier_one() -> None:
    data = encode(Tagged(late=3), 2)
    assert decode(Tagged, 2, data) == Tagged(late=3)
    assert decode(Tagged, 1, data) == Tagged()


def test_tags_inside_a_tagged_struct() -> None:
    message = Tagged(first=Inner(number=1, left=2, right=3), late=4)
    assert decode(Tagged, 2, encode(message, 2)) == message


def test_an_unknown_tag_in_a_tagged_struct_is_no_tag_of_its_parent() -> None:
    """Tag 5 inside ``first`` must not be taken for tag 5 of the message, ``second``."""
    first = b"\x07" + b"\x01" + b"\x05\x01?"
    assert decode(Tagged, 1, b"\x01" + b"\0" + uvarint(len(first)) + first) == Tagged(
        first=Inner(number=7)
    )


@pytest.mark.parametrize("size", [1, 3])
def test_a_tagged_field_must_have_the_size_it_says(size: int) -> None:
    with pytest.raises(ProtocolError, match="second has the wrong size"):
        decode(Tagged, 1, b"\x01\x05" + bytes([size]) + b"\x02x\0")


# -- varints ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 1, 63, -64, 64, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_zigzag_varints(value: int) -> None:
    data = varint(value)
    assert read_varint(data, 0) == (value, len(data))


def test_a_varint_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read_varint(b"\xff" * 9 + b"\x02", 0)
