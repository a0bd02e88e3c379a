"""Recovery: whatever happened to the log files, everything before the damage is there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.log import (
    SEED,
    OnDisk,
    append,
    contents,
    generator,
    make_batch,
    open_in,
    sized_batch,
)
from support.log_damage import CONFIG, WholeLog, flip

from tidelog import files

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def whole(quick_path: Path) -> WholeLog:
    return WholeLog(quick_path / "t-0", clean=False)


@pytest.fixture
def stopped(quick_path: Path) -> WholeLog:
    return WholeLog(quick_path / "t-0", clean=True)


def holder(batches: list[OnDisk], position: int) -> OnDisk:
    """The batch that has the byte at ``position``."""
    return next(b for b in batches if b.position <= position < b.position + b.size)


def test_nothing_happened(whole: WholeLog) -> None:
    for point in (0, 1, whole.base, whole.flushed, whole.end):
        whole.restore()
        whole.check(whole.reopen(clean=False, recovery_point=point), whole.end, indexes=point == 0)


def test_cut_at_every_byte(whole: WholeLog) -> None:
    """Every byte of the last four batches, and every 7th before them."""
    data, batches = whole.files[whole.newest], whole.batches[whole.newest]
    late = batches[-4].position
    for size in [*range(0, late, 7), *range(late, len(data))]:
        whole.restore(**{whole.newest: data[:size]})
        end = holder(batches, size).base_offset
        whole.check(whole.reopen(clean=False), end, indexes=False)


def test_flip_every_byte(whole: WholeLog, caplog: pytest.LogCaptureFixture) -> None:
    """Every byte of the last four batches.  The CRC does not cover the base offset and the
    leader epoch: the first is checked against its neighbours, the second is only passed on."""
    rng = generator("flip")
    data, batches = whole.files[whole.newest], whole.batches[whole.newest]
    for at in range(batches[-4].position, len(data)):
        broken, batch = flip(rng, data, at), holder(batches, at)
        whole.restore(**{whole.newest: broken})
        caplog.clear()
        log = whole.reopen(clean=False)
        field = at - batch.position
        if 12 <= field < 16:
            assert log.end_offset == whole.end
        elif field < 8 and batch is batches[-1] and log.end_offset > whole.end:
            values = [record.value for record in contents(log)]  # a gap before the last batch
            assert values == [record.value for record in whole.records], SEED
        else:
            whole.check(log, batch.base_offset, indexes=at % 5 == 0)
            assert f"at offset {batch.base_offset}" in caplog.text


def test_garbage_in_the_middle(whole: WholeLog) -> None:
    rng = generator("garbage")
    data, batches = whole.files[whole.newest], whole.batches[whole.newest]
    for _ in range(80):
        batch = rng.choice(batches)
        start = batch.position + rng.randrange(8, 60)
        block = rng.choice((bytes(64), rng.randbytes(64), rng.randbytes(512)))
        broken = (data[:start] + block + data[start + len(block) :])[: len(data)]
        whole.restore(**{whole.newest: broken})
        whole.check(whole.reopen(clean=False), batch.base_offset)


def test_a_tail_of_zeros(whole: WholeLog) -> None:
    """A file that has its size but not its data: what a power cut leaves."""
    data, batches = whole.files[whole.newest], whole.batches[whole.newest]
    for start in range(0, len(data), 5):
        broken = data[:start] + bytes(len(data) - start + 300)
        whole.restore(**{whole.newest: broken})
        zeroed = (b for b in batches if any(data[max(start, b.position) : b.position + b.size]))
        first = next((b for b in zeroed if b.position + b.size > start), None)
        end = first.base_offset if first else whole.end
        whole.check(whole.reopen(clean=False), end, indexes=False)


def test_damage_in_an_older_segment(whole: WholeLog, caplog: pytest.LogCaptureFixture) -> None:
    """The segments after it go: their offsets would follow on nothing."""
    rng = generator("older")
    for name in list(whole.batches)[:-1]:
        batch = rng.choice(whole.batches[name])
        broken = flip(rng, whole.files[name], batch.position + rng.randrange(16, batch.size))
        whole.restore(**{name: broken})
        whole.check(whole.reopen(clean=False, recovery_point=0), batch.base_offset)
        assert "removed, it follows the damage" in caplog.text


def test_a_segment_that_reaches_into_the_next_one(
    whole: WholeLog, caplog: pytest.LogCaptureFixture
) -> None:
    """An offset is looked up in the segment with the next lower base: what lies beyond that base
    would never be found, so the log ends before it."""
    *_, older, newest = whole.batches
    last = whole.batches[older][-1]
    whole.restore(**{newest: None, f"{last.last_offset:020d}.log": whole.files[newest]})
    whole.check(whole.reopen(clean=False, recovery_point=0), last.base_offset)
    assert f"offset {last.last_offset} lies beyond the segment" in caplog.text


def test_flushed_segments_are_not_read_again(whole: WholeLog) -> None:
    """Below the recovery point nothing is checked at start, and reads say what is wrong."""
    first = next(iter(whole.batches))
    whole.restore(**{first: bytes(len(whole.files[first]))})
    log = whole.reopen(clean=False, recovery_point=whole.base)
    assert log.end_offset == whole.end
    with pytest.raises(Exception, match="is damaged at byte 0"):
        log.read(0, 1000, log.end_offset, at_least_one=True)
    later = whole.batches[whole.newest][0].base_offset
    assert contents(log, later) == [r for r in whole.records if r.offset >= later]


def test_an_empty_segment_after_a_roll(whole: WholeLog) -> None:
    whole.restore(**{f"{whole.end:020d}.log": b""})
    whole.check(whole.reopen(clean=False), whole.end)


def test_files_that_are_in_the_way(whole: WholeLog, caplog: pytest.LogCaptureFixture) -> None:
    whole.restore(
        **{
            f"{whole.end + 5:020d}.index": b"12345678",  # its log is gone
            f"{whole.end + 5:020d}.timeindex": b"123456789012",
            f"{9:020d}.log.deleted": b"gone",
            "leader-epoch-checkpoint.tmp": b"0\n",
            "notes.log": b"not a segment",
            f"{0:020d}.log.swap": b"no batch",
            "²²²²²²²²²²²²²²²²²²²².log": b"neither",
        }
    )
    whole.check(whole.reopen(clean=False), whole.end)
    left = {path.name for path in whole.directory.iterdir()}
    assert not [name for name in left if name.endswith((".deleted", ".tmp"))]
    assert f"{whole.end + 5:020d}.index" not in left
    assert "is damaged at byte 0; the old segment stays" in caplog.text
    assert f"{0:020d}.log.swap" not in left


def test_crash_after_crash(tmp_path: Path) -> None:
    """Nothing is flushed in between; each start goes on where the last one ended."""
    rng = generator("again and again")
    values: list[bytes | None] = []
    for _ in range(12):
        log = open_in(tmp_path, CONFIG, clean=False)
        assert [record.value for record in contents(log)] == values
        for _ in range(rng.randrange(6)):
            values.append(rng.randbytes(rng.randrange(300)))
            append(log, make_batch([values[-1]]))


# -- after a clean stop -------------------------------------------------------------


def test_a_clean_stop_needs_no_recovery(
    stopped: WholeLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = stopped.reopen(clean=True)
    assert log.recovery_point == stopped.end
    assert caplog.text == ""
    stopped.check(log, stopped.end, indexes=False)


def test_rot_in_the_tail_after_a_clean_stop(
    stopped: WholeLog, caplog: pytest.LogCaptureFixture
) -> None:
    rng = generator("rot")
    data, batches = stopped.files[stopped.newest], stopped.batches[stopped.newest]
    last = batches[-1]
    for at in range(last.position, len(data)):
        field = at - last.position
        if field < 8 or 12 <= field < 16:
            continue
        stopped.restore(**{stopped.newest: flip(rng, data, at)})
        caplog.clear()
        stopped.check(stopped.reopen(clean=True), last.base_offset, indexes=False)
        assert "damaged; recovering" in caplog.text


def test_a_tail_cut_off_after_a_clean_stop(stopped: WholeLog) -> None:
    data, batches = stopped.files[stopped.newest], stopped.batches[stopped.newest]
    for size in range(0, len(data), 3):
        stopped.restore(**{stopped.newest: data[:size]})
        end = holder(batches, size).base_offset
        stopped.check(stopped.reopen(clean=True), end, indexes=False)


def large_log(path: Path) -> int:
    """A log of some windows, with batches larger than one; returns the size of its file."""
    log = open_in(path)
    for size in (1000, 700_000, 80, 300_000, 1_100_000, 90):
        append(log, sized_batch(size))
    log.flush()
    return log.size


def test_batches_larger_than_the_window(quick_path: Path) -> None:
    size = large_log(quick_path)
    log = open_in(quick_path, clean=False)
    assert (log.end_offset, log.size) == (6, size)
    path = quick_path / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[1_900_000] ^= 1  # in the fifth
    path.write_bytes(data)
    assert open_in(quick_path, clean=False).end_offset == 4


@pytest.mark.parametrize("shortened", [False, True], ids=["a bad sector", "a file made shorter"])
def test_what_cannot_be_read_is_an_error(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, shortened: bool
) -> None:
    """Not a signal, and no reason to cut the log: the disk may be mended."""
    size = large_log(quick_path)
    path = quick_path / "00000000000000000000.log"
    real = files.preadv

    def preadv(fd: int, buffers: list[memoryview], position: int) -> int:
        if position > 1_000_000 and shortened:
            os.truncate(path, 900_000)
        elif position > 1_000_000:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, buffers, position)

    monkeypatch.setattr(files, "preadv", preadv)
    with pytest.raises(
        OSError, match="shorter than it was" if shortened else "at byte 1"
    ) as caught:
        open_in(quick_path, clean=False)
    assert caught.value.filename == str(path)
    assert path.stat().st_size == (900_000 if shortened else size)
