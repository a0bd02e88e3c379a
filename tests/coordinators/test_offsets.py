"""Committed offsets: what is kept, what goes and why."""

import pytest

from tidelog.coordinators.groups.offsets import (
    Committed,
    GroupOffsets,
    Removal,
    Usage,
    commit_record,
    encode_commit,
    removal_record,
)
from tidelog.coordinators.groups.records import SERDE

NOW = 1_700_000_000_000
HOUR = 3_600_000
EMPTY = Usage(True, NOW, set())


def offsets_of(*rows):
    found = GroupOffsets()
    for topic, partition, committed in rows:
        record = commit_record("g", topic, partition, committed)
        found.replay(record.key, record.value, "", NOW)
    return found


def test_commits_and_tombstones():
    found = offsets_of(("t", 0, Committed(5, 1, "m", NOW)), ("t", 0, Committed(6, 1, "n", NOW)))
    assert found.get("t", 0) == Committed(6, 1, "n", NOW)
    assert found.get("t", 1) is None
    record = removal_record("g", "t", 0, "because")
    found.replay(record.key, None, record.reason, NOW + 1)
    assert not found
    assert found.removals == {("t", 0): Removal(NOW + 1, "because")}
    # A new commit makes it forgotten.
    record = commit_record("g", "t", 0, Committed(7, -1, "", NOW))
    found.replay(record.key, record.value, "", NOW)
    assert found.removals == {}


def test_the_memory_of_removals_is_bounded():
    found = GroupOffsets()
    for i in range(3000):
        record = removal_record("g", "t", i, "because")
        found.replay(record.key, None, record.reason, NOW)
    assert len(found.removals) == 1000
    assert ("t", 2999) in found.removals


@pytest.mark.parametrize(
    ("offset", "start", "reason"),
    [
        (5, 5, ""),
        (5, 0, ""),
        (5, -1, ""),  # the log is on another broker
        (5, 6, "its data is deleted: offset 5, and the log starts at 6"),
        (5, None, "the topic is deleted"),
        (-1, 6, ""),  # points into no data
        (-2, 0, ""),
        (-1, None, "the topic is deleted"),
    ],
)
def test_offsets_live_as_long_as_their_data(offset, start, reason):
    found = offsets_of(("t", 0, Committed(offset, -1, "", NOW)))
    gone = found.expired(NOW + 10**12, None, EMPTY, lambda *_: start)
    assert gone == ([("t", 0, reason)] if reason else [])


def test_a_group_at_work_keeps_what_it_reads():
    found = offsets_of(("t", 0, Committed(5, -1, "", NOW)), ("u", 0, Committed(5, -1, "", NOW)))
    later = NOW + 3 * HOUR
    busy = Usage(False, NOW, {"t"})
    assert found.expired(later, 2 * HOUR, busy, lambda *_: 6) == [
        ("u", 0, "offsets.retention.minutes=120 are over")
    ]
    unknown = Usage(False, NOW, None)
    assert found.expired(later, 2 * HOUR, unknown, lambda *_: 6) == []
    assert found.expired(later, None, busy, lambda *_: 6) == []


def test_retention_counts_from_the_last_commit_and_from_when_the_group_became_empty():
    found = offsets_of(("t", 0, Committed(5, -1, "", NOW)))

    def gone(now, since):
        usage = Usage(True, since, set())
        return bool(found.expired(now, HOUR, usage, lambda *_: 0))

    assert not gone(NOW + HOUR - 1, NOW - HOUR)
    assert gone(NOW + HOUR, NOW - HOUR)
    assert not gone(NOW + HOUR, NOW + 1)
    assert gone(NOW + HOUR + 1, NOW + 1)


def test_a_retention_time_of_the_client():
    committed = Committed(5, -1, "", NOW, NOW + HOUR)
    found = offsets_of(("t", 0, committed))
    assert found.get("t", 0) == committed
    assert found.expired(NOW + HOUR - 1, HOUR // 2, EMPTY, lambda *_: 0) == []
    assert len(found.expired(NOW + HOUR, None, EMPTY, lambda *_: 0)) == 1
    # Who reads the topic keeps its place, however rarely it commits.
    busy = Usage(False, NOW, {"t"})
    assert found.expired(NOW + HOUR, None, busy, lambda *_: 0) == []


@pytest.mark.parametrize("expire", [-1, NOW])
@pytest.mark.parametrize("metadata", ["", "seen", "é漢🌊" * 300])
def test_the_quick_encoder_writes_the_same_bytes(metadata, expire):
    for offset, epoch in ((0, -1), (2**63 - 1, 2**31 - 1), (7, 0)):
        committed = Committed(offset, epoch, metadata, NOW, expire)
        record = commit_record("group é", "topic", 3, committed)
        assert encode_commit("group é", "topic", 3, committed) == SERDE.encode(record)
