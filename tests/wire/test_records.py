"""Records: what goes into a batch comes out again, ours and the other clients' alike."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from support.log import NOW, SEED, generator
from support.messages import damage
from support.records import Row, as_records, random_rows

from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.batch import (
    CODEC_MASK,
    HEADER,
    HEADER_SIZE,
    check_produced,
    is_valid,
    place,
    read_header,
    stamp_append_time,
)
from tidelog.wire.compression import Codec, decompress
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.records import (
    Record,
    decode_batch,
    encode_batch,
    first_since,
    newest_since,
    repack,
    seal,
    split_batches,
)

BUILDERS = {"kafka-python": KafkaPythonBuilder, "aiokafka": AiokafkaBuilder}

_bytes = st.none() | st.binary(max_size=200)
_headers = st.lists(st.tuples(st.text(max_size=70), _bytes), max_size=3).map(tuple)
_times = st.integers(0, 2**42)
rows_of = st.lists(st.tuples(_times, _bytes, _bytes, _headers), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(rows_of, st.sampled_from(Codec), st.integers(0, 2**60))
def test_round_trip(rows: list[Row], codec: Codec, base_offset: int) -> None:
    batch = encode_batch(rows, base_offset=base_offset, codec=codec)
    assert list(decode_batch(batch)) == as_records(rows, base_offset)
    assert is_valid(batch)
    assert check_produced(batch).record_count == len(rows)


def build(builder: Any, rows: list[Row], codec: int, producer: tuple[int, int, int]) -> bytes:
    made = builder(2, codec, False, *producer, 1 << 30)
    for i, (timestamp, key, value, headers) in enumerate(rows):
        made.append(i, timestamp, key, value, list(headers))
    return bytes(made.build())


@pytest.mark.parametrize("name", BUILDERS)
def test_the_bytes_are_those_of_other_clients(name: str) -> None:
    rng = generator("records", name)
    for _ in range(60):
        rows = random_rows(rng, rng.choice((1, 2, 30, 200)))
        producer = rng.choice(((-1, -1, -1), (4000, 3, 17), (2**62, 32767, 2**31 - 1)))
        ours = encode_batch(
            rows,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            leader_epoch=-1 if name == "aiokafka" else 0,  # the broker overwrites it
        )
        assert ours == build(BUILDERS[name], rows, 0, producer), SEED


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_other_clients_are_read(name: str, codec: Codec) -> None:
    rng = generator("theirs", name, codec)
    for _ in range(10):
        rows = random_rows(rng, rng.choice((1, 2, 30, 200)))
        theirs = build(BUILDERS[name], rows, codec, (-1, -1, -1))
        assert check_produced(theirs).record_count == len(rows)
        assert list(decode_batch(theirs)) == as_records(rows), SEED


@pytest.mark.parametrize("codec", list(Codec))
def test_other_clients_read_ours(codec: Codec) -> None:
    rows = random_rows(generator("ours", codec), 50)
    theirs = KafkaPythonBatch(encode_batch(rows, base_offset=42, codec=codec))
    assert theirs.validate_crc()
    found = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs]
    assert found == as_records(rows, 42)


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_recompress_changes_the_codec_and_nothing_else(source: Codec, target: Codec) -> None:
    rows = random_rows(generator("recompress", source, target), 40)
    before = encode_batch(
        rows, base_offset=7, codec=source, producer_id=9, producer_epoch=1, base_sequence=5
    )

    def recompress(batch: bytes, codec: Codec) -> bytes:
        header = read_header(batch)
        body = decompress(Codec(header.attributes & CODEC_MASK), batch[HEADER_SIZE:])
        return repack(header, body, codec)

    after = recompress(before, target)
    assert list(decode_batch(after)) == list(decode_batch(before))
    old, new = read_header(before), check_produced(after)
    assert new.attributes == target
    assert new == old._replace(length=new.length, crc=new.crc, attributes=new.attributes)
    assert recompress(after, source) == before


def test_timestamps_wrap_as_in_java() -> None:
    batch = bytearray(encode_batch([(0, None, b"a", []), (5, None, b"b", [])]))
    batch[27:35] = ((1 << 63) - 3).to_bytes(8, "big")  # the base
    assert [r.timestamp for r in decode_batch(batch)] == [(1 << 63) - 3, -(1 << 63) + 2]


def test_append_time_stamps_every_record() -> None:
    batch = bytearray(encode_batch([(NOW - 5, None, b"a", ()), (NOW - 9, None, b"b", ())]))
    stamp_append_time(batch, NOW)
    assert is_valid(batch)
    assert [r.timestamp for r in decode_batch(batch)] == [NOW, NOW]
    assert read_header(batch).base_timestamp == NOW - 5
    with pytest.raises(ApiError) as refused:
        check_produced(batch)  # a producer may not do this
    assert refused.value.code == ErrorCode.INVALID_TIMESTAMP


def test_a_place_in_the_log_leaves_the_crc_alone() -> None:
    batch = bytearray(encode_batch([(NOW, None, b"a", ())]))
    place(batch, 2**40, 17)
    assert is_valid(batch)
    assert read_header(batch)[:3] == (2**40, len(batch) - 12, 17)
    assert next(decode_batch(batch)).offset == 2**40


# -- damage -------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_a_damaged_batch_is_an_error_of_ours(codec: Codec) -> None:
    """The broker does not look into batches: whatever a client sent may be read one day."""
    rng = generator("damaged", codec)
    whole = [encode_batch(random_rows(rng, n), codec=codec) for n in (1, 3, 20)]
    for _ in range(800):
        batch = damage(rng, rng.choice(whole))
        try:
            for record in decode_batch(batch):
                assert -(2**63) <= record.offset < 2**63
        except ApiError:
            continue
        except Exception as error:
            error.add_note(f"seed {SEED}, bytes {batch.hex()}")
            raise


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_is_cut_anywhere(codec: Codec) -> None:
    batch = encode_batch([(NOW, b"key", b"value" * 20, (("h", b"1"),))] * 3, codec=codec)
    for size in range(len(batch)):
        with pytest.raises(ApiError):
            list(decode_batch(batch[:size]))
        assert not is_valid(batch[:size])
        with pytest.raises(ApiError):
            check_produced(batch[:size])


def test_every_flipped_bit_under_the_crc_is_noticed() -> None:
    batch = encode_batch([(NOW, b"key", b"value", ())])
    for at in range(16, len(batch)):
        for bit in range(8):
            broken = bytearray(batch)
            broken[at] ^= 1 << bit
            assert not is_valid(broken), at
            with pytest.raises(ApiError):
                check_produced(broken)


def test_a_count_that_lies_costs_nothing() -> None:
    header = read_header(encode_batch([(NOW, None, b"x", ())]))
    lie = HEADER.pack(*header._replace(record_count=2**31 - 1, length=49))
    tracemalloc.start()
    with pytest.raises(ApiError):
        list(decode_batch(lie))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"magic": 1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0}, ErrorCode.INVALID_RECORD),
        ({"record_count": 2}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 5}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -1, "record_count": 0}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
        ({"producer_id": 5}, ErrorCode.INVALID_RECORD),
        ({"length": 1}, ErrorCode.CORRUPT_MESSAGE),
        ({"length": -1}, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_rules_for_produced_batches(change: dict[str, int], code: ErrorCode) -> None:
    batch = encode_batch([(NOW, None, b"x", ())])
    changed = bytearray(seal(read_header(batch)._replace(**change), batch[HEADER_SIZE:]))
    if "length" in change:
        changed[8:12] = change["length"].to_bytes(4, "big", signed=True)
    with pytest.raises(ApiError) as refused:
        check_produced(changed)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x0e\0\0\0\1\1", "longer than its batch"),
        (b"\x01\0\0\0\1\1\0", "longer than its batch"),
        (b"\x0e\0\0\0\1\1\0\0", "does not end where its length says"),
        (b"\x0a\0\0\0\1\1\0", "does not end where its length says"),
        (b"\x0e\0\0\0\x7e\1\0\0", "runs past the end"),
        (b"\x0e\0\0\0\xfe\1\1\0", "runs past the end"),
    ],
)
def test_records_that_do_not_add_up(body: bytes, reason: str) -> None:
    batch = encode_batch([(NOW, None, None, ())])
    assert batch[HEADER_SIZE:] == b"\x0c\0\0\0\1\1\0"
    with pytest.raises(ProtocolError, match=reason):
        list(decode_batch(seal(read_header(batch), body)))


def test_a_valid_batch_has_the_length_that_it_says() -> None:
    """The CRC does not cover the length."""
    batch = bytearray(encode_batch([(NOW, None, b"x", ())]))
    assert is_valid(batch)
    batch[11] += 1
    assert not is_valid(batch)


def test_two_batches_in_one_are_refused() -> None:
    batch = encode_batch([(NOW, None, b"x", ())])
    with pytest.raises(ApiError, match="more than one batch"):
        check_produced(batch + batch)


def test_split_leaves_the_cut_tail_out() -> None:
    rng = generator("split")
    whole = [encode_batch(random_rows(rng, n)) for n in (1, 5, 2)]
    data = b"".join(whole)
    for size in range(len(data) + 1):
        found = [bytes(batch) for batch in split_batches(data[:size])]
        ends = [sum(map(len, whole[: i + 1])) for i in range(3)]
        assert found == whole[: sum(end <= size for end in ends)]


def test_split_ends_with_any_bytes() -> None:
    rng = generator("split any")
    for _ in range(500):
        data = damage(rng, encode_batch(random_rows(rng, 2)) * 2)
        assert sum(map(len, split_batches(data))) <= len(data)
    assert list(split_batches(b"\xff" * 200)) == []


@pytest.mark.parametrize("codec", list(Codec))
def test_a_count_that_the_bytes_cannot_hold(codec: Codec) -> None:
    """It would use up two billion offsets.  What is compressed may be true."""
    smallest = [(NOW, None, None, ())] * 50
    whole = encode_batch(smallest, codec=codec)
    assert check_produced(whole).record_count == 50
    for count in (51, 2**31 - 1):
        header = read_header(whole)._replace(record_count=count, last_offset_delta=count - 1)
        batch = bytearray(HEADER.pack(*header) + whole[HEADER_SIZE:])
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
        if codec is Codec.NONE:
            with pytest.raises(ApiError, match="no room") as refused:
                check_produced(batch)
            assert refused.value.code == ErrorCode.INVALID_RECORD
        else:
            assert check_produced(batch).record_count == count


def test_a_time_is_found_without_a_look_at_keys_values_and_headers() -> None:
    batch = encode_batch([(NOW, b"k", b"v", [("h", b"x")] * 3), (NOW + 5, b"k", b"v", [])])
    body = bytearray(batch[HEADER_SIZE:])
    body[4 : body[0] // 2 + 1] = b"\xff" * (body[0] // 2 - 3)
    spoilt = seal(read_header(batch), bytes(body))
    with pytest.raises(ProtocolError):
        list(decode_batch(spoilt))
    assert first_since(spoilt, NOW + 1, 0) == newest_since(spoilt, 0) == (NOW + 5, 1)
