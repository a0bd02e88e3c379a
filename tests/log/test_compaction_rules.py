"""When a log is compacted, which segments become one, and what happens to odd records."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from support.log import (
    NOW,
    append,
    contents,
    generator,
    log_config,
    make_batch,
    open_in,
    read_segment,
)

from tidelog.clock import SystemClock
from tidelog.errors import SettingError
from tidelog.log.cleaner import Cleaned, CleaningJob, CorruptLog, Finished, clean
from tidelog.log.cleaner_jobs import Limits, Round, assess_log, clean_log
from tidelog.log.cleaner_records import add_keys, select
from tidelog.log.compaction import MAX_GROUP, Cleanable, CleanableSegment, assess, group_segments
from tidelog.log.log import Log
from tidelog.settings import check_topic_config
from tidelog.wire.batch import HEADER_SIZE, LOG_APPEND_TIME, read_header, stamp_append_time
from tidelog.wire.compression import Codec
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.records import encode_batch

pytestmark = pytest.mark.usefixtures("no_sync")
HOUR = 3_600_000


def facts(*rows: tuple[int, int, int, int]) -> list[CleanableSegment]:
    """Base, end, size, and age in hours of the newest record (the oldest is an hour older)."""
    return [
        CleanableSegment(base, end, size, NOW - (age + 1) * HOUR, NOW - age * HOUR)
        for base, end, size, age in rows
    ]


THREE = facts((0, 10, 100, 9), (10, 20, 200, 5), (20, 30, 300, 1))


def assessed(cleaned_to: int | None = None, stable_to: int = 30, **settings: object) -> Cleanable:
    config = log_config(cleanup_policy="compact", **settings)
    return assess(THREE, cleaned_to, 0, 35, stable_to, config, NOW)


def test_the_dirty_ratio() -> None:
    assert assessed().dirty_ratio == 1
    found = assessed(cleaned_to=20)
    assert (found.first_dirty, found.end) == (20, 30)
    assert (found.clean_bytes, found.dirty_bytes, found.dirty_ratio) == (300, 300, 0.5)
    assert not found.due(log_config(min_cleanable_dirty_ratio=0.5))  # it must be above
    assert found.due(log_config(min_cleanable_dirty_ratio=0.49))
    clean_now = assessed(cleaned_to=30)
    assert (clean_now.dirty_bytes, clean_now.due(log_config(min_cleanable_dirty_ratio=0))) == (
        0,
        False,
    )


def test_a_checkpoint_that_cannot_be() -> None:
    """Beyond the log's end, or before its start: it begins again."""
    assert assessed(cleaned_to=36).first_dirty == 0
    config = log_config(cleanup_policy="compact")
    assert assess(THREE, 3, 12, 35, 30, config, NOW).first_dirty == 12


def test_young_records_wait() -> None:
    found = assessed(min_compaction_lag_ms=4 * HOUR)
    assert (found.end, found.held_back) == (20, "min.compaction.lag.ms")
    assert assessed(min_compaction_lag_ms=20 * HOUR).dirty_bytes == 0
    # What is clean already counts as clean, however young.
    assert assessed(cleaned_to=20, min_compaction_lag_ms=20 * HOUR).clean_bytes == 300


def test_old_records_do_not_wait_for_the_ratio() -> None:
    config = log_config(min_cleanable_dirty_ratio=1)
    found = assessed(max_compaction_lag_ms=7 * HOUR)
    assert found.overdue
    assert found.due(config)
    assert not assessed(max_compaction_lag_ms=11 * HOUR).overdue
    assert not assessed(cleaned_to=20, max_compaction_lag_ms=7 * HOUR).overdue
    # The lag that protects a record wins.
    assert not assessed(min_compaction_lag_ms=11 * HOUR, max_compaction_lag_ms=11 * HOUR).due(
        config
    )


def test_what_is_not_stable_waits() -> None:
    assert assessed(stable_to=29).end == 20


def test_max_compaction_lag_closes_the_active_segment(tmp_path: Path) -> None:
    config = log_config(cleanup_policy="compact", max_compaction_lag_ms=1000)
    log = open_in(tmp_path, config)
    append(log, make_batch([b"x"], NOW), NOW)
    append(log, make_batch([b"x"], NOW + 1000), NOW + 1000)
    assert len(log.segments) == 1
    append(log, make_batch([b"x"], NOW + 1001), NOW + 1001)
    assert len(log.segments) == 2


def test_groups() -> None:
    rows = [(i * 10, i * 10 + 10, size, 8) for i, size in enumerate((60, 30, 20, 50, 100, 1))]
    assert group_segments(rows, 100, 10**6) == [range(2), range(2, 4), range(4, 5), range(5, 6)]
    assert group_segments(rows, 100, 15) == [range(i, i + 1) for i in range(6)]
    wide = [(0, 2**30, 1, 0), (2**30, 2**31 - 1, 1, 0), (2**31, 2**31 + 5, 1, 0)]
    assert group_segments(wide, 100, 100) == [range(2), range(2, 3)]
    many = [(i, i + 1, 0, 0) for i in range(2 * MAX_GROUP + 1)]
    assert [len(group) for group in group_segments(many, 100, 100)] == [MAX_GROUP, MAX_GROUP, 1]


def test_lags_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingError, match="must not be above"):
        check_topic_config({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"})


# -- odd records ------------------------------------------------------------------


def compacted(path: Path, **settings: object) -> Log:
    return open_in(path / "t-0", log_config(cleanup_policy="compact", **settings))


def closed(log: Log) -> Log:
    log.roll(NOW)
    log.flush()
    return log


def test_what_is_written_after_a_truncation_is_dirty(tmp_path: Path) -> None:
    """A follower cuts its log back, below where it was cleaned, and copies another leader's."""
    log = compacted(tmp_path)
    for i in range(20):
        append(log, encode_batch([(NOW, b"k%d" % i, b"old", ())]))
    assert clean_log(closed(log), NOW) is not None
    assert log.cleaned_offset == 20
    log.truncate_to(10)
    for i in range(10):
        append(log, encode_batch([(NOW, b"same", b"%d" % i, ())]))
    log.recovery_point = log.end_offset
    closed(log)
    assert clean_log(log, NOW) is not None, "there is nothing to clean"
    assert [r.value for r in contents(log) if r.key == b"same"] == [b"9"]
    log.truncate_to(log.end_offset)
    assert log.cleaned_offset == 20, "nothing was cut"


def test_records_without_a_key_go(tmp_path: Path) -> None:
    """The topic was not compacted when they were written."""
    log = compacted(tmp_path)
    append(log, encode_batch([(NOW, None, b"1", ()), (NOW, b"", b"2", ()), (NOW, None, None, ())]))
    append(log, encode_batch([(NOW, None, b"3", ())]))
    append(log, encode_batch([(NOW, b"k", b"4", ())]))
    result = clean_log(closed(log), NOW)
    assert result is not None
    assert result.keyless == 3
    assert [(record.offset, record.key) for record in contents(log)] == [(1, b""), (4, b"k")]


def test_append_time_stays(tmp_path: Path) -> None:
    log = compacted(tmp_path, delete_retention_ms=50)
    data = bytearray(encode_batch([(NOW, b"a", b"1", ()), (NOW, b"b", None, ())]))
    stamp_append_time(data, NOW + 7)
    append(log, bytes(data))
    append(log, encode_batch([(NOW, b"a", b"2", ())]))
    clean_log(closed(log), NOW + 100)
    (first, _) = log.batches(0)
    header = read_header(first)
    assert header.attributes & LOG_APPEND_TIME
    assert (header.max_timestamp, header.base_timestamp) == (NOW + 7, NOW + 150)
    assert [(r.offset, r.timestamp) for r in contents(log)] == [(1, NOW + 7), (2, NOW)]


def test_times_far_apart_survive_a_delete_horizon(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    times = [NOW, 0, NOW + 10**9, 5, NOW * 3]
    rows = [
        (time, b"%d" % i, None if i == 2 else b"v" * 200, [("h", None)])
        for i, time in enumerate(times)
    ]
    append(log, encode_batch(rows))
    append(log, encode_batch([(NOW, b"0", b"new", ())]))
    before = contents(log)
    clean_log(closed(log), NOW)
    assert contents(log) == before[1:]
    assert next(iter(log.batches(0)))[22] & 0x40


def test_damage_is_told_and_changes_nothing(tmp_path: Path) -> None:
    rng = generator("damage")
    for _ in range(40):
        log = compacted(tmp_path, segment_bytes=400)
        if not log.end_offset:
            for i in range(30):
                append(log, encode_batch([(NOW, b"k%d" % (i % 4), bytes(20), ())] * 3))
            closed(log)
            path = Path(log.segments[2].path)
            whole, batches = path.read_bytes(), read_segment(path)
        log.high_watermark = log.recovery_point = log.end_offset
        data = bytearray(whole)
        # Anywhere, or in a base offset: that is not under the CRC.
        base_offset = rng.choice(batches).position + rng.randrange(8)
        at = rng.choice((rng.randrange(len(data)), base_offset))
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        before = {p.name: p.read_bytes() for p in path.parent.glob("*.log")}
        work = Round(log, assess_log(log, NOW), NOW, Limits())
        batch = next(b for b in batches if b.position <= at < b.position + b.size)
        try:
            list(clean(work.job))
        except CorruptLog as error:
            assert path.name in str(error) or "offset" in str(error)
        else:
            assert (
                at - batch.position < 16
            )  # the base offset and the leader epoch are not under the CRC
        work.abandon()
        assert {p.name: p.read_bytes() for p in path.parent.glob("*.log")} == before
        assert not list(path.parent.glob("*.cleaned"))
    path.write_bytes(whole)


def test_records_that_are_no_records() -> None:
    """The loops must not run away on any bytes, and never past the batch."""
    rng = generator("walk")
    good = encode_batch([(NOW + i, b"key-%d" % i, b"v" * i * 30, ()) for i in range(9)])
    for _ in range(4000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(57, len(data))] = rng.randrange(256)
        header = read_header(data)._replace(record_count=rng.choice((9, 9, 0, -1, 2**31 - 1)))
        where = (bytes(data), HEADER_SIZE, len(data), header)
        with contextlib.suppress(ProtocolError):
            add_keys(*where, 0, {})
        with contextlib.suppress(ProtocolError):
            for start, end in select(*where, {}, 9, True).runs:
                assert HEADER_SIZE <= start < end <= len(data)


# -- the process ------------------------------------------------------------------


def test_the_worker_does_the_same(tmp_path: Path) -> None:
    log = compacted(tmp_path, segment_bytes=500)
    for i in range(40):
        append(log, encode_batch([(NOW, b"k%d" % (i % 4), bytes(20), ())] * 3))
    job = Round(closed(log), assess_log(log, NOW), NOW, Limits()).job
    expected = [asdict(item) for item in clean(job)]
    made = {p.name: p.read_bytes() for p in tmp_path.glob("t-0/*.cleaned")}
    assert made
    lines = [job.to_json(), {**job.to_json(), "directory": str(tmp_path / "gone")}]
    worker = subprocess.Popen(
        [sys.executable, "-m", "tidelog.log.cleaner_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
    worker.stdin.flush()
    answers = [json.loads(worker.stdout.readline()) for _ in range(len(expected) + 1)]
    assert [next(iter(row.values())) for row in answers[:-1]] == expected
    assert answers[-1]["failed"].startswith("No such file or directory")
    assert {p.name: p.read_bytes() for p in tmp_path.glob("t-0/*.cleaned")} == made
    worker.stdin.close()
    assert worker.wait() == 0  # its work is over when its input is


def test_a_job_survives_json() -> None:
    job = CleaningJob("d", [(0, 9, 100)], 0, NOW, 1, 2, 3, 4, [(1, 0, 8)], [(1, 0, 5, 6)])
    again = CleaningJob.from_json(json.load(io.StringIO(json.dumps(job.to_json()))))
    assert [tuple(row) for row in again.segments] == job.segments
    assert again.bytes_per_second == float("inf")


def test_it_can_be_slowed_down(tmp_path: Path) -> None:
    log = compacted(tmp_path, segment_bytes=10_000)
    for i in range(40):
        append(log, encode_batch([(NOW, b"k%d" % i, bytes(1000), ())]))
    closed(log)
    clock = SystemClock()
    start = clock.monotonic()
    result = clean_log(log, NOW, Limits(bytes_per_second=200_000, chunk_bytes=5000))
    assert result is not None
    assert clock.monotonic() - start >= (result.read + result.written) / 200_000 - 0.05


def test_a_clean_segment_is_not_written_again(tmp_path: Path) -> None:
    log = compacted(tmp_path, segment_bytes=10_000)
    for i in range(40):
        append(log, encode_batch([(NOW, b"k%d" % i, bytes(1000), ())]))
    items = list(clean(Round(closed(log), assess_log(log, NOW), NOW, Limits()).job))
    assert [item.changed for item in items if isinstance(item, Cleaned)] == [False] * 5
    assert isinstance(items[-1], Finished)
    assert items[-1].written == 0
    assert not list(tmp_path.glob("t-0/*.cleaned"))


def test_compaction_keeps_to_the_topics_level_of_compression(tmp_path: Path) -> None:
    value = b"".join(b"%d and %d, " % (i, i * i % 977) for i in range(1000))
    records = [(NOW, key, value + key, ()) for key in (b"a", b"b", b"a")]
    sizes = []
    for level in (-5, 19):
        settings = {"compression_type": "zstd", "compression_zstd_level": level}
        log = compacted(tmp_path / str(level), **settings)
        append(log, encode_batch(records, codec=Codec.ZSTD))
        clean_log(closed(log), NOW)
        assert [record.key for record in contents(log)] == [b"b", b"a"]
        sizes.append(log.segments[0].size)
    assert sizes[1] < sizes[0]
