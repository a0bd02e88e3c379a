"""Leader epochs: where each began, where it ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.log import append, generator, log_config, make_batch, open_in

from tidelog import files
from tidelog.log.leader_epochs import LeaderEpochs, parse_epochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(list(entries))


def test_epochs_and_offsets_only_grow() -> None:
    found = epochs()
    assert found.assign(0, 0)
    assert not found.assign(0, 10)
    assert found.assign(2, 10)
    assert not found.assign(1, 20)
    assert found.entries == [(0, 0), (2, 10)]
    assert not epochs().assign(-1, 0), "batches that were written before there were epochs"


def test_an_epoch_that_wrote_nothing_gives_way() -> None:
    found = epochs((0, 0), (1, 10))
    assert found.assign(4, 10)
    assert found.entries == [(0, 0), (4, 10)]


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 5)),  # older than all: it ended where the first known one starts
        (1, (1, 9)),
        (2, (1, 9)),
        (3, (3, 20)),
        (7, (7, 100)),
        (8, (-1, -1)),
    ],
)
def test_end_offsets(epoch: int, answer: tuple[int, int]) -> None:
    assert epochs((1, 5), (3, 9), (7, 20)).end_offset(epoch, 100) == answer


def test_without_epochs_nothing_is_known() -> None:
    for epoch in (-1, 0, 5):
        assert epochs().end_offset(epoch, 100) == (-1, -1)
    assert epochs().epoch_at(0) == -1
    assert epochs().latest == -1


def test_epoch_at() -> None:
    found = epochs((1, 5), (3, 9))
    assert [found.epoch_at(offset) for offset in (4, 5, 8, 9, 1000)] == [-1, 1, 1, 3, 3]


def test_truncation() -> None:
    """Against brute force: a list that says for each offset which epoch wrote it."""
    rng = generator("epochs")
    for _ in range(300):
        found, written = epochs(), []
        for epoch in sorted(rng.sample(range(20), 6)):
            found.assign(epoch, len(written))
            written += [epoch] * rng.randrange(4)
        start, end = 0, len(written)
        if rng.random() < 0.5:
            end = rng.randint(0, end)
            found.truncate_from_end(end)
        if rng.random() < 0.5:
            start = rng.randint(0, end)
            found.truncate_from_start(start)
        for offset in range(start, end):
            assert found.epoch_at(offset) == written[offset]
        assert all(entry[1] >= start for entry in found.entries)


def test_changes_are_told_once() -> None:
    found = epochs((1, 0), (3, 9))
    assert found.truncate_from_start(4)
    assert found.entries == [(1, 4), (3, 9)]
    assert not found.truncate_from_start(4)
    assert not found.truncate_from_start(2)
    assert found.truncate_from_end(9)
    assert not found.truncate_from_end(9)
    assert found.entries == [(1, 4)]


def test_files(tmp_path: Path) -> None:
    assert LeaderEpochs.load(str(tmp_path)) is None
    found = epochs((0, 0), (5, 1742))
    found.save(str(tmp_path))
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n5 1742\n"
    again = LeaderEpochs.load(str(tmp_path))
    assert again is not None
    assert again.entries == found.entries


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "1\n0\n",
        "0\n1\n",
        "0\n1\n0 0\n1 1\n",
        "0\n2\n1 0\n0 5\n",
        "0\n2\n0 5\n1 5\n",
        "0\n2\n0 5\n1 3\n",
        "0\n1\n-1 0\n",
        "0\n1\n0 -1\n",
        "0\n1\n0\n",
        "0\n1\n0 0 0\n",
        "0\n1\n0 17",
        "0\nx\n",
    ],
)
def test_what_is_not_whole_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_epochs(text)


def test_an_epoch_is_synced_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the append: there a producer waits, and everybody else."""
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            files, name, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        )
    log = open_in(tmp_path)
    append(log, epoch=3)
    assert not synced
    log.flush()
    assert synced[1:3] == [str(tmp_path / "leader-epoch-checkpoint"), str(tmp_path)]
    synced.clear()
    append(log, epoch=3)
    log.flush()
    assert synced == [str(tmp_path / "00000000000000000000.log")]


@pytest.mark.parametrize("left", [None, "", "0\n1\n3 0\n"], ids=["nothing", "empty", "the old one"])
def test_an_epoch_that_a_power_cut_took_is_in_the_batches(tmp_path: Path, left: str | None) -> None:
    log = open_in(tmp_path)
    append(log, epoch=3)
    log.flush()
    for epoch in (3, 4, 4, 6):
        append(log, epoch=epoch)
    path = tmp_path / "leader-epoch-checkpoint"
    path.unlink()
    if left is not None:
        path.write_text(left)
    again = open_in(tmp_path, clean=False, recovery_point=1)
    assert again.epochs.entries == [(3, 0), (4, 2), (6, 4)]
    assert path.read_text() == "0\n3\n3 0\n4 2\n6 4\n"


@pytest.mark.parametrize("segment_bytes", [100, 10_000])
def test_epochs_before_a_log_start_that_a_crash_took(tmp_path: Path, segment_bytes: int) -> None:
    """DeleteRecords, and kill -9 before the checkpoint: the records are there again."""
    config = log_config(segment_bytes=segment_bytes)
    log = open_in(tmp_path, config)
    for epoch in (0, 0, 3, 3, 4, 4, 4, 6):
        append(log, make_batch([b"x"] * 2), epoch=epoch)
    entries = list(log.epochs.entries)
    assert entries == [(0, 0), (3, 4), (4, 8), (6, 14)]
    log.high_watermark = log.end_offset
    log.advance_start(11)
    assert log.epochs.entries == [(4, 11), (6, 14)]
    again = open_in(tmp_path, config, clean=False, recovery_point=log.end_offset)
    assert (again.log_start_offset, again.epochs.entries) == (0, entries)
    started = open_in(tmp_path, config, clean=False, log_start_offset=5)
    started.high_watermark = started.end_offset
    assert started.epochs.entries == [(3, 5), *entries[2:]]
    started.advance_start(15)
    assert open_in(tmp_path, config, log_start_offset=15).epochs.entries == [(6, 15)]


def test_batches_without_an_epoch_come_before_those_with_one(tmp_path: Path) -> None:
    """As in a log that an old Kafka has begun: what is saved can be read again."""
    log = open_in(tmp_path)
    for epoch in (-1, 2):
        append(log, epoch=epoch)
    log.close()
    for _ in range(2):
        log = open_in(tmp_path, clean=False)
        assert log.epochs.entries == [(2, 1)]
        log.close()
    assert parse_epochs((tmp_path / "leader-epoch-checkpoint").read_text()) == [(2, 1)]
