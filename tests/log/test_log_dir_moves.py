"""A log that goes on in another directory, whatever happens while its files are copied."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.log import (
    NOW,
    append,
    contents,
    generator,
    log_config,
    make_batch,
    open_in,
    sized_batch,
)

from tidelog.clock import FakeClock
from tidelog.log.cleaner_jobs import clean_log
from tidelog.log.log import Log
from tidelog.log.manager import LogManager
from tidelog.partition.log_dir_moves import Move
from tidelog.wire.records import encode_batch

pytestmark = pytest.mark.usefixtures("no_sync")


def begin(log: Log, parent: Path) -> Move:
    partition = SimpleNamespace(log=log, deleted=False, topic="t", index=0)
    manager = LogManager([str(parent)], FakeClock())
    replicas = SimpleNamespace(manager=manager)
    move = Move(replicas, partition, str(parent))  # type: ignore[arg-type]
    move.begin()
    return move


def state(log: Log) -> dict[str, Any]:
    return {
        "records": contents(log),
        "end": log.end_offset,
        "start": log.log_start_offset,
        "producers": log.producers.encode(),
        "epochs": list(log.epochs.entries),
        "segments": [(s.base_offset, s.size, s.max_timestamp) for s in log.segments],
    }


@pytest.mark.parametrize("story", range(12))
def test_nothing_is_lost_whatever_happens_meanwhile(
    tmp_path: Path, story: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Appends, rolls, truncation, retention and compaction, between the pieces of the copy."""
    rng = generator("log dir moves", story)
    two = tmp_path / "two"
    two.mkdir()
    config = log_config(
        segment_bytes=20_000, cleanup_policy="compact,delete", retention_bytes=300_000
    )
    log = open_in(tmp_path / "one" / "t-0", config)
    epoch = 0

    def change() -> None:
        nonlocal epoch
        kind = rng.randrange(12)
        if kind == 0 and log.active.size:
            log.roll(NOW)
        elif kind == 1 and log.end_offset:
            log.truncate_to(rng.randrange(log.log_start_offset, log.end_offset + 1))
        elif kind == 2:
            log.apply_retention(NOW)
        elif kind == 3:
            log.flush()
            clean_log(log, NOW)
        elif kind == 4:
            log.advance_start(min(log.log_start_offset + 3, log.high_watermark))
        elif kind == 5:
            epoch += 1
            log.begin_epoch(epoch)
        else:
            for _ in range(rng.randrange(20)):
                key = b"%d" % rng.randrange(50)
                value = bytes(rng.randrange(3000))
                append(log, encode_batch([(NOW, key, value, ())]), epoch=epoch)

    for _ in range(rng.randrange(1, 40)):
        change()
    move = begin(log, two)
    ready = False
    while (piece := move.next_piece(rng.choice([1, 1 << 30]))) is not None or not ready:
        ready = piece is None
        piece = piece or move.rest()
        if piece is None:
            continue
        piece.copy()
        if rng.random() < 0.3:
            change()
        move.copied(piece)
        if rng.random() < 0.2:
            change()
    before = state(log)
    assert move.finish()
    assert log.directory == str(two / "t-0")
    assert state(log) == before
    log.check_invariants()
    found = {path.name for path in (two / "t-0").glob("*.log")}
    assert found == {os.path.basename(segment.path) for segment in log.segments}
    shutil.copytree(two / "t-0", tmp_path / "crashed")
    crashed = open_in(
        tmp_path / "crashed", config, clean=False, log_start_offset=log.log_start_offset
    )
    assert state(crashed) == before
    for _ in range(5):
        change()
    before = state(log)
    log.close()
    again = open_in(two / "t-0", config, log_start_offset=log.log_start_offset)
    assert {**state(again), "producers": b""} == {**before, "producers": b""}
    again.check_invariants()
    assert "rebuilt" not in caplog.text  # the indexes


def test_a_reader_of_the_old_files_may_finish(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    log = open_in(tmp_path / "one" / "t-0")
    append(log, make_batch([b"value"]))
    found = log.read(0, 1000, 1, at_least_one=True)
    assert found is not None
    move = begin(log, tmp_path / "two")
    assert move.next_piece() is None  # so little is copied at the end
    append(log, sized_batch(500))
    assert move.finish()
    for path in (tmp_path / "one" / "t-0").iterdir():
        path.unlink()
    assert b"value" in found.read()
    assert len(contents(log)) == 2


def test_the_index_of_the_active_segment_comes_along(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    log = open_in(tmp_path / "one" / "t-0")
    for i in range(30):
        append(log, sized_batch(1000, timestamp=NOW + i))
    log.flush()
    log.active.flush_indexes()
    index = (tmp_path / "one" / "t-0" / f"{0:020d}.index").read_bytes()
    assert len(index) > 8
    assert begin(log, tmp_path / "two").finish()
    log.close()
    assert (tmp_path / "two" / "t-0" / f"{0:020d}.index").read_bytes() == index


def test_closed_segments_do_not_stay_open(tmp_path: Path) -> None:
    """A move of a large partition must not use up the descriptors of the broker."""
    (tmp_path / "two").mkdir()
    log = open_in(tmp_path / "one" / "t-0", log_config(segment_bytes=20_000))
    while len(log.segments) < 40:
        append(log, sized_batch(15_000))
    for segment in log.segments[:-1]:
        segment.release()
    move = begin(log, tmp_path / "two")
    before = most = len(os.listdir("/proc/self/fd"))
    while (piece := move.next_piece()) is not None:
        piece.copy()
        move.copied(piece)
        most = max(most, len(os.listdir("/proc/self/fd")))
    assert most <= before + 3
    assert move.finish()
    assert len(contents(log)) == 40
