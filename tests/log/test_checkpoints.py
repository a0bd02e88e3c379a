"""Checkpoints: shortcuts that may be lost, damaged or out of date."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.log import generator
from support.log_manager import MARK, make, start, values

from tidelog.log.checkpoints import LOG_START, RECOVERY_POINT, read_checkpoint, write_checkpoint


def test_a_topic_that_is_created_again_has_no_past(tmp_path: Path) -> None:
    """The old one's log start must not hide the new one's records after a crash."""
    manager, _ = start(tmp_path)
    make(manager, records=10)
    manager.logs["t", 0].advance_start(8)
    manager.write_checkpoints()
    manager.delete("t", 0)
    make(manager, records=4)
    manager.release()
    manager, _ = start(tmp_path)
    assert values(manager) == [b"0", b"1", b"2", b"3"]
    # The same with a crash between the deletion and the new topic.
    manager.logs["t", 0].advance_start(3)
    manager.write_checkpoints()
    manager.delete("t", 0)
    manager.release()
    manager, _ = start(tmp_path)
    make(manager, records=2)
    manager.release()
    manager, _ = start(tmp_path)
    assert values(manager) == [b"0", b"1"]
    manager.close()


def test_damaged_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the bytes are, the logs open; a log start may move, records never go."""
    manager, _ = start(tmp_path)
    make(manager, records=12)
    manager.logs["t", 0].advance_start(2)
    manager.close()
    rng = generator("checkpoints")
    for name in (RECOVERY_POINT, LOG_START):
        whole = (tmp_path / name).read_bytes()
        damaged = [whole[:i] + bytes([whole[i] ^ (1 << rng.randrange(8))]) + whole[i + 1 :]
                   for i in range(len(whole))]  # fmt: skip
        for data in [*damaged, b"", b"\xff\xfe", whole[:-3], whole + whole, rng.randbytes(50)]:
            for clean in (True, False):
                (tmp_path / name).write_bytes(data)
                if clean:
                    (tmp_path / MARK).write_text("")
                manager, _ = start(tmp_path)
                log = manager.logs["t", 0]
                assert log.end_offset == 12
                log.check_invariants()
                assert values(manager) == [b"%d" % i for i in range(log.log_start_offset, 12)]
                manager.release()
        (tmp_path / name).write_bytes(whole)
    assert "cannot be read" in caplog.text


def test_checkpoints_round_trip(tmp_path: Path) -> None:
    offsets = {("a.b-c", 0): 0, ("a.b-c", 10): 2**62, ("x", 3): 7}
    write_checkpoint(str(tmp_path), "c", offsets)
    assert read_checkpoint(str(tmp_path), "c") == offsets
    assert read_checkpoint(str(tmp_path), "missing") == {}
    write_checkpoint(str(tmp_path), "c", {})
    assert (tmp_path / "c").read_text() == "0\n0\n"


def test_a_checkpoint_that_kafka_has_not_written_yet_is_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "c").touch()
    assert read_checkpoint(str(tmp_path), "c") == {}
    assert not caplog.records


def test_an_older_note_never_overwrites_a_newer_one(tmp_path: Path) -> None:
    """The periodic checkpoints are written by a thread that may be late."""
    manager, _ = start(tmp_path)
    make(manager, records=10)
    manager.logs["t", 0].advance_start(8)
    late = manager.note_checkpoints()
    manager.delete("t", 0)
    make(manager, records=4)  # knows that the old log may be named, and writes
    late()
    assert read_checkpoint(str(tmp_path), LOG_START) == {}
    manager.release()
    manager, _ = start(tmp_path)
    assert values(manager) == [b"0", b"1", b"2", b"3"]
    manager.close()
