"""Indexes, snapshots and epochs are hints: damage to them costs time, never records."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from support.log import NOW, append, contents, generator, make_batch
from support.log_damage import WholeLog, flip

from tidelog.errors import ApiError
from tidelog.log.leader_epochs import parse_epochs
from tidelog.log.log import Log

pytestmark = pytest.mark.usefixtures("no_sync")

STOPS = pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])
INDEXES = pytest.mark.parametrize("suffix", [".index", ".timeindex"])


@pytest.fixture
def whole(quick_path: Path, clean: bool) -> WholeLog:
    log = WholeLog(quick_path / "t-0", clean=clean)
    if not clean:
        # After a crash the indexes of the newest segment are rebuilt; keep the flushed ones.
        assert all(path.stat().st_size for path in log.directory.glob("*.timeindex"))
    return log


def damages(what: str, data: bytes) -> list[bytes | None]:
    """Every way to spoil a small file."""
    rng = generator(what)
    flips = [flip(rng, data, at) for at in range(len(data))]
    wild = [bytes(len(data)), b"\xff" * len(data), rng.randbytes(len(data))]
    return [*flips, *wild, b"", None, data + b"\0", data + rng.randbytes(64)]


def check_all(whole: WholeLog, clean: bool) -> None:
    """Everything is found as if nothing had happened, and more can be written."""
    log = whole.reopen(clean=clean, recovery_point=whole.base)
    assert contents(log) == whole.records
    whole.check_reads(log)
    whole.check_producers(log, whole.end)
    log.check_invariants()
    for _ in range(3):
        append(log, make_batch([b"more" * 50], whole.records[-1].timestamp + 1))
    log.close()
    again = whole.reopen(clean=True)
    whole.check_reads_only(again)
    assert len(contents(again)) == len(whole.records) + 3


@STOPS
@INDEXES
def test_index_of_a_closed_segment(
    whole: WholeLog, clean: bool, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = list(whole.batches)[1].replace(".log", suffix)
    for data in damages(name, whole.files[name]):
        whole.restore(**{name: data})
        check_all(whole, clean)
    assert "its indexes do not match; rebuilt" in caplog.text


@STOPS
@INDEXES
def test_index_of_the_newest_segment(whole: WholeLog, clean: bool, suffix: str) -> None:
    name = whole.newest.replace(".log", suffix)
    for data in damages(name, whole.files.get(name, b"")):
        whole.restore(**{name: data})
        check_all(whole, clean)


@STOPS
@INDEXES
def test_an_index_that_lost_its_end(whole: WholeLog, clean: bool, suffix: str) -> None:
    for log_name in whole.batches:
        name = log_name.replace(".log", suffix)
        data = whole.files.get(name, b"")
        for size in range(0, len(data), 4):
            whole.restore(**{name: data[:size]})
            check_all(whole, clean)


@STOPS
def test_all_indexes_are_gone(whole: WholeLog, clean: bool) -> None:
    gone = {name: None for name in whole.files if name.endswith("index")}
    assert len(gone) >= 6
    whole.restore(**gone)
    check_all(whole, clean)


@STOPS
def test_an_index_of_another_segment(whole: WholeLog, clean: bool) -> None:
    """Well-formed, sorted, and wrong."""
    names = [name.replace(".log", "") for name in whole.batches]
    for suffix in (".index", ".timeindex"):
        swapped = {names[0] + suffix: whole.files[names[1] + suffix]}
        whole.restore(**swapped, **{names[1] + suffix: whole.files[names[0] + suffix]})
        check_all(whole, clean)


@STOPS
def test_snapshots(whole: WholeLog, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The newest one is damaged: an older one and the log after it say the same."""
    name = max(name for name in whole.files if name.endswith(".snapshot"))
    for data in damages(name, whole.files[name]):
        whole.restore(**{name: data})
        caplog.clear()
        log = whole.reopen(clean=clean)
        whole.check_producers(log, whole.end)
        assert data is None or "cannot be used" in caplog.text
        assert data is None or not (whole.directory / name).exists()


@STOPS
def test_no_snapshot_is_left(whole: WholeLog, clean: bool) -> None:
    whole.restore(**{name: None for name in whole.files if name.endswith(".snapshot")})
    log = whole.reopen(clean=clean)
    whole.check_producers(log, whole.end)


@STOPS
def test_a_snapshot_from_the_future(whole: WholeLog, clean: bool) -> None:
    """It speaks of records that the log does not have."""
    name = max(name for name in whole.files if name.endswith(".snapshot"))
    future = f"{whole.end + 10:020d}.snapshot"
    whole.restore(**{future: whole.files[name]})
    whole.check_producers(whole.reopen(clean=clean), whole.end)
    assert not (whole.directory / future).exists()


@STOPS
def test_leader_epochs(whole: WholeLog, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    name = "leader-epoch-checkpoint"
    right = parse_epochs(whole.files[name].decode())
    assert len(right) > 3
    for data in damages(name, whole.files[name]):
        whole.restore(**{name: data})
        caplog.clear()
        log = whole.reopen(clean=clean)
        assert contents(log) == whole.records
        try:
            still_valid = data is not None and parse_epochs(data.decode()) != right
        except ValueError:
            still_valid = False
            assert "rebuilt from the log" in caplog.text
        if not still_valid:
            assert log.epochs.entries == right
            assert parse_epochs((whole.directory / name).read_text()) == right


@STOPS
def test_epochs_of_records_that_are_lost(whole: WholeLog, clean: bool) -> None:
    whole.restore(**{whole.newest: b"", "leader-epoch-checkpoint": b"0\n2\n0 0\n9 100000\n"})
    log = whole.reopen(clean=clean)
    assert log.end_offset == whole.base
    assert log.epochs.latest < 9


@pytest.mark.parametrize("indexed", [True, False])
def test_rot_in_a_closed_segment(quick_path: Path, indexed: bool) -> None:
    """Nobody checks it at start; whoever meets it gets an error that a client understands."""
    whole = WholeLog(quick_path / "t-0", clean=True)
    rng = generator("rot", indexed)
    name = list(whole.batches)[1]
    gone = {} if indexed else {name.replace("log", kind): None for kind in ("index", "timeindex")}
    last = whole.batches[whole.newest][0].base_offset
    for batch in whole.batches[name]:
        for at in range(batch.position + rng.randrange(3), batch.position + 61, 3):
            whole.restore(**{name: flip(rng, whole.files[name], at)}, **gone)
            log = whole.reopen(clean=True, check=False)
            use_everything(log)
            assert contents(log, last) == [r for r in whole.records if r.offset >= last]


@STOPS
def test_any_directory_opens(whole: WholeLog, clean: bool) -> None:
    """Everything is damaged at once, in every way; what is left is a log that works."""
    rng = generator("any directory", clean)
    for _ in range(120):
        changed: dict[str, bytes | None] = {}
        for name, data in whole.files.items():
            cut = rng.randrange(len(data) + 1)
            spoilt = flip(rng, data, rng.randrange(len(data))) if data else b"?"
            ways = (data, data[:cut], data[:cut] + bytes(len(data) - cut), spoilt, b"", None)
            changed[name] = rng.choice((*ways, rng.randbytes(cut), data + data[:cut]))
        whole.restore(**changed)
        log = whole.reopen(clean=clean, recovery_point=rng.randrange(whole.end), check=False)
        end = log.end_offset
        use_everything(log)
        for _ in range(2):
            append(log, make_batch([b"more"], producer=(99, 0, log.end_offset - end)))
        log.close()
        again = whole.reopen(clean=True, check=False)
        assert [record.value for record in contents(again, end)] == [b"more"] * 2


def use_everything(log: Log) -> None:
    for offset in range(0, min(log.end_offset, 200), 3):
        with suppress(ApiError):
            log.read(offset, 500, log.end_offset, at_least_one=True)
    for timestamp in range(NOW, NOW + 1000, 50):
        with suppress(ApiError):
            log.offset_for_timestamp(timestamp, log.end_offset)
    with suppress(ApiError):
        log.newest_record()
    log.apply_retention(NOW)


def test_no_descriptor_is_left_open(quick_path: Path) -> None:
    """Reading every segment opens files; retention lets go of them."""
    whole = WholeLog(quick_path / "t-0", clean=True)
    before = len(os.listdir("/proc/self/fd"))
    log = whole.reopen(clean=True)
    whole.check_reads(log)
    log.apply_retention(0)
    assert len(os.listdir("/proc/self/fd")) - before <= 2  # the active segment and its map
    del log
    assert len(os.listdir("/proc/self/fd")) <= before
