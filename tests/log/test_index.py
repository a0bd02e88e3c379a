"""The two indexes: lookups against brute force, and what reaches their files."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from support.log import generator

from tidelog import files
from tidelog.log.index import OffsetIndex, TimeIndex

BASE = 1000


def offset_index(path: Path, entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(str(path / "i.index"), BASE)
    for offset, position in entries:
        index.add(offset, position)
    return index


def time_index(path: Path, entries: list[tuple[int, int]]) -> TimeIndex:
    index = TimeIndex(str(path / "i.timeindex"), BASE)
    for timestamp, offset in entries:
        index.add(timestamp, offset)
    return index


def growing(rng: random.Random, start: int, count: int) -> list[int]:
    values = []
    for _ in range(count):
        start += rng.randint(1, 50)
        values.append(start)
    return values


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
@pytest.mark.parametrize("mapped", [False, True])
def test_offset_lookups(tmp_path: Path, count: int, mapped: bool) -> None:
    rng = generator("offsets", count)
    entries = list(zip(growing(rng, BASE, count), growing(rng, 0, count), strict=True))
    index = offset_index(tmp_path, entries)
    if mapped:
        index.flush()
        index = OffsetIndex(index.path, BASE)
    for offset in range(BASE - 2, BASE + 50 * count + 60):
        expected = max((position for last, position in entries if last <= offset), default=0)
        assert index.lookup(offset) == expected
    assert index.last() == (entries[-1] if entries else (BASE, 0))
    assert len(index) == count


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_time_lookups(tmp_path: Path, count: int) -> None:
    rng = generator("times", count)
    entries = list(zip(growing(rng, 0, count), growing(rng, BASE, count), strict=True))
    index = time_index(tmp_path, entries)
    for timestamp in range(-2, 50 * count + 60):
        older = [entry for entry in entries if entry[0] < timestamp]
        assert index.lookup(timestamp) == (older[-1] if older else (-1, BASE))
    assert index.last() == (entries[-1] if entries else (-1, BASE))


def test_a_time_entry_is_newer_than_the_one_before(tmp_path: Path) -> None:
    index = time_index(tmp_path, [(10, 1001), (10, 1002), (9, 1003), (11, 1004), (-1, 1005)])
    index.flush()
    assert Path(index.path).read_bytes() == struct.pack(">qiqi", 10, 1, 11, 4)


def test_truncation(tmp_path: Path) -> None:
    rng = generator("truncate")
    for _ in range(100):
        entries = list(zip(growing(rng, BASE, 8), growing(rng, 0, 8), strict=True))
        offsets = offset_index(tmp_path, entries)
        times = time_index(tmp_path, [(100 + i, entry[0]) for i, entry in enumerate(entries)])
        offset, position = rng.randrange(BASE, BASE + 400), rng.randrange(400)
        offsets.truncate(offset, position)
        times.truncate(offset)
        kept = [e for e in entries if e[0] < offset and e[1] < position]
        assert len(offsets) == len(kept)
        assert offsets.last() == (kept[-1] if kept else (BASE, 0))
        assert len(times) == sum(e[0] < offset for e in entries)


def test_a_flush_writes_what_the_file_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, int]] = []
    real = files.pwrite

    def pwrite(fd: int, data: bytes, position: int) -> int:
        written.append((len(data), position))
        return real(fd, data, position)

    monkeypatch.setattr(files, "pwrite", pwrite)
    index = offset_index(tmp_path, [(1001, 10), (1002, 20)])
    index.flush()
    index.flush()
    index.add(1003, 30)
    index.flush()
    assert written == [(16, 0), (8, 16)]
    index.truncate(1002, 100)
    index.flush()
    assert Path(index.path).read_bytes() == struct.pack(">ii", 1, 10)
    index.reset()
    index.flush()
    assert Path(index.path).read_bytes() == b""


def test_entries_go_on_after_mapping(tmp_path: Path) -> None:
    offset_index(tmp_path, [(1001, 10), (1002, 20)]).flush()
    index = OffsetIndex(str(tmp_path / "i.index"), BASE)
    assert index.lookup(1001) == 10  # mapped
    index.release()
    assert index.lookup(1002) == 20  # mapped again
    index.make_writable()
    index.add(1003, 30)
    index.release()  # what is not written yet stays
    index.flush()
    assert Path(index.path).read_bytes() == struct.pack(">iiiiii", 1, 10, 2, 20, 3, 30)


@pytest.mark.parametrize("torn", range(1, 8))
def test_a_torn_entry_is_left_out_and_written_over(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "i.index"
    path.write_bytes(struct.pack(">iiii", 1, 10, 2, 20)[: 8 + torn])
    index = OffsetIndex(str(path), BASE)
    assert len(index) == 1
    index.make_writable()
    index.flush()
    assert path.read_bytes() == struct.pack(">ii", 1, 10)


def test_a_file_that_is_missing_is_empty(tmp_path: Path) -> None:
    index = OffsetIndex(str(tmp_path / "none"), BASE)
    assert (len(index), index.lookup(5000), index.last()) == (0, 0, (BASE, 0))
