"""Arrow columns beside a plain decoder: random logs, every codec, and damage of all kinds."""

from __future__ import annotations

import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pytest
from pipeline.logs import NOW, as_columns, build, expected, random_log, seal

import tidelog
from tidelog.errors import ApiError, ErrorCode
from tidelog.pipeline.decode import Decoder
from tidelog.pipeline.loss import CorruptBatch, DataLoss
from tidelog.pipeline.ranges import ALL, ALL_WITH_HEADERS, Columns, OffsetRange
from tidelog.pipeline.schema import arrow_schema
from tidelog.wire.batch import CONTROL, LOG_APPEND_TIME, place
from tidelog.wire.compression import Codec
from tidelog.wire.records import Record, encode_batch, split_batches

EVERYTHING = 2**62


def decode(
    records: bytes,
    part: OffsetRange,
    columns: Columns,
    aborted: Sequence[tuple[int, int]] = (),
    **options: int,
) -> tuple[pa.Table, int]:
    """The records of ``part`` in one answer as a table, and the offset that follows."""
    decoder = Decoder(part, columns, **options)
    answer = decoder.scan(records, part.start, aborted)
    batches = list(decoder.decode(answer))
    last = decoder.flush()
    if last is not None:
        batches.append(last)
    return pa.Table.from_batches(batches, arrow_schema(columns)), answer.next_offset


def rows_of(table: pa.Table) -> dict[str, list[Any]]:
    """The table in Python's words."""
    table.validate(full=True)
    columns = {name: table[name] for name in table.column_names}
    if "timestamp" in columns:
        columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    return {name: column.to_pylist() for name, column in columns.items()}


def check(
    data: bytes,
    start: int = 0,
    end: int = EVERYTHING,
    columns: Columns = ALL_WITH_HEADERS,
    aborted: list[tuple[int, int]] | None = None,
    **options: int,
) -> int:
    """Decoded by both; the offset that follows."""
    part = OffsetRange("tides", 3, start, end)
    table, following = decode(data, part, columns, aborted or (), **options)
    wanted = expected(data, start, end, aborted or ())
    assert table.schema == arrow_schema(columns)
    assert rows_of(table) == as_columns(wanted, "tides", 3, columns)
    return following


def some(count: int, base: int = 0, value: bytes = b"value") -> list[Record]:
    return [Record(base + i, NOW + i, b"key %d" % i, value) for i in range(count)]


# -- what is right --------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_random_logs(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, rng.choice((1, 3, 20, 60)))
    first = int.from_bytes(log.data[:8], "big")
    target = rng.choice((1, 100, 5000, 2_000_000))
    names = rng.sample(ALL_WITH_HEADERS.names, rng.randint(1, 8))
    columns = rng.choice((ALL, ALL_WITH_HEADERS, Columns(tuple(names))))
    assert check(log.data, 0, EVERYTHING, columns, target_bytes=target) == log.end
    start = rng.randint(first, log.end)
    end = rng.randint(start, log.end + 3)
    check(log.data, start, end, columns, target_bytes=target)
    check(log.data, start, end, columns, log.aborted, target_bytes=target)


@pytest.mark.parametrize("codec", list(Codec))
def test_each_codec(codec: Codec) -> None:
    data = b"".join(build(some(50, 50 * i), 50 * i, 50 * i + 49, codec=codec) for i in range(20))
    assert check(data, 17, 933) == 950


def test_a_bare_snappy_block_as_librdkafka_sends_it() -> None:
    body = build(some(9), 0, 8)[61:]
    block = bytes(cramjam.snappy.compress_raw(body))
    data = seal(block, 9, 0, 8, attributes=Codec.SNAPPY)  # the attributes only: it is packed
    check(data)


@pytest.mark.parametrize("left", [1, 16, 17, 60, 61, 200])
def test_a_batch_that_is_not_complete_comes_again(left: int) -> None:
    whole, cut = build(some(5), 0, 4), build(some(50, 5), 5, 54)[:left]
    table, following = decode(whole + cut, OffsetRange("t", 0, 0, 55), ALL)
    assert table.num_rows == following == 5
    assert decode(cut, OffsetRange("t", 0, 5, 55), ALL)[1] == 5


def test_nothing_at_all() -> None:
    table, following = decode(b"", OffsetRange("t", 0, 7, 9), ALL)
    assert (table.num_rows, following) == (0, 7)


def test_control_batches_and_empty_ones_take_offsets_and_no_rows() -> None:
    data = build(some(2), 0, 1) + build([], 2, 9)
    data += build([Record(10, NOW, b"\0\0\0\1", b"")], 10, 10, attributes=CONTROL)
    assert check(data) == 11


def test_the_range_ends_inside_a_batch_or_before_one() -> None:
    data = build(some(10), 0, 9) + build(some(10, 20), 20, 29)
    assert check(data, 0, 25) == 30
    assert check(data, 0, 15) == 15  # the next batch begins at 20: nothing is left before 15
    assert check(data, 10, 20) == 20


def test_log_append_time_is_one_time_for_all() -> None:
    data = build(some(3), 0, 2, attributes=LOG_APPEND_TIME)
    table, _ = decode(data, OffsetRange("t", 0, 0, 3), ALL)
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [(NOW + 777) * 1000] * 3
    assert table["timestampType"].to_pylist() == [1, 1, 1]


@pytest.mark.parametrize("time", [-1, 0, 2**62, -(2**62), 2**63 - 1, -(2**63)])
def test_times_that_microseconds_cannot_hold(time: int) -> None:
    check(encode_batch([(time, None, b"x", ())]))


def test_timestamps_wrap_as_in_java() -> None:
    check(build([Record(0, 2**63, None, None)], 0, 0, base_timestamp=2**62))


def test_header_names_that_are_not_utf8_are_shown_as_java_shows_them() -> None:
    record = b"\0\0\0\1\1\2\4\xff\xfe\1"  # no key, no value, one header, without content
    data = seal(bytes([2 * len(record)]) + record, 1, 0, 0)
    table, _ = decode(data, OffsetRange("t", 0, 0, 1), Columns(("headers",)))
    table.validate(full=True)
    assert table["headers"].to_pylist() == [[{"key": "\ufffd\ufffd", "value": None}]]


# -- sizes ----------------------------------------------------------------------


def test_arrow_batches_have_the_size_that_is_asked_for() -> None:
    data = b"".join(build(some(400, i, b"v" * 100), i, i + 399) for i in range(0, 40_000, 400))
    part = OffsetRange("t", 0, 0, 40_000)
    decoder = Decoder(part, ALL, target_bytes=1 << 20)
    batches = list(decoder.decode(decoder.scan(data, 0)))
    last = decoder.flush()
    assert last is not None
    assert sum(batch.num_rows for batch in [*batches, last]) == 40_000
    # The first ones are smaller: how large keys and values are is learnt from them.
    assert all(0.9 * (1 << 20) < batch.nbytes < 1.2 * (1 << 20) for batch in batches[6:])


def test_one_batch_of_the_log_may_become_many_of_arrow() -> None:
    data = build(some(5000, 0, b"v" * 100), 0, 4999, codec=Codec.ZSTD)
    part = OffsetRange("t", 0, 0, 5000)
    decoder = Decoder(part, ALL, target_bytes=50_000)
    batches = list(decoder.decode(decoder.scan(data, 0)))
    assert len(batches) > 10
    check(data, target_bytes=50_000)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_records_larger_than_an_arrow_batch_come_alone(codec: Codec) -> None:
    large = [
        Record(0, NOW, b"k", b"small"),
        Record(1, NOW, b"K" * 300_000, b"V" * 5_000_000, [("n" * 100_000, b"C" * 700_000)]),
        Record(2, NOW, b"k", None, [("a", b"b")] * 5000),
        Record(3, NOW, None, b"small"),
    ]
    check(build(large, 0, 3, codec=codec), target_bytes=10_000)


def test_fetches_share_arrow_batches() -> None:
    part = OffsetRange("t", 0, 0, 30)
    decoder = Decoder(part, ALL)
    for start in (0, 10, 20):
        data = build(some(10, start), start, start + 9)
        assert list(decoder.decode(decoder.scan(data, start))) == []
    last = decoder.flush()
    assert last is not None
    assert last["offset"].to_pylist() == list(range(30))
    assert decoder.flush() is None


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_is_refused(codec: Codec) -> None:
    good = build(some(3), 0, 2, codec=codec)
    bomb = seal(bytes(50_000_000), 1, 3, 3, codec)
    assert len(bomb) < 3_000_000
    part = OffsetRange("t", 0, 0, 4)
    with pytest.raises(CorruptBatch, match="decompresses to more than 10000000 bytes") as raised:
        decode(good + bomb, part, ALL, limit=10_000_000)
    assert raised.value.lost == OffsetRange("t", 0, 3, 4)


# -- what is wrong --------------------------------------------------------------


def decoded_until_damage(
    data: bytes | bytearray, part: OffsetRange, **options: Any
) -> tuple[list[int], CorruptBatch]:
    """The offsets that came before the damage, and the damage."""
    decoder = Decoder(part, Columns(("offset",)), **options)
    found: list[int] = []
    with pytest.raises(CorruptBatch) as raised:
        for batch in decoder.decode(decoder.scan(data, part.start)):
            found += batch["offset"].to_pylist()
    last = decoder.flush()
    return found + (last["offset"].to_pylist() if last else []), raised.value


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("damaged", [0, 1, 4])
def test_a_wrong_crc_is_named_and_what_stands_before_it_is_read(codec: Codec, damaged: int) -> None:
    parts = [bytearray(build(some(10, i), i, i + 9, codec=codec)) for i in range(0, 50, 10)]
    parts[damaged][-1] ^= 1
    data = b"".join(parts)
    found, error = decoded_until_damage(data, OffsetRange("tides", 2, 3, 50))
    first = max(3, 10 * damaged)
    assert found == list(range(3, 10 * damaged))
    assert (error.topic, error.partition, error.offset) == ("tides", 2, first)
    assert error.lost == OffsetRange("tides", 2, first, 10 * damaged + 10)
    assert error.code == ErrorCode.CORRUPT_MESSAGE
    assert f"tides-2: offsets {first} to {10 * damaged + 9}: " in str(error)
    assert f"the batch at offset {10 * damaged} is damaged" in str(error)
    assert pickle.loads(pickle.dumps(error)).lost == error.lost


def test_damage_outside_the_range_is_not_our_business() -> None:
    parts = [bytearray(build(some(10, i), i, i + 9)) for i in range(0, 30, 10)]
    parts[0][-1] ^= 1
    parts[2][-1] ^= 1
    table, _ = decode(b"".join(parts), OffsetRange("t", 0, 10, 20), ALL)
    assert table["offset"].to_pylist() == list(range(10, 20))


@pytest.mark.parametrize("alone", [False, True])
def test_a_batch_that_lies_about_its_last_offset_is_not_skipped(alone: bool) -> None:
    """It seems to end before the range, and yet what is wanted may be in it."""
    lying = bytearray(build(some(10), 0, 9))
    lying[23:27] = struct.pack(">i", 3)
    data = bytes(lying) + (b"" if alone else build(some(10, 10), 10, 19))
    found, error = decoded_until_damage(data, OffsetRange("t", 0, 5, 20))
    assert found == []
    assert error.lost == OffsetRange("t", 0, 5, 10)


def test_damage_inside_a_record_costs_the_rest_of_the_batch() -> None:
    whole = build(some(4), 0, 3)[61:]
    cut = seal(whole[:-3], 4, 0, 3) + build(some(2, 4), 4, 5)
    found, error = decoded_until_damage(cut, OffsetRange("t", 0, 0, 6))
    assert found == [0, 1, 2]
    assert error.lost == OffsetRange("t", 0, 3, 4)


def test_offsets_that_come_twice() -> None:
    data = seal(b"\x0c\0\0\0\1\1\0" * 2, 2, 0, 5)
    found, error = decoded_until_damage(data, OffsetRange("t", 0, 0, 9))
    assert found == [0]
    assert error.lost == OffsetRange("t", 0, 1, 6)


def bad(record: bytes, count: int = 1) -> bytes:
    return seal(bytes([2 * len(record)]) + record, count, 0, 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (seal(b"", 1, 0, 0), "not complete"),
        (seal(b"\x80" * 12, 1, 0, 0), "not complete"),
        (seal(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 1, 0, 0), "not complete"),
        (seal(b"\x0e\0\0\0\1\1", 1, 0, 0), "longer than its batch"),
        (seal(b"\x01\0\0\0\1\1\0", 1, 0, 0), "longer than its batch"),
        (bad(b"\0\0\0\x10\1\0"), "longer than its record"),
        (bad(b"\0\0\0\1\x10\0"), "longer than its record"),
        (bad(b"\0\0\0\1\1\x08"), "longer than its record"),
        (bad(b"\0\0\0\1\1\1"), "longer than its record"),
        (bad(b"\0\0\0\1\1\2\x08a"), "longer than its record"),
        (bad(b"\0\0\0\1\1\2\1a\1"), "longer than its record"),
        (bad(b"\0\0\0\1\1\0\0"), "does not end where its length says"),
        (bad(b"\0\0\2\1\1\0"), "not in order"),
        (bad(b"\0\0\1\1\1\0"), "not in order"),
        (bad(b"\0\0\0\1\1\0", 0), "more bytes than its records take"),
        (seal(b"no zstd", 1, 0, 0, attributes=Codec.ZSTD), "does not decompress"),
        (seal(b"", 1, 0, 0, attributes=Codec.GZIP), "damaged"),
        (seal(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\0\0\0\x50", 1, 0, 0, attributes=2), "longer than"),
        (seal(b"", 1, 0, 0, attributes=6), "codec 6"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_damage(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatch, match=reason) as raised:
        decode(data, OffsetRange("t", 0, 0, 9), ALL_WITH_HEADERS)
    assert raised.value.offset == 0


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, struct.pack(">q", -1)),
        (0, struct.pack(">q", 0)),  # not after the batch before it
        (8, struct.pack(">i", 48)),
        (8, struct.pack(">i", -5)),
        (16, b"\x03"),
        (23, struct.pack(">i", -1)),
        (57, struct.pack(">i", -1)),
    ],
)
def test_a_header_that_cannot_be_ends_what_is_readable(at: int, value: bytes) -> None:
    second = bytearray(build(some(4, 4), 4, 7))
    second[at : at + len(value)] = value
    data = build(some(4), 0, 3) + bytes(second)
    found, error = decoded_until_damage(data, OffsetRange("t", 0, 0, 9))
    assert found == [0, 1, 2, 3]
    assert error.lost == OffsetRange("t", 0, 4, 9)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused(magic: int) -> None:
    old = struct.pack(">qiIbb", 6, 14, 0, magic, 0) + b"\xff\xff\xff\xff\0\0\0\0"
    for data, start in ((old, 6), (build(some(6), 0, 5) + old, 0)):
        with pytest.raises(ApiError, match=f"offset 6 has the old format of magic {magic}") as e:
            decode(data, OffsetRange("t", 0, start, 9), ALL)
        assert e.value.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        assert not isinstance(e.value, CorruptBatch)


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_never_gives_a_wrong_record(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 12, 200)
    data = bytearray(log.data)
    batches = list(split_batches(log.data))
    position = rng.randrange(len(data))
    at = 0
    for batch in batches:  # the offset and the epoch are outside the CRC: the broker's words
        if at <= position < at + 8 or at + 12 <= position < at + 16:
            position = at + 20
        at += len(batch)
    data[position] ^= 1 << rng.randrange(8)
    right = [row.offset for row, _ in expected(log.data, 0, EVERYTHING)]
    decoder = Decoder(OffsetRange("t", 0, 0, EVERYTHING), Columns(("offset",)), target_bytes=99)
    found: list[int] = []
    lost_from = EVERYTHING
    answer = decoder.scan(data, 0)
    try:
        for part in decoder.decode(answer):
            found += part["offset"].to_pylist()
        lost_from = answer.next_offset  # a length that is too large looks like a cut answer
    except CorruptBatch as error:
        lost_from = error.offset
    except ApiError as error:
        assert error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        lost_from = answer.next_offset
    last = decoder.flush()
    found += last["offset"].to_pylist() if last else []
    assert found == [offset for offset in right if offset < lost_from]


def test_hostile_bytes_with_right_crcs() -> None:
    """In a process of its own, with guard pages and numba's own checks of every index."""
    command = [sys.executable, "-m", "pipeline.decode_fuzz", "--count", "1500", "--seed", "1"]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=found
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1500 answers" in done.stdout


def test_memory_stays_as_it_is() -> None:
    """However much is read: what was handed out and let go is used again."""
    one = build(some(5000, 0, b"v" * 200), 0, 4999, codec=Codec.LZ4)
    decoder = Decoder(OffsetRange("t", 0, 0, EVERYTHING), ALL)
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for number in range(60):
        batch = bytearray(one)
        place(batch, 5000 * number, 0)
        for found in decoder.decode(decoder.scan(batch, 5000 * number)):
            rows += found.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
    assert rows > 290_000
    assert most < 16 << 20


def test_a_zipped_package_and_no_home(tmp_path: Path) -> None:
    """As on a cluster's executor: compiled code is kept where only its owner may write."""
    source = Path(tidelog.__file__).parents[1]
    with zipfile.ZipFile(tmp_path / "shipped.zip", "w") as archive:
        for path in (source / "tidelog").rglob("*.py"):
            archive.write(path, path.relative_to(source))
    program = "from tidelog.pipeline import kernel; print(kernel.__file__)"
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "shipped.zip"),
        "HOME": "/dev/null/nowhere",
        "TMPDIR": str(tmp_path),
    }
    environment.pop("XDG_CACHE_HOME", None)
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "shipped.zip" in done.stdout, done.stderr
    (cache,) = tmp_path.glob("tidelog-numba-*")
    assert cache.stat().st_mode & 0o777 == 0o700
    assert len(list(cache.rglob("*.nbc"))) == 2


def test_errors_say_one_offset_or_many() -> None:
    assert "t-0: offset 5: gone" in str(DataLoss(OffsetRange("t", 0, 5, 6), "gone"))
    assert "t-0: offsets 5 to 7: gone" in str(DataLoss(OffsetRange("t", 0, 5, 8), "gone"))
