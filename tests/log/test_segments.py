"""When a segment ends, where a read begins, and what a cut leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.log import (
    NOW,
    append,
    contents,
    log_config,
    log_files,
    make_batch,
    open_in,
    sized_batch,
)

from tidelog.errors import ApiError, ErrorCode
from tidelog.log.log import Log
from tidelog.log.segment import LogFile, let_go_of_maps
from tidelog.wire.batch import read_header
from tidelog.wire.compression import Codec


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_roll_by_size(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_config(segment_bytes=300))
    for size in (100, 200, 69, 300, 100):
        append(log, sized_batch(size))
    assert bases(log) == [0, 2, 3, 4]  # 100 + 200 fit exactly


@pytest.mark.parametrize("reopened", [False, True])
def test_roll_by_time_of_the_records(tmp_path: Path, reopened: bool) -> None:
    """The age counts from the first batch, by the clock of the records, as in Kafka."""
    config = log_config(segment_ms=1000)
    log = open_in(tmp_path, config)
    append(log, make_batch([b"a"], NOW), NOW + 50_000)
    if reopened:
        log.close()
        log = open_in(tmp_path, config)
    append(log, make_batch([b"b"], NOW + 1000), NOW + 60_000)
    append(log, make_batch([b"c"], NOW + 1001), NOW + 60_000)
    assert bases(log) == [0, 2]
    append(log, make_batch([b"d"], NOW + 2001), NOW + 60_000)
    assert bases(log) == [0, 2]


def test_roll_by_time_of_the_clock(tmp_path: Path) -> None:
    """Records without a time: then the broker's clock counts."""
    log = open_in(tmp_path, log_config(segment_ms=1000))
    for now in (NOW, NOW + 1000, NOW + 1001):
        append(log, make_batch([b"a"], -1), now)
    assert bases(log) == [0, 2]


def test_an_empty_segment_does_not_roll(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_config(segment_ms=1000))
    append(log, make_batch([b"a"], NOW + 10**9), NOW + 10**9)
    assert bases(log) == [0]


@pytest.mark.parametrize("reopened", [False, True])
def test_roll_when_an_index_is_full(tmp_path: Path, reopened: bool) -> None:
    """Neither index file grows past segment.index.bytes."""
    config = log_config(segment_index_bytes=60, index_interval_bytes=0)
    log = open_in(tmp_path, config)
    for i in range(40):
        append(log, make_batch([b"a"], NOW + i))
        if reopened and i % 3 == 0:
            log.close()
            log = open_in(tmp_path, config)
    log.close()
    assert len(log.segments) > 5
    for path in log_files(tmp_path):
        assert path.with_suffix(".index").stat().st_size <= 60
        # The final entry at roll and those of clean stops may come on top.
        assert path.with_suffix(".timeindex").stat().st_size <= 60 + 12 * (1 + 2 * reopened)


def test_roll_before_offsets_leave_the_index(tmp_path: Path) -> None:
    """Offsets in an index have 31 bits; a header may claim as many records as it likes."""
    log = open_in(tmp_path)
    append(log)
    batch = bytearray(make_batch([b"a"]))
    for _ in range(3):
        header = read_header(batch)._replace(last_offset_delta=2**31 - 2)
        log.append(batch, header, 0, NOW)
    assert bases(log) == [0, 1 + 2**31 - 1, 1 + 2 * (2**31 - 1)]


def test_jitter_rolls_earlier(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_config(segment_ms=10_000, segment_jitter_ms=5_000))
    append(log, make_batch([b"a"], NOW))
    append(log, make_batch([b"b"], NOW + 5000))
    assert bases(log) == [0]
    append(log, make_batch([b"c"], NOW + 10_001))
    assert bases(log) == [0, 2]


def test_a_read_may_cut_the_last_batch_but_not_the_first(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    for _ in range(3):
        append(log, sized_batch(100))
    for max_bytes, whole, size in (
        (1, True, 100),
        (100, False, 100),
        (150, False, 150),
        (150, True, 150),
        (1000, True, 300),
        (0, True, 100),
    ):
        found = log.read(0, max_bytes, 3, at_least_one=whole)
        assert found is not None
        assert len(found) == len(found.read()) == size
    for too_little in (0, 1, 99):  # part of the first batch is of no use
        assert log.read(0, too_little, 3, at_least_one=False) is None
    assert log.read(0, -5, 3, at_least_one=False) is None
    assert log.read(3, 100, 3, at_least_one=True) is None


def test_a_read_ends_where_it_is_told(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_config(segment_bytes=250))
    for _ in range(6):
        append(log, sized_batch(100))
    for end, size in ((1, 100), (2, 200), (3, 200), (6, 200)):
        found = log.read(0, 10_000, end, at_least_one=True)
        assert found is not None
        assert len(found) == size


def test_a_read_below_the_first_segment_begins_with_it(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_start_offset=100)
    append(log)
    append(log)
    found = log.read(5, 1 << 20, log.end_offset, at_least_one=True)
    assert found is not None
    assert read_header(found.read()).base_offset == 100


def test_a_hole_at_the_end_of_a_segment(tmp_path: Path) -> None:
    """Compaction leaves such holes: the next segment begins after them."""
    log = open_in(tmp_path)
    append(log, make_batch([b"a"]))
    append(log, make_batch([b"compacted away"]))
    log.roll(NOW)
    append(log, make_batch([b"c"]))
    log.close()
    os.truncate(tmp_path / "00000000000000000000.log", len(make_batch([b"a"])))
    log = open_in(tmp_path)
    for offset in (1, 2):
        found = log.read(offset, 1 << 20, 3, at_least_one=True)
        assert found is not None
        assert read_header(found.read()).base_offset == 2
    assert [record.offset for record in contents(log)] == [0, 2]
    again = open_in(tmp_path, clean=False)
    assert [record.offset for record in contents(again)] == [0, 2]


def test_rot_inside_a_segment_is_said_and_not_skipped(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    for _ in range(4):
        append(log, sized_batch(100))
    log.roll(NOW)
    append(log)
    log.close()
    with open(tmp_path / "00000000000000000000.log", "r+b") as file:
        file.seek(200 + 16)
        file.write(b"\x09")  # the magic of the third batch
    log = open_in(tmp_path)
    assert log.read(1, 1, 5, at_least_one=True) is not None
    for offset in (2, 3):
        with pytest.raises(ApiError, match="damaged at byte 200") as refused:
            log.read(offset, 1000, 5, at_least_one=True)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert log.read(4, 1, 5, at_least_one=True) is not None
    with pytest.raises(ApiError, match="damaged at byte 200"):
        list(log.batches(0))
    assert len(list(log.batches(0, 2))) == 2


def test_records_of_any_time_are_found(tmp_path: Path) -> None:
    """Out of order inside a batch, between batches, and compressed."""
    log = open_in(tmp_path, log_config(index_interval_bytes=0, segment_bytes=400))
    times = [[50, 10, 70], [20, 20], [90, 30], [5, 95, 95], [1]]
    for i, row in enumerate(times):
        append(log, make_batch([b"v"] * len(row), row, codec=Codec(i % 5)))
    flat = [(time, offset) for offset, time in enumerate(t for row in times for t in row)]
    for target in range(100):
        for end in range(len(flat) + 1):
            expected = next((entry for entry in flat[:end] if entry[0] >= target), None)
            assert log.offset_for_timestamp(target, end) == expected
    assert log.newest_record() == (95, 8)
    log.advance_start(9)
    assert log.newest_record() == (95, 9)
    log.advance_start(10)
    assert log.newest_record() == (1, 10)
    log.advance_start(11)
    assert log.newest_record() is None
    assert open_in(tmp_path / "empty").newest_record() is None


def test_truncate_to_every_offset(quick_path: Path) -> None:
    for offset in range(26):
        log = open_in(quick_path / f"t-{offset}", log_config(segment_bytes=300))
        for i in range(12):
            append(log, make_batch([b"%d" % i] * 2, NOW + i, producer=(1, 0, 2 * i)), epoch=i // 4)
        log.truncate_to(offset)
        end = min(offset // 2 * 2, 24)  # a batch that is hit goes as a whole
        assert log.end_offset == end
        log.check_invariants()
        assert [r.offset for r in contents(log)] == list(range(end))
        assert log.epochs.latest == (end // 2 - 1) // 4 if end else log.epochs.latest == -1
        if end:
            last = make_batch([b"%d" % (end // 2 - 1)] * 2, producer=(1, 0, end - 2))
            assert append(log, last).duplicate
        assert append(log, make_batch([b"new"], producer=(1, 0, end))).base_offset == end
        again = open_in(log.directory, log.config, clean=False)
        assert contents(again) == contents(log)


def test_truncate_below_everything_starts_anew(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_start_offset=100)
    append(log, make_batch(producer=(1, 0, 0)))
    log.truncate_to(40)
    assert (log.log_start_offset, log.end_offset) == (40, 40)
    log.check_invariants()
    assert append(log).base_offset == 40
    assert [path.stem for path in log_files(tmp_path)] == [f"{40:020d}"]


def test_a_cut_segment_ages_anew(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_config(segment_ms=1000))
    append(log, make_batch([b"a"], NOW))
    log.truncate_to(0)
    append(log, make_batch([b"b"], NOW + 900))
    log.configure(log.config)
    append(log, make_batch([b"c"], NOW + 1900))
    assert bases(log) == [0]


def test_a_view_outlives_the_map_that_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"0123456789")
    file = LogFile(str(path))
    view = file.view(2, 3)
    let_go_of_maps()
    assert file._map is None
    assert bytes(view) == b"234"
    assert bytes(file.view(4, 6)) == b"456789"
    assert file._map is not None
