"""A follower's log: the leader's batches as they are, holes too, and starting anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.log import NOW, append, contents, generator, log_config, make_batch, open_in

from tidelog.errors import ApiError
from tidelog.log.log import Log
from tidelog.log.producer_state import snapshot_offsets
from tidelog.wire.batch import read_header


def copy_all(leader: Log, follower: Log) -> None:
    copy_all_from(leader, follower, follower.end_offset)


def copy_all_from(leader: Log, follower: Log, offset: int) -> None:
    for batch in leader.batches(offset):
        data = bytearray(batch)
        follower.append_replicated(data, read_header(data), NOW)


def test_a_copy_is_the_same(tmp_path: Path) -> None:
    config = log_config(segment_bytes=1000)
    leader, follower = open_in(tmp_path / "a-0", config), open_in(tmp_path / "b-0", config)
    for epoch in (0, 3, 4, 7):
        for sequence in range(10):
            producer = (100 + epoch, 0, sequence)
            append(leader, make_batch([b"x" * 20], producer=producer), epoch=epoch)
    copy_all(leader, follower)
    assert contents(follower) == contents(leader)
    assert follower.epochs.entries == leader.epochs.entries
    assert follower.producers.encode() == leader.producers.encode()
    names = [path.name for path in sorted((tmp_path / "a-0").glob("*.log"))]
    assert names == [path.name for path in sorted((tmp_path / "b-0").glob("*.log"))]
    for name in names:
        assert (tmp_path / "a-0" / name).read_bytes() == (tmp_path / "b-0" / name).read_bytes()
    follower.check_invariants()


def test_holes_stay(tmp_path: Path) -> None:
    """Compaction leaves them."""
    leader, follower = open_in(tmp_path / "a-0"), open_in(tmp_path / "b-0")
    for _ in range(10):
        append(leader)
    for batch in list(leader.batches(0))[::3]:
        data = bytearray(batch)
        follower.append_replicated(data, read_header(data), NOW)
    assert [record.offset for record in contents(follower)] == [0, 3, 6, 9]
    assert follower.end_offset == 10


def test_what_is_there_already_is_refused(tmp_path: Path) -> None:
    leader, follower = open_in(tmp_path / "a-0"), open_in(tmp_path / "b-0")
    append(leader)
    copy_all(leader, follower)
    data = bytearray(next(leader.batches(0)))
    with pytest.raises(ApiError, match="the log ends at 1"):
        follower.append_replicated(data, read_header(data), NOW)


def test_starting_anew(tmp_path: Path) -> None:
    """The leader no longer has what comes next."""
    log = open_in(tmp_path / "a-0", log_config(segment_bytes=500))
    for _ in range(20):
        append(log)
    log.restart_at(1000)
    assert (log.log_start_offset, log.high_watermark, log.end_offset) == (1000, 1000, 1000)
    log.check_invariants()
    assert append(log, epoch=4).base_offset == 1000
    log.close()
    again = open_in(tmp_path / "a-0")
    assert [record.offset for record in contents(again)] == [1000]
    assert again.epochs.entries == [(4, 1000)]


@pytest.mark.parametrize("run", range(5))
def test_the_producers_after_a_truncation(
    tmp_path: Path, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of a log that never had more, though the log is not read from its start:
    snapshots are taken on the way, and those of what was cut off are gone."""
    monkeypatch.setattr("tidelog.log.log._SNAPSHOT_BATCHES", 10)
    chance = generator("truncation", run)
    config = log_config(segment_bytes=4000)
    log = open_in(tmp_path / "a-0", config)
    for _ in range(20):
        for _ in range(chance.randrange(60)):
            known = log.producers.producers.get(producer_id := chance.randrange(3))
            sequence = known.last_sequence + 1 if known is not None else 0
            append(log, make_batch([b"x"], producer=(producer_id, 0, sequence)))
        log.truncate_to(max(0, log.end_offset - chance.randrange(40)))
        fresh = open_in(tmp_path / f"{log.end_offset}-0", config)
        copy_all(log, fresh)
        assert vars(log.producers) == vars(fresh.producers)
        snapshots = snapshot_offsets(log.directory)
        assert len([offset for offset in snapshots if offset not in log._bases]) <= 2
        assert all(offset <= log.end_offset for offset in snapshots)
        fresh.close()
        shutil.rmtree(fresh.directory)


def test_a_truncation_reads_little(tmp_path: Path) -> None:
    log = open_in(tmp_path / "a-0")
    for sequence in range(6000):
        append(log, make_batch([b"x"], producer=(7, 0, sequence)))
    assert snapshot_offsets(log.directory) == [4000, 6000]
    log.truncate_to(5999)
    assert snapshot_offsets(log.directory) == [4000]
    assert log.producers.producers[7].last_sequence == 5998


def test_the_leaders_log_starts_within_a_batch(tmp_path: Path) -> None:
    """DeleteRecords cuts where it is told to; who copies gets the whole batch."""
    leader, follower = open_in(tmp_path / "a-0"), open_in(tmp_path / "b-0")
    for epoch in (3, 4):
        append(leader, make_batch([b"x"] * 10, producer=(7, 0, 10 * (epoch - 3))), epoch=epoch)
    leader.high_watermark = 20
    leader.advance_start(15)
    follower.restart_at(15)
    copy_all(leader, follower)
    assert (follower.log_start_offset, follower.high_watermark) == (15, 15)
    assert follower.end_offset == 20
    assert follower.epochs.entries == leader.epochs.entries == [(4, 15)]
    assert contents(follower) == contents(leader)
    follower.check_invariants()
    data = bytearray(next(leader.batches(15)))
    with pytest.raises(ApiError, match="the log ends at 20"):
        follower.append_replicated(data, read_header(data), NOW)


def test_a_batch_that_ends_before_an_empty_log_begins(tmp_path: Path) -> None:
    leader, follower = open_in(tmp_path / "a-0"), open_in(tmp_path / "b-0")
    append(leader)
    follower.restart_at(15)
    with pytest.raises(ApiError, match="the log ends at 15"):
        copy_all_from(leader, follower, 0)
    assert (follower.log_start_offset, follower.end_offset) == (15, 15)
