"""Putting compacted segments into place: a crash at any call, and others who move segments."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.compaction_model import table
from support.log import NOW, append, contents, generator, log_config, log_files, open_in

from tidelog import files
from tidelog.log.cleaner import Cleaned, clean
from tidelog.log.cleaner_jobs import Limits, Round, assess_log, clean_log
from tidelog.log.log import Log
from tidelog.wire.compression import Codec
from tidelog.wire.records import Record, decode_batch, encode_batch

pytestmark = pytest.mark.usefixtures("no_sync")

CONFIG = log_config(
    cleanup_policy="compact", segment_bytes=900, index_interval_bytes=200, delete_retention_ms=0
)
JOINED = replace(CONFIG, segment_bytes=2500)  # three of them become one
CALLS = ("open", "write", "pwrite", "rename", "replace", "unlink", "ftruncate", "fsync", "utime")


class Crash(BaseException):
    """The process is gone."""


@contextmanager
def crash_at(number: int) -> Iterator[list[int]]:
    """The call of this number, of those that change files, is not made, nor any after it."""
    count = [0]

    def wrap(real: Any, writes: bool) -> Any:
        def call(target: Any, *rest: Any, **named: Any) -> Any:
            if not writes and not rest[0] & (os.O_CREAT | os.O_TRUNC):
                return real(target, *rest, **named)
            count[0] += 1
            if count[0] > number:
                raise Crash
            return real(target, *rest, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(files, name, wrap(getattr(files, name), name != "open"))
        yield count


def fill(log: Log, batches: int, *what: object, keys: int = 6) -> list[Record]:
    """Records of few keys, some tombstones, two producers; returns all."""
    rng = generator(*what)
    sequences = [0, 0]
    sent = []
    for i in range(batches):
        rows = [
            (NOW + i, b"k%d" % rng.randrange(keys), rng.choice((None, rng.randbytes(60))), ())
            for _ in range(rng.choice((1, 3)))
        ]
        who = i % 2
        data = encode_batch(
            rows,
            codec=rng.choice((Codec.NONE, Codec.ZSTD)),
            producer_id=who,
            producer_epoch=0,
            base_sequence=sequences[who],
        )
        sequences[who] += len(rows)
        base = append(log, data, NOW + i).base_offset
        sent += [Record(base + n, t, key, value, ()) for n, (t, key, value, _) in enumerate(rows)]
    log.flush()
    log.configure(JOINED)
    return sent


def reopen(directory: Path, **how: Any) -> Log:
    log = open_in(directory, JOINED, clean=False, recovery_point=how.get("point", 0))
    log.high_watermark = log.end_offset
    return log


def check_after_crash(log: Log, sent: list[Record]) -> None:
    log.check_invariants()
    assert not [path for path in Path(log.directory).iterdir() if path.suffix in UNFINISHED]
    left = contents(log, 0)
    assert set(map(repr, left)) <= set(map(repr, sent))
    assert table(left) == table(sent)
    assert log.end_offset == sent[-1].offset + 1
    for producer_id in (0, 1):
        mine = [record for record in sent if record.offset in log_offsets(sent, producer_id)]
        assert log.producers.producers[producer_id].batches[-1].last_offset == mine[-1].offset


UNFINISHED = {".cleaned", ".swap", ".deleted", ".tmp"}


def log_offsets(sent: list[Record], producer_id: int) -> set[int]:
    """The offsets that a producer wrote: the batches alternate, each has one time."""
    return {record.offset for record in sent if (record.timestamp - NOW) % 2 == producer_id}


def test_a_log_counts_as_clean_when_its_renames_are_on_disk(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_in(quick_path / "t-0", CONFIG)
    fill(log, 60, "names")
    synced: list[tuple[bool, int | None]] = []  # was a swap under way, and how far is it clean

    def sync(directory: str) -> None:
        swapping = any(path.suffix == ".swap" for path in Path(directory).iterdir())
        synced.append((swapping, log.cleaned_offset))

    monkeypatch.setattr("tidelog.log.cleaner_jobs.sync_directory", sync)
    monkeypatch.setattr("tidelog.log.cleaner_swap.sync_directory", sync)
    clean_log(log, NOW + 1000)
    assert synced[-1] == (False, None)
    assert (True, None) in synced
    assert log.cleaned_offset is not None


def test_a_crash_at_every_call(quick_path: Path) -> None:
    original = quick_path / "original"
    log = open_in(original, CONFIG)
    sent = fill(log, 60, "crash")
    assert len(log.segments) > 6
    size = log.size
    seen: set[tuple[str, ...]] = set()
    number = 0
    while True:
        directory = quick_path / "t-0"
        shutil.copytree(original, directory)
        log = reopen(directory)
        limits = Limits(chunk_bytes=300)
        with crash_at(number):
            try:
                clean_log(log, NOW + 1000, limits)
                done = True
            except Crash:
                done = False
        seen.add(tuple(sorted({path.suffix for path in directory.iterdir()} & UNFINISHED)))
        # Once more, and the start itself crashes too.
        for again in range(3):
            with crash_at(again * 3):
                try:
                    reopen(directory)
                except Crash:
                    continue
        log = reopen(directory, point=generator(number).choice((0, log.recovery_point)))
        check_after_crash(log, sent)
        assert (
            append(log, encode_batch([(NOW, b"new", b"x", ())])).base_offset == log.end_offset - 1
        )
        log.flush()
        clean_log(log, NOW + 2000, limits)
        clean_log(log, NOW + 3000, limits)
        assert table(contents(log, 0)) == {**table(sent), b"new": b"x"}
        assert log.size < size
        shutil.rmtree(directory)
        if done:
            break
        number += 1
    assert number > 50
    assert {(".cleaned",), (".swap",), (".deleted", ".swap"), (".deleted",)} <= seen


def test_what_is_synced_before_what(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut: a copy is on disk before its name says so, and its name before the old go."""
    log = open_in(quick_path / "t-0", CONFIG)
    fill(log, 40, "sync")
    calls: list[tuple[str, str]] = []
    real = files.rename

    def synced(fd: int) -> None:
        calls.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))

    def rename(source: str, target: str) -> None:
        real(source, target)
        calls.append(("rename", os.path.basename(target)))

    monkeypatch.setattr(files, "fsync", synced)
    monkeypatch.setattr(files, "fdatasync", synced)
    monkeypatch.setattr(files, "rename", rename)
    clean_log(log, NOW + 1000)
    swaps = [i for i, (what, name) in enumerate(calls) if name.endswith(".log.swap")]
    assert swaps
    for i in swaps:
        name = calls[i][1].removesuffix(".swap")
        for file in (name, name.replace(".log", ".index"), name.replace(".log", ".timeindex")):
            assert ("sync", file + ".cleaned") in calls[:i]
        after = calls[i + 1 :]
        assert after.index(("sync", "t-0")) < after.index(("rename", name + ".deleted"))


def begin_round(log: Log) -> tuple[Round, list[Cleaned]]:
    """Copies are made; nothing is in place yet."""
    work = Round(log, assess_log(log, NOW + 1000), NOW + 1000, Limits())
    return work, [item for item in clean(work.job) if isinstance(item, Cleaned)]


def test_truncated_meanwhile(quick_path: Path) -> None:
    log = open_in(quick_path / "t-0", CONFIG)
    sent = fill(log, 40, "cut")
    work, groups = begin_round(log)
    cut = log.segments[2].base_offset
    log.truncate_to(cut)
    assert work.swap(groups[0]) is None
    work.abandon()
    append(log, encode_batch([(NOW, b"more", b"x", ())]))
    log = reopen(quick_path / "t-0")
    assert [r for r in contents(log, 0) if r.offset < cut] == [r for r in sent if r.offset < cut]


@pytest.mark.parametrize("crash", [False, True])
def test_truncated_while_a_swap_is_synced(quick_path: Path, crash: bool) -> None:
    log = open_in(quick_path / "t-0", CONFIG)
    sent = fill(log, 40, "cut")
    work, groups = begin_round(log)
    swap = work.swap(groups[0])
    assert swap is not None
    swap.begin()
    cut = log.segments[1].base_offset + 1
    log.truncate_to(cut)
    if not crash:
        assert swap.finish() is None
    log = reopen(quick_path / "t-0")
    assert log.end_offset <= cut
    expected = [record for record in sent if record.offset < log.end_offset]
    assert contents(log, 0) == expected


def test_dropped_by_retention_meanwhile(quick_path: Path) -> None:
    log = open_in(quick_path / "t-0", CONFIG)
    sent = fill(log, 40, "old")
    work, groups = begin_round(log)
    swap = work.swap(groups[0])
    assert swap is not None
    swap.begin()
    start = log.segments[1].base_offset
    log.advance_start(start)
    assert log.apply_retention(NOW)[1] == "log start offset"
    assert swap.finish() is None
    assert work.swap(groups[0]) is None
    log = reopen(quick_path / "t-0")
    assert contents(log, 0) == [record for record in sent if record.offset >= start]


def test_readers_of_the_old_files_read_on(quick_path: Path) -> None:
    log = open_in(quick_path / "t-0", CONFIG)
    sent = fill(log, 40, "read")
    held = [
        log.read(s.base_offset, 1 << 20, log.end_offset, at_least_one=True) for s in log.segments
    ]
    mapped = [found.file.view(found.position, found.length) for found in held if found]
    clean_log(log, NOW + 1000)
    assert len(contents(log, 0)) < len(sent)
    for data in (*[found.read() for found in held if found], *mapped):
        assert next(iter(decode_batch(data))) in sent
    assert [r for found in held if found for r in _records(found.read())] == sent


def _records(data: bytes) -> list[Record]:
    from tidelog.wire.records import split_batches

    return [record for batch in split_batches(data) for record in decode_batch(batch)]


def test_a_swap_that_kafka_left(quick_path: Path) -> None:
    """Kafka names no index .swap until the log is; and its copy may have no index at all."""
    directory = quick_path / "t-0"
    log = open_in(directory, CONFIG)
    sent = fill(log, 40, "kafka", keys=100)
    work, groups = begin_round(log)
    first = groups[0]
    stem = directory / f"{first.bases[0]:020d}"
    os.rename(f"{stem}.log.cleaned", f"{stem}.log.swap")
    for suffix in (".index", ".timeindex"):
        os.unlink(f"{stem}{suffix}.cleaned")
    log = reopen(directory)
    check_after_crash(log, sent)
    assert os.path.getsize(f"{stem}.log") == first.bytes_after
    assert len(log_files(directory)) < len(work.job.segments) + 1


def test_a_rename_that_fails_is_taken_back(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = quick_path / "t-0"
    log = open_in(directory, CONFIG)
    sent = fill(log, 40, "rename")
    real = files.rename
    failed = 0
    while True:
        work, groups = begin_round(log)
        swap = work.swap(groups[0])
        assert swap is not None
        swap.begin()
        left = [failed]

        def rename(source: str, target: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(30, "Read-only file system")
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(files, "rename", rename)
            try:
                if swap.finish():
                    break
            except OSError as error:
                assert "Read-only" in str(error)
        assert contents(log, 0) == sent
        log.abandon_swap()
        work.abandon()
        assert contents(reopen(directory), 0) == sent
        failed += 1
    assert failed > 12
