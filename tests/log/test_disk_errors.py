"""A full or failing disk: nothing half written stays, and it works again afterwards.

``FaultyDisk`` lets chosen system calls fail, or write only half; one test fails every
single call of a schedule in turn.  Another fills a real file system.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.log import (
    NOW,
    append,
    check_index_files,
    contents,
    log_config,
    make_batch,
    open_in,
    sized_batch,
)
from support.log_faults import FaultyDisk

from tidelog.log.checkpoints import RECOVERY_POINT, read_checkpoint, write_checkpoint
from tidelog.log.flush import RecordsLost
from tidelog.log.log import Log


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


class Schedule:
    """Appends that roll, change epochs, flush and expire; what was acknowledged is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = log_config(segment_bytes=400, index_interval_bytes=100, retention_bytes=1500)
        self.log = open_in(path, self.config)
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        for i in range(14):
            self._append(i)
            if i % 5 == 4:
                self._try(self.log.flush)
            if i % 7 == 6:
                self._try(lambda: self.log.apply_retention(NOW))

    def _append(self, i: int) -> None:
        log, value = self.log, b"%d " % i * 20
        before = (log.end_offset, log.size, log.producers.encode(), log.epochs.entries)
        sequence = len(self.acknowledged)
        batch = make_batch([value], NOW + i, producer=(1, 0, sequence))
        try:
            done = append(log, batch, epoch=i // 4)
        except OSError:
            assert (log.end_offset, log.size, log.producers.encode()) == before[:3]
            assert os.stat(log.active.path).st_size == log.active.size, "a torn write stays"
            return
        assert done.base_offset == before[0]
        self.acknowledged.append(value)

    def _try(self, action: Callable[[], object]) -> None:
        point = self.log.recovery_point
        try:
            action()
        except OSError:
            assert self.log.recovery_point == point

    def check(self) -> None:
        check_log(self.log, self.acknowledged)
        for clean in (False, True):
            log = open_in(self.path, self.config, clean=clean)
            check_log(log, self.acknowledged)
            if not clean:
                check_index_files(self.path, 100, active_closed=False)
            assert append(log, make_batch([b"more"])).base_offset == len(self.acknowledged)
            self.acknowledged.append(b"more")
            log.close()


def check_log(log: Log, values: list[bytes]) -> None:
    log.check_invariants()
    found = contents(log)
    assert log.end_offset == len(values)
    assert [record.value for record in found] == values[log.log_start_offset :]


@pytest.mark.parametrize("half", [False, True], ids=["refused", "half written"])
@pytest.mark.parametrize("length", [1, 4, 1000], ids=["one call", "four calls", "from then on"])
def test_every_call_fails_in_turn(
    quick_path: Path, disk: FaultyDisk, half: bool, length: int
) -> None:
    total, first = 1, 0
    while first < total:
        schedule = Schedule(quick_path / f"t-{first}")
        disk.count = 0
        disk.half = half
        disk.fails = lambda n, name, target, first=first: first <= n < first + length
        schedule.run()
        total = max(total, disk.count)
        disk.fails = lambda n, name, target: False
        schedule._append(99)
        assert schedule.acknowledged[-1] == b"99 " * 20
        schedule.check()
        first += 1 if length == 1 else 3
    assert total > 50


def refuse(disk: FaultyDisk, call: str, ending: str) -> None:
    disk.fails = lambda n, name, target: name == call and str(target).endswith(ending)


def test_a_roll_that_cannot_make_its_file(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_in(tmp_path, log_config(segment_bytes=200))
    append(log, sized_batch(150))
    refuse(disk, "open", ".log")
    for _ in range(3):
        with pytest.raises(OSError):
            append(log, sized_batch(150))
    assert [path.name for path in tmp_path.glob("*.log")] == ["00000000000000000000.log"]
    refuse(disk, "open", "nothing")
    assert append(log, sized_batch(150)).base_offset == 1
    assert len(log.segments) == 2


def test_a_roll_that_cannot_close_the_old_segment(
    tmp_path: Path, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """The records matter; the index is written by the next flush, the snapshot can be missed."""
    log = open_in(tmp_path, log_config(segment_bytes=200, index_interval_bytes=0))
    for i in range(2):
        append(log, sized_batch(100, NOW + i))
    disk.fails = lambda n, name, target: name == "open" and not str(target).endswith(".log")
    append(log, sized_batch(150, NOW + 2))
    assert "closing a segment" in caplog.text
    disk.fails = lambda n, name, target: False
    log.flush()
    check_index_files(tmp_path, 0, active_closed=False)


def test_an_epoch_that_cannot_be_saved(tmp_path: Path, disk: FaultyDisk) -> None:
    """The batch is not written, or a retry would write it twice."""
    log = open_in(tmp_path)
    append(log, epoch=0)
    refuse(disk, "open", "leader-epoch-checkpoint.tmp")
    with pytest.raises(OSError):
        append(log, epoch=1)
    assert (log.end_offset, log.epochs.entries) == (1, [(0, 0)])
    refuse(disk, "open", "nothing")
    append(log, epoch=1)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n1 1\n"


def test_a_full_disk_can_still_forget(tmp_path: Path, disk: FaultyDisk) -> None:
    """Retention is what makes room: it may not need any."""
    log = open_in(tmp_path, log_config(segment_bytes=200, retention_bytes=100))
    for epoch in range(6):
        append(log, sized_batch(150), epoch=epoch)
    disk.fails = lambda n, name, target: name in ("open", "write", "pwrite")
    files, _ = log.apply_retention(NOW)
    assert len(files) >= 5
    assert log.log_start_offset == 5
    log.config = log_config(retention_ms=1)
    assert log.apply_retention(NOW + 10**6) == ([], "")  # a new active segment needs a file
    disk.fails = lambda n, name, target: False
    log.apply_retention(NOW + 10**6)
    assert log.log_start_offset == log.end_offset == 6
    assert open_in(tmp_path, clean=False).epochs.entries == [(5, 6)]


def test_a_flush_that_fails_is_not_a_flush(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_in(tmp_path, log_config(segment_bytes=200))
    for _ in range(3):
        append(log, sized_batch(150))
    synced: list[str] = []
    broken = 0  # this sync fails

    def fails(number: int, name: str, target: Any) -> bool:
        if name not in ("fsync", "fdatasync"):
            return False
        synced.append(os.readlink(f"/proc/self/fd/{target}"))
        return len(synced) == broken

    disk.fails = fails
    for nth in range(1, 8):
        broken = nth
        synced.clear()
        with pytest.raises(OSError):
            log.flush()
        assert log.recovery_point == 0
    broken = 0
    synced.clear()
    log.flush()
    assert log.recovery_point == 3
    names = [os.path.basename(path) for path in synced]
    assert names.count("00000000000000000002.log") == 1
    assert "00000000000000000000.timeindex" in names  # closed: never rebuilt
    assert str(tmp_path) in synced


def fail_flush(log: Log, disk: FaultyDisk) -> None:
    refuse(disk, "fdatasync", "")
    with pytest.raises(OSError):
        log.flush()
    refuse(disk, "none", "")


def test_what_a_failed_flush_left_is_written_again(tmp_path: Path, disk: FaultyDisk) -> None:
    """The kernel may count it as written; see flush.py."""
    log = open_in(tmp_path, log_config(segment_bytes=400))
    for _ in range(2):
        append(log, sized_batch(150))
    log.flush()
    for _ in range(3):
        append(log, sized_batch(150))
    fail_flush(log, disk)
    append(log, sized_batch(150))
    assert (log.flush_failed, log.recovery_point) == (True, 2)
    calls: list[str] = []
    disk.fails = lambda n, name, target: (
        name in ("pwrite", "fdatasync")
        and bool(
            calls.append(f"{name} {os.readlink(f'/proc/self/fd/{target}').rpartition('/')[2]}")
        )
    )
    log.flush()
    first, second = "00000000000000000002.log", "00000000000000000004.log"
    assert [call for call in calls if call.startswith("pwrite") and call.endswith(".log")] == [
        f"pwrite {first}",
        f"pwrite {first}",
        f"pwrite {second}",
        f"pwrite {second}",
    ]
    assert calls.index(f"fdatasync {first}") > calls.index(f"pwrite {second}")
    assert (log.flush_failed, log.recovery_point) == (False, 6)
    calls.clear()
    append(log, sized_batch(80))
    log.flush()
    assert calls == [f"pwrite {second}", f"fdatasync {second}"]


@pytest.mark.parametrize("where", [20, 100, 160], ids=["a header", "a record", "the next one"])
def test_records_that_the_kernel_dropped(tmp_path: Path, disk: FaultyDisk, where: int) -> None:
    """They are not written again as something else, and nothing counts as flushed."""
    log = open_in(tmp_path)
    append(log, sized_batch(150))
    log.flush()
    for _ in range(2):
        append(log, sized_batch(150))
    fail_flush(log, disk)
    path = tmp_path / "00000000000000000000.log"
    data = path.read_bytes()
    path.write_bytes(data[: 150 + where] + bytes(300 - where))
    for _ in range(2):
        with pytest.raises(RecordsLost, match=f"at byte {150 + where // 150 * 150} were lost"):
            log.flush()
        assert (log.recovery_point, log.flush_failed, log.lost_records) == (1, True, True)
    again = open_in(tmp_path, clean=False, recovery_point=1)
    assert again.end_offset == 1 + where // 150
    assert not again.lost_records


def test_a_flush_says_nothing_about_what_came_after_a_truncation(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    for _ in range(4):
        append(log)
    flush = log.begin_flush()
    flush.carry_out()
    log.truncate_to(2)
    for _ in range(2):
        append(log)
    log.end_flush(flush)
    assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 4


def test_names_are_synced_until_it_works(tmp_path: Path, disk: FaultyDisk) -> None:
    log = open_in(tmp_path, log_config(segment_bytes=300))
    append(log, sized_batch(200))
    append(log, sized_batch(200))
    refuse(disk, "fsync", "")
    with pytest.raises(OSError):
        log.flush()
    synced: list[Any] = []
    disk.fails = lambda n, name, target: name == "fsync" and synced.append(target) is not None
    log.flush()
    assert len(synced) == 2  # the directory, and the one that has it
    append(log)
    log.flush()
    assert len(synced) == 2  # no new name, nothing to do


def test_recovery_on_a_full_disk(
    tmp_path: Path, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_in(tmp_path, log_config(segment_bytes=200, index_interval_bytes=0))
    for i in range(5):
        append(log, sized_batch(90, NOW + i))
    disk.fails = lambda n, name, target: name in ("open", "write", "pwrite")
    again = open_in(tmp_path, log.config, clean=False)
    assert "not flushed after recovery" in caplog.text
    assert [record.offset for record in contents(again)] == list(range(5))
    assert again.recovery_point == 0
    disk.fails = lambda n, name, target: False
    again.close()
    check_index_files(tmp_path, 0, active_closed=True)


def test_a_checkpoint_is_old_or_new(tmp_path: Path, disk: FaultyDisk) -> None:
    old, new = {("t", 0): 1}, {("t", 0): 2}
    write_checkpoint(str(tmp_path), RECOVERY_POINT, old)
    for half in (False, True):
        disk.half = half
        for call in ("open", "write", "fsync", "replace"):
            refuse(disk, call, "")
            if half and call != "write":
                continue
            with pytest.raises(OSError):
                write_checkpoint(str(tmp_path), RECOVERY_POINT, new)
            assert read_checkpoint(str(tmp_path), RECOVERY_POINT) in (old, new)
            assert not list(tmp_path.glob("*.tmp"))
            refuse(disk, "none", "")
            write_checkpoint(str(tmp_path), RECOVERY_POINT, old)


# -- a real one ---------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs root and mount")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_disk_that_fills_up(small_disk: Path) -> None:
    config = log_config(segment_bytes=40_000, retention_bytes=60_000)
    log = open_in(small_disk / "t-0", config)
    for _ in range(3):
        written, refused = log.end_offset, 0
        while refused < 5:
            try:
                append(log, sized_batch(3000))
                written += 1
            except OSError as error:
                assert error.errno == errno.ENOSPC
                refused += 1
        assert log.end_offset == written
        log.check_invariants()
        files, _ = log.apply_retention(NOW)
        assert files
        for path in files:
            os.unlink(path)
        assert append(log, sized_batch(3000)).base_offset == written
    log.close()
    log = open_in(small_disk / "t-0", config)
    assert [record.offset for record in contents(log)] == list(
        range(log.log_start_offset, log.end_offset)
    )
