"""All the logs of a broker: whose they are, whether they were closed, what is not a log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.log import append, log_config, make_batch
from support.log_faults import FaultyDisk
from support.log_manager import MARK, TOPIC_ID, load, make, open_manager, start, values

from tidelog import files
from tidelog.clock import FakeClock
from tidelog.errors import ApiError, SettingError
from tidelog.log.log import Log
from tidelog.log.manager import DirectoryInUse, LogManager, WrongCluster
from tidelog.log.moved import MOVED


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("../x", 0), ("", 0), (".", 0), ("a\0", 0), ("x" * 250, 0), ("t", -1), ("x" * 249, 2**31 - 1)],
)
def test_no_log_outside_of_the_directory(tmp_path: Path, topic: str, partition: int) -> None:
    manager, _ = start(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ApiError):
        make(manager, topic, partition)
    assert sorted(tmp_path.rglob("*")) == before
    manager.close()


def test_a_directory_that_a_deletion_left_is_set_aside(tmp_path: Path) -> None:
    manager, _ = start(tmp_path)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "old").touch()
    make(manager)
    assert values(manager) == [b"0", b"1", b"2"]
    (stray,) = tmp_path.glob("t-0.*-stray")
    assert [path.name for path in stray.iterdir()] == ["old"]
    manager.close()


def test_a_high_watermark_that_was_written_is_not_above_the_end(tmp_path: Path) -> None:
    """A power cut took records that were visible: the checkpoint is younger than the log."""
    manager, _ = start(tmp_path)
    make(manager)
    manager.write_checkpoints()
    manager.release()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    again = open_manager(tmp_path)
    found = again.load(lambda topic: log_config(), lambda done, total: None)
    log = found["t", 0].log
    assert (log.end_offset, log.high_watermark) == (0, 0)
    log.check_invariants()
    again.close()


# -- the lock -----------------------------------------------------------------------


def test_one_broker_for_a_directory(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    with pytest.raises(DirectoryInUse, match=f"process id {os.getpid()}"):
        open_manager(tmp_path)
    manager.release()
    open_manager(tmp_path).release()


def test_a_killed_broker_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import os, sys; from tidelog.log.manager import LogManager; "
        "from tidelog.clock import SystemClock; "
        "LogManager([sys.argv[1]], SystemClock()).open(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert int((tmp_path / ".lock").read_text()) > 0
    open_manager(tmp_path).release()


def test_the_first_directory_is_given_back(tmp_path: Path) -> None:
    other = open_manager(tmp_path / "b")
    manager = LogManager([str(tmp_path / "a"), str(tmp_path / "b")], FakeClock())
    with pytest.raises(DirectoryInUse):
        manager.open()
    manager.release()
    open_manager(tmp_path / "a").release()
    other.release()


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"log\.dirs: .*file cannot be used"):
        open_manager(tmp_path / "file")


# -- identity -----------------------------------------------------------------------


def test_whose_data_it_is(tmp_path: Path) -> None:
    manager = open_manager(tmp_path / "a", tmp_path / "b")
    assert manager.cluster_id() is None
    manager.identify(3, "mine")
    assert manager.cluster_id() == "mine"
    manager.identify(3, "mine")
    with pytest.raises(WrongCluster, match="belongs to cluster mine, this broker to yours"):
        manager.identify(3, "yours")
    with pytest.raises(WrongCluster, match=r"belongs to broker 3.*--set broker.id=3"):
        manager.identify(4, "mine")
    manager.release()


def test_a_directory_of_kafka(tmp_path: Path) -> None:
    text = (
        "#\n#Mon Nov 06 12:00:00 UTC 2023\nnode.id=7\nversion=1\ncluster.id=abc\ndirectory.id=x\n"
    )
    (tmp_path / "meta.properties").write_text(text)
    manager = open_manager(tmp_path)
    manager.identify(7, "abc")
    assert (tmp_path / "meta.properties").read_text() == text
    with pytest.raises(WrongCluster):
        manager.identify(8, "abc")
    manager.release()


@pytest.mark.parametrize("data", [b"\xff\xfe", b"garbage without a sign\n"])
def test_an_identity_that_cannot_be_read(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "meta.properties").write_bytes(data)
    manager = open_manager(tmp_path)
    with pytest.raises(SettingError, match=r"meta\.properties"):
        manager.identify(0, "abc")
    manager.release()


# -- stops and starts ---------------------------------------------------------------


def test_a_clean_stop_leaves_a_mark_and_a_start_takes_it(tmp_path: Path) -> None:
    manager, found = start(tmp_path)
    assert found == {}
    make(manager)
    manager.close(broker_epoch=5)
    assert (tmp_path / MARK).exists()
    manager, found = start(tmp_path)
    assert not (tmp_path / MARK).exists()
    assert found["t", 0].topic_id == TOPIC_ID
    assert values(manager) == [b"0", b"1", b"2"]
    manager.release()  # as if killed
    manager, _ = start(tmp_path)
    assert values(manager) == [b"0", b"1", b"2"]
    manager.close()


def test_a_start_that_is_refused_keeps_the_mark(tmp_path: Path) -> None:
    """A typing error in broker.id must not cost a recovery."""
    manager, _ = start(tmp_path)
    make(manager)
    manager.close()
    manager = open_manager(tmp_path)
    with pytest.raises(WrongCluster):
        manager.identify(9, "cluster")
    manager.release()
    assert (tmp_path / MARK).exists()


def test_the_mark_is_gone_for_good_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not bring it back: its removal is synced."""
    manager, _ = start(tmp_path)
    manager.close()
    synced: list[tuple[str, bool]] = []
    real = files.fsync

    def fsync(fd: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), (tmp_path / MARK).exists()))
        real(fd)

    monkeypatch.setattr(files, "fsync", fsync)
    manager, _ = start(tmp_path)
    assert (str(tmp_path), False) in synced
    manager.release()


def test_a_stop_on_a_failing_disk_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for calls in ({"fdatasync"}, {"write"}, {"replace"}, {"open", "write", "pwrite", "fsync"}):
        manager, _ = start(tmp_path)
        if ("t", 0) not in manager.logs:
            make(manager)
        append(manager.logs["t", 0])
        with monkeypatch.context() as patch:
            disk = FaultyDisk(patch)
            disk.fails = lambda n, name, target, calls=calls: name in calls
            manager.close()
        assert not (tmp_path / MARK).exists(), calls
        open_manager(tmp_path).release()  # the lock is given back
    assert "at stop" in caplog.text


def test_a_stop_flushes_only_what_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand logs most are idle: they must not cost ten thousand flushes."""
    flushed: list[str] = []
    real = Log.flush

    def flush(log: Log) -> None:
        flushed.append(os.path.basename(log.directory))
        real(log)

    monkeypatch.setattr(Log, "flush", flush)

    def stop(manager: LogManager) -> list[str]:
        flushed.clear()
        assert manager.close() == {}
        assert (tmp_path / MARK).exists()
        return sorted(flushed)

    manager, _ = start(tmp_path)
    for i in range(4):
        make(manager, partition=i, records=0)
    make(manager, "written")
    make(manager, "also")
    manager.logs["also", 0].flush()  # but its snapshot and the end of its index are missing
    assert stop(manager) == ["also-0", "written-0"]
    for path in tmp_path.glob("t-*"):
        assert (path / f"{0:020d}.index").exists(), "Kafka expects it"
    manager, _ = start(tmp_path)
    assert stop(manager) == []
    manager, _ = start(tmp_path)
    append(manager.logs["t", 0], make_batch([b"first"]))
    manager.logs["written", 0].truncate_to(2)
    assert stop(manager) == ["t-0", "written-0"]
    manager, _ = start(tmp_path)
    manager.logs["also", 0].begin_epoch(7)
    assert stop(manager) == ["also-0"]
    manager, _ = start(tmp_path)
    assert stop(manager) == []
    manager, _ = start(tmp_path)
    assert values(manager) == [b"first"]
    assert values(manager, "written") == [b"0", b"1"]
    assert manager.logs["also", 0].epochs.latest == 7
    manager.release()


def test_a_stop_that_takes_long_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    manager, _ = start(tmp_path)
    for i in range(5):
        make(manager, partition=i)
    real = Log.close

    def close(log: Log) -> None:
        manager.clock.advance(1000)  # type: ignore[attr-defined]
        real(log)

    monkeypatch.setattr(Log, "close", close)
    manager.close()
    assert "of 5 logs are on disk" in caplog.text


def test_only_the_directory_that_failed_is_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _ = start(tmp_path / "a", tmp_path / "b")
    make(manager, partition=0)
    make(manager, partition=1)
    monkeypatch.setattr(
        manager.logs["t", 0], "close", lambda: (_ for _ in ()).throw(OSError(5, "x"))
    )
    assert [str(error) for error in manager.close().values()] == ["[Errno 5] x"]
    marks = [(tmp_path / name / MARK).exists() for name in ("a", "b")]
    assert sorted(marks) == [False, True]


# -- what is in a directory ---------------------------------------------------------


def test_new_logs_go_where_there_are_fewest(tmp_path: Path) -> None:
    manager, _ = start(tmp_path / "a", tmp_path / "b")
    for i in range(6):
        make(manager, partition=i)
    count = [len(list((tmp_path / name).glob("t-*"))) for name in ("a", "b")]
    assert count == [3, 3]
    manager.close()
    manager, found = start(tmp_path / "a", tmp_path / "b")
    assert sorted(found) == [("t", i) for i in range(6)]
    manager.close()


def test_what_is_not_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager, _ = start(tmp_path)
    make(manager, "a.b-c_d", 12)
    manager.close()
    uid = "0123456789abcdef0123456789abcdef"
    strange = [f"t-0.{uid}-future", "lost+found", "t-00", "t-٣", "t-", "-1"]
    stray = f"t-0.{uid}-stray"
    for name in [*strange, stray, f"t-1.{uid}-delete"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("")
    os.truncate(tmp_path / stray / "x", 3 << 20)
    (tmp_path / "t-5").write_text("a file")
    manager, found = start(tmp_path)
    assert list(found) == [("a.b-c_d", 12)]
    for name in strange:
        assert os.listdir(tmp_path / name) == ["x"], name
        assert f"{tmp_path / name} is not a partition" in caplog.text
    assert not (tmp_path / f"t-1.{uid}-delete").exists()
    assert f"{tmp_path / stray} (3.0 MiB) was quarantined" in caplog.text
    assert os.listdir(tmp_path / stray) == ["x"], "only a person deletes it"
    manager.close()


def test_a_log_in_two_directories(tmp_path: Path) -> None:
    for name, records in (("a", 2), ("b", 3), ("c", 0)):
        manager, _ = start(tmp_path / name)
        make(manager, records=records)
        manager.close()
    manager = open_manager(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    with pytest.raises(SettingError, match="t-0 is in 3 directories; remove all but one") as error:
        load(manager)
    for name, end in (("a", 2), ("b", 3), ("c", 0)):
        assert f"{tmp_path / name / 't-0'} (ends at offset {end})" in str(error.value)
    manager.release()


def test_progress(tmp_path: Path) -> None:
    manager, _ = start(tmp_path)
    for i in range(3):
        make(manager, partition=i)
    manager.close()
    manager = open_manager(tmp_path)
    seen: list[tuple[int, int]] = []
    manager.load(lambda topic: log_config(), lambda *step: seen.append(step))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    manager.release()


@pytest.mark.parametrize("topic", ["t", "x" * 249])
def test_deletion(tmp_path: Path, topic: str) -> None:
    manager, _ = start(tmp_path)
    make(manager, topic)
    path = manager.delete(topic, 0)
    assert path is not None
    name = os.path.basename(path)
    assert name.endswith("-delete")
    assert len(name) <= 255
    assert manager.delete(topic, 0) is None
    assert not (tmp_path / f"{topic}-0").exists()
    manager.close()
    manager, found = start(tmp_path)
    assert found == {}
    assert not os.path.exists(path)
    manager.close()


def test_a_move_that_a_crash_has_interrupted(tmp_path: Path) -> None:
    """Once the copy has its name it counts, with the offsets that the old directory knows."""
    one, two = tmp_path / "one", tmp_path / "two"
    manager, _ = start(one, two)
    make(manager, records=5)
    manager.logs["t", 0].advance_start(2)
    manager.write_checkpoints()
    manager.release()
    copy = two / "t-0"
    shutil.copytree(one / "t-0", copy)
    (copy / MOVED).write_text("")
    future = two / "t-0.0123456789abcdef0123456789abcdef-future"
    shutil.copytree(copy, future)
    for before_the_mark in ("1", "2"):
        (two / f"t-0.{before_the_mark}-future").mkdir()
    (two / "t-0.2-future" / f"{MOVED}.tmp").write_text("")
    manager, found = start(one, two)
    assert values(manager) == [b"2", b"3", b"4"]
    assert found["t", 0].topic_id == TOPIC_ID
    assert found["t", 0].log.directory == str(copy)
    assert [path.name for path in tmp_path.glob("*/t-0*")] == ["t-0"]
    assert not (copy / MOVED).exists()
    manager.release()  # another crash: what it knows is in its own directory by now
    (copy / MOVED).write_text("")  # and the old one was removed, but not yet this
    manager, _ = start(one, two)
    assert values(manager) == [b"2", b"3", b"4"]
    assert not (copy / MOVED).exists()
    manager.close()


def test_a_preferred_directory_is_that_of_one_topic(tmp_path: Path) -> None:
    """Not that of a later topic of the same name."""
    one, two = tmp_path / "one", tmp_path / "two"
    manager, _ = start(one, two)
    manager.preferred["t", 0] = bytes(16), str(two)
    manager.preferred["t", 1] = TOPIC_ID, str(one)
    make(manager)
    assert (one / "t-0").exists()
    make(manager, partition=1)
    assert (one / "t-1").exists()
    assert manager.preferred == {}
    manager.close()
