"""Retention policies are pure: facts in, a number out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.log import NOW, append, contents, log_config, make_batch, open_in, sized_batch

from tidelog.errors import ApiError, ErrorCode
from tidelog.log.retention import LogFacts, SegmentFacts, decide

HOUR = 3_600_000


def facts(
    sizes: list[int], ages: list[int], *, start: int = 0, high: int = 1 << 40, **config: object
) -> LogFacts:
    """Segments of ten records each, the last one active."""
    segments = [
        SegmentFacts(10 * i, 10 * i + 10, size, NOW - age, i == len(sizes) - 1)
        for i, (size, age) in enumerate(zip(sizes, ages, strict=True))
    ]
    return LogFacts(segments, start, high, log_config(**config))


@pytest.mark.parametrize(
    ("ages", "count"),
    [
        ([9, 8, 7], 0),
        ([HOUR, 8, 7], 0),  # exactly as old as allowed
        ([HOUR + 1, 8, 7], 1),
        ([8, HOUR + 1, 7], 0),  # only from the oldest on
        ([3 * HOUR, 2 * HOUR, 7], 2),
        ([3 * HOUR, 2 * HOUR, HOUR + 1], 3),  # the active one too
    ],
)
def test_by_time(ages: list[int], count: int) -> None:
    found, reason = decide(facts([5, 5, 5], ages, retention_ms=HOUR), NOW)
    assert found == count
    assert reason == ("retention.ms" if count else "")


def test_by_time_leaves_an_empty_active_segment() -> None:
    assert decide(facts([5, 0], [9 * HOUR, 9 * HOUR], retention_ms=HOUR), NOW)[0] == 1


@pytest.mark.parametrize(
    ("limit", "count"), [(400, 0), (300, 0), (201, 0), (200, 1), (101, 1), (100, 2), (0, 2)]
)
def test_by_size(limit: int, count: int) -> None:
    """At least the limit stays, and the active segment always."""
    found, _ = decide(facts([100, 100, 100], [0, 0, 0], retention_bytes=limit), NOW)
    assert found == count


def test_nothing_above_the_high_watermark() -> None:
    old = [9 * HOUR] * 3
    for high, count in ((0, 0), (9, 0), (10, 1), (29, 2), (30, 3)):
        assert decide(facts([5, 5, 5], old, high=high, retention_ms=HOUR), NOW)[0] == count


def test_below_the_log_start() -> None:
    for start, count in ((0, 0), (9, 0), (10, 1), (25, 2), (30, 2)):
        found = decide(facts([5, 5, 5], [0] * 3, start=start, retention_ms=-1), NOW)
        assert found == (count, "log start offset" if count else "")


def test_compacted_topics_keep_their_segments() -> None:
    found = facts(
        [5, 5], [9 * HOUR] * 2, retention_ms=1, retention_bytes=0, cleanup_policy="compact"
    )
    assert decide(found, NOW)[0] == 0
    neither = facts([5, 5], [9 * HOUR] * 2, retention_ms=1, retention_bytes=0, cleanup_policy="")
    assert decide(neither, NOW)[0] == 0
    both = facts([5, 5], [9 * HOUR] * 2, retention_ms=1, cleanup_policy="compact,delete")
    assert decide(both, NOW)[0] == 2


def test_the_whole_log_goes_and_offsets_stay(tmp_path: Path) -> None:
    config = log_config(retention_ms=HOUR)
    log = open_in(tmp_path, config)
    append(log, make_batch([b"old"] * 3, producer=(1, 0, 0)))
    files, reason = log.apply_retention(NOW + HOUR + 1)
    assert reason == "retention.ms"
    assert all(path.endswith(".deleted") for path in files)
    assert (log.log_start_offset, log.end_offset, log.size) == (3, 3, 0)
    log.check_invariants()
    log.close()
    for clean in (True, False):
        log = open_in(tmp_path, config, clean=clean)
        assert (log.log_start_offset, log.end_offset) == (3, 3)
        assert append(log, make_batch([b"old"] * 3, producer=(1, 0, 0))).duplicate
    assert append(log).base_offset == 3


def test_readers_go_on_while_their_segment_is_deleted(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_config(retention_bytes=0))
    append(log, make_batch([b"kept alive"]))
    log.roll(NOW)
    append(log)
    found = log.read(0, 1000, log.end_offset, at_least_one=True)
    assert found is not None
    for path in log.apply_retention(NOW)[0]:
        Path(path).unlink()
    assert b"kept alive" in found.read()
    assert b"kept alive" in bytes(found.file.view(found.position, found.length))
    assert [record.offset for record in contents(log)] == [1]


def test_delete_records(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    append(log, make_batch([b"a", b"b", b"c"]))
    append(log)
    log.high_watermark = 3
    with pytest.raises(ApiError) as refused:
        log.advance_start(4)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    log.advance_start(2)  # inside a batch
    log.advance_start(1)  # never back
    assert log.log_start_offset == 2
    assert [record.offset for record in contents(log)] == [2, 3]
    assert log.offset_for_timestamp(0, log.end_offset) == (NOW, 2)
    again = open_in(tmp_path, clean=False, log_start_offset=2)
    assert [record.offset for record in contents(again)] == [2, 3]


def test_retention_never_counts_what_is_gone(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_config(segment_bytes=200, retention_bytes=450))
    for _ in range(10):
        append(log, sized_batch(100))
    assert log.size == 1000
    log.apply_retention(NOW)
    assert log.size == 600  # one segment less would be below the limit
    assert log.log_start_offset == 4
