"""Batches that are opened: what is refused, what is corrected, and that nothing else changes."""

import pytest
from support.log import NOW, SEED, generator
from support.records import as_records, random_rows

from tidelog.errors import ApiError, ErrorCode
from tidelog.log.timestamps import Look
from tidelog.partition.offset_lookup import run_search
from tidelog.partition.validation import (
    MOST_RECORD_ERRORS,
    Budget,
    InvalidRecords,
    OpenElsewhere,
    Rules,
    rewrite,
    rewrite_here,
)
from tidelog.settings import LogConfig, Settings
from tidelog.wire.batch import HEADER_SIZE, check_produced, read_header
from tidelog.wire.compression import Codec
from tidelog.wire.records import decode_batch, encode_batch, first_since, seal

LIMIT = 1 << 24


def rules(**config):
    values = {name.replace("_", "."): value for name, value in config.items()}
    return Rules.of("t", LogConfig.of(Settings.of(), values))


def opened(batch, now=NOW, **config):
    return rewrite(memoryview(batch), rules(**config), now, LIMIT)


@pytest.mark.parametrize("codec", list(Codec))
def test_what_is_right_stays_as_it_is(codec):
    rng = generator("opened", codec)
    for _ in range(50):
        rows = random_rows(rng, rng.choice((1, 70, 300)))
        batch = encode_batch(rows, codec=codec, producer_id=3, producer_epoch=0, base_sequence=9)
        found = opened(batch, NOW + (1 << 41))
        assert found.batch == batch, SEED
        again = opened(batch, NOW + (1 << 41), compression_type="lz4").batch
        assert list(decode_batch(again)) == as_records(rows), SEED
        assert check_produced(again).attributes == Codec.LZ4


def test_a_damaged_batch_is_an_error_and_nothing_else():
    rng = generator("damaged")
    for _ in range(300):
        rows = random_rows(rng, rng.choice((1, 5, 70)))
        batch = encode_batch(rows)
        body = bytearray(batch[HEADER_SIZE:])
        for _ in range(rng.choice((1, 1, 3))):
            body[rng.randrange(len(body))] = rng.randrange(256)
        if rng.random() < 0.3:
            del body[rng.randrange(len(body)) :]
        header = read_header(batch)
        damaged = seal(header, bytes(body))
        try:
            found = opened(damaged, NOW + (1 << 41), cleanup_policy="compact").batch
        except ApiError as error:
            assert error.code in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP), SEED
            continue
        # What is taken can be read: every record, in order.
        records = list(decode_batch(found))
        assert [record.offset for record in records] == list(range(len(rows))), SEED
        assert read_header(found).max_timestamp == max(-1, *(r.timestamp for r in records)), SEED


def test_every_record_that_is_refused_is_named():
    rows = [(NOW, b"k" if number % 3 else None, b"v", []) for number in range(10)]
    with pytest.raises(InvalidRecords) as refused:
        opened(encode_batch(rows), cleanup_policy="compact")
    assert refused.value.code == ErrorCode.INVALID_RECORD
    assert [number for number, _ in refused.value.errors] == [0, 3, 6, 9]
    assert refused.value.message.startswith("4 of 10 records are invalid; record 0: topic t is")
    times = [NOW, NOW - 1001, NOW + 3_600_001, -1, NOW - 1000, NOW + 3_600_000]
    rows = [(time, None, b"v", []) for time in times]
    with pytest.raises(InvalidRecords) as refused:
        opened(encode_batch(rows), message_timestamp_before_max_ms=1000)
    assert refused.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [number for number, _ in refused.value.errors] == [1, 2]
    assert "message.timestamp.before.max.ms before now" in refused.value.errors[0][1]
    assert "message.timestamp.after.max.ms after now" in refused.value.errors[1][1]


def test_an_answer_names_no_more_than_it_has_room_for():
    with pytest.raises(InvalidRecords) as refused:
        opened(encode_batch([(NOW, None, b"v", [])] * 1000), cleanup_policy="compact")
    assert len(refused.value.errors) == MOST_RECORD_ERRORS
    assert "1000 of 1000" in refused.value.message


def with_headers(count, key=b"k", codec=Codec.NONE):
    return encode_batch([(NOW, key, None, [("", None)] * count)], codec=codec)


def opened_here(batch, budget):
    compacted = rules(cleanup_policy="compact")
    return rewrite_here(memoryview(batch), read_header(batch), compacted, NOW, budget)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("key", [b"k", None])
def test_the_headers_of_a_record_count(codec, key):
    """All bytes of a request count, also those of batches that are refused."""
    with pytest.raises(OpenElsewhere):
        opened_here(with_headers(33_000, key, codec), Budget())
    budget, batch = Budget(), with_headers(16_000, key, codec)
    for _ in range(3):
        try:
            opened_here(batch, budget)
        except InvalidRecords:
            assert key is None
        except OpenElsewhere:
            return
    pytest.fail("96 kB were opened in the event loop")


def test_more_headers_than_a_record_has_room_for():
    batch = with_headers(100)
    body = batch[HEADER_SIZE:].replace(b"\xc8\x01", b"\xca\x01", 1)  # 101 of them
    with pytest.raises(ApiError, match="a record has 101 headers"):
        opened(seal(read_header(batch), body))


def test_bytes_count_also_where_a_time_is_looked_for():
    def search(batches):
        for batch in batches:
            yield Look(read_header(batch), first_since, (batch, NOW + 1, 0))

    for batches in [with_headers(33_000)], 3 * [with_headers(16_000)]:
        job = next(run_search(search(batches), Budget()))
        assert job.function is first_since
