"""The embedded keeper behaves as ZooKeeper does, and its journal survives anything."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.log import SEED, generator
from support.log_faults import FaultyDisk

from tidelog import files
from tidelog.keeper import embedded
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import (
    BadVersion,
    Create,
    Delete,
    KeeperError,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Set,
)

Tree = dict[str, bytes]
T = TypeVar("T")


def done(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits: quicker than an event loop for each."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


class Keeper:
    """The keeper without async, which it does not need here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.real = EmbeddedKeeper.open(str(path))

    def do(self, *operations: Operation) -> None:
        done(self.real.multi(operations))

    def get(self, path: str) -> tuple[bytes, int]:
        data, stat = done(self.real.get(path))
        return data, stat.version

    def children(self, path: str) -> list[str]:
        return done(self.real.children(path))

    def tree(self) -> Tree:
        return {path: node.data for path, node in self.real._nodes.items()}

    def close(self) -> None:
        done(self.real.close())

    def reopened(self) -> Keeper:
        self.close()
        return Keeper(self.path)


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path / "journal")


def test_a_tree(keeper: Keeper) -> None:
    keeper.do(Create("/a/b/c", b"deep"))  # with its parents
    keeper.do(Create("/a/x", b"1"), Set("/a/x", b"2"), Create("/z"))
    for found in (keeper, keeper.reopened()):
        assert found.get("/a/b/c") == (b"deep", 0)
        assert found.get("/a/x") == (b"2", 1)
        assert found.children("/a") == ["b", "x"]
        assert found.children("/") == ["a", "z"]
        assert done(found.real.exists("/a/b")) is not None
        assert done(found.real.exists("/a/none")) is None
        with pytest.raises(NoNode):
            found.get("/a/none")
        with pytest.raises(NoNode):
            found.children("/none")


@pytest.mark.parametrize(
    ("operations", "error"),
    [
        ([Create("/a")], NodeExists),
        ([Create("/new"), Create("/new")], NodeExists),
        ([Set("/none", b"")], NoNode),
        ([Delete("/none")], NoNode),
        ([Delete("/a"), Set("/a", b"")], NoNode),
        ([Delete("/p")], NotEmpty),
        ([Create("/a/new"), Delete("/a")], NotEmpty),
        ([Set("/a", b"x", 7)], BadVersion),
        ([Delete("/a", 7)], BadVersion),
        ([Set("/a", b"x", 0), Set("/a", b"y", 0)], BadVersion),
        ([Create("/new"), Set("/new", b"x", 1)], BadVersion),
        ([Create("/e/child")], KeeperError),  # an ephemeral znode has no children
    ],
)
def test_all_or_nothing(keeper: Keeper, operations: list[Operation], error: type) -> None:
    keeper.do(Create("/a", b"old"), Create("/p/child"))
    keeper.do(Create("/e", ephemeral=True))
    before, size = keeper.tree(), keeper.path.stat().st_size
    with pytest.raises(error):
        keeper.do(Create("/first"), *operations)
    assert keeper.tree() == before
    assert keeper.path.stat().st_size == size
    keeper.do(Create("/first"))


def test_versions(keeper: Keeper) -> None:
    keeper.do(Create("/a"))
    keeper.do(Set("/a", b"1", 0), Set("/a", b"2", 1))
    assert keeper.get("/a") == (b"2", 2)
    keeper.do(Set("/a", b"3"))  # whatever the version
    keeper.do(Delete("/a", 3), Create("/a", b"new"))
    assert keeper.get("/a") == (b"new", 0)
    keeper.do(Create("/b"), Set("/b", b"x", 0))
    assert keeper.get("/b") == (b"x", 1)


def test_recursive_deletion(keeper: Keeper) -> None:
    keeper.do(Create("/t/a/1"), Create("/t/a/2"), Create("/t/b"), Create("/tt"))
    keeper.do(Create("/t/c"), Delete("/t", recursive=True))
    assert set(keeper.tree()) == {"/", "/tt"}
    assert set(keeper.reopened().tree()) == {"/", "/tt"}


def test_ephemeral_znodes_die_with_the_process(keeper: Keeper) -> None:
    keeper.do(Create("/brokers/ids/0", b"me", ephemeral=True), Create("/lasting"))
    keeper.do(Set("/brokers/ids/0", b"changed"))
    assert keeper.get("/brokers/ids/0") == (b"changed", 1)
    assert done(keeper.real.exists("/brokers/ids/0")).ephemeral  # type: ignore[union-attr]
    keeper.do(Create("/other", ephemeral=True))
    keeper.do(Delete("/other"), Create("/other", b"now for good"))
    again = keeper.reopened()
    assert set(again.tree()) == {"/", "/brokers", "/brokers/ids", "/lasting", "/other"}
    assert again.children("/brokers/ids") == []


def test_a_name_for_an_ephemeral_and_then_a_lasting_one(keeper: Keeper) -> None:
    keeper.do(Create("/a", ephemeral=True))
    keeper.do(Delete("/a"), Create("/a"), Create("/a/b"), Set("/a", b"1"))
    assert keeper.reopened().tree() == {"/": b"", "/a": b"1", "/a/b": b""}
    lasting = keeper.reopened()
    lasting.do(Delete("/a", recursive=True), Create("/a", ephemeral=True), Set("/a", b"2"))
    assert lasting.get("/a") == (b"2", 1)
    assert lasting.reopened().tree() == {"/": b""}


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"\xff\x00\xfe", "é漢🌊\u2028".encode(), b"\xed\xb2\x80"]
)
def test_any_bytes(keeper: Keeper, data: bytes) -> None:
    keeper.do(Create("/a/é", data))
    assert keeper.reopened().get("/a/é")[0] == data


# -- the journal --------------------------------------------------------------------


def busy(keeper: Keeper, steps: int = 25) -> list[tuple[int, Tree]]:
    """Random transactions; the journal's size and the lasting tree after each."""
    rng = generator("busy")
    history = [(0, keeper.tree())]
    names = [f"/{a}/{b}" for a in "abc" for b in "xyz"]
    for _ in range(steps):
        operations: list[Operation] = []
        for name in rng.sample(names, 2):
            data = rng.randbytes(rng.randrange(12))
            if name not in keeper.tree():
                operations.append(Create(name, data))
            else:
                operations.append(rng.choice((Set(name, data), Delete(name))))
        keeper.do(*operations)
        history.append((keeper.path.stat().st_size, keeper.tree()))
    return history


def at(history: Sequence[tuple[int, Tree]], size: int) -> Tree:
    """The tree when the journal had no more than this."""
    return [tree for end, tree in history if end <= size][-1]


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fsync", lambda fd: None)
    monkeypatch.setattr(files, "fdatasync", lambda fd: None)


@pytest.mark.usefixtures("no_sync")
def test_a_journal_torn_at_every_byte(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    history = busy(keeper, 12)
    keeper.close()
    data = keeper.path.read_bytes()
    for size in range(len(data)):
        keeper.path.write_bytes(data[:size])
        caplog.clear()
        again = Keeper(keeper.path)
        assert again.tree() == at(history, size), (SEED, size)
        whole = size in [end for end, _ in history]
        assert ("was not finished" in caplog.text) != whole
        again.do(Create("/more"))
        last = again.reopened()
        assert last.tree() == {**at(history, size), "/more": b""}
        last.close()  # a thousand open files are too many for select() in py4j


@pytest.mark.usefixtures("no_sync")
def test_a_journal_with_a_flipped_byte(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    """What follows the damage cannot be applied; it is kept aside for a person to look at."""
    history = busy(keeper)
    keeper.close()
    data = keeper.path.read_bytes()
    rng = generator("flip journal")
    for place in range(0, len(data), 3):
        broken = bytearray(data)
        broken[place] ^= 1 << rng.randrange(8)
        keeper.path.write_bytes(broken)
        caplog.clear()
        again = Keeper(keeper.path)
        assert again.tree() == at(history, place), (SEED, place)
        again.close()
        good = max(end for end, _ in history if end <= place)
        aside = keeper.path.with_name("journal.damaged")
        if place < history[-2][0]:  # not merely the last line
            assert aside.read_bytes() == bytes(broken[good:])
            assert "journal.damaged" in caplog.text
            aside.unlink()
    assert "\\u" in data.decode("ascii")


@pytest.mark.parametrize(
    "garbage", [b"\n", b"00000000 \n", b"x" * 100, b"\xff" * 50 + b"\n", bytes(200), b"ff [\n" * 3]
)
def test_garbage_at_the_end(keeper: Keeper, garbage: bytes) -> None:
    keeper.do(Create("/a"))
    keeper.close()
    with open(keeper.path, "ab") as file:
        file.write(garbage)
    again = Keeper(keeper.path)
    again.do(Create("/b"))
    assert set(again.reopened().tree()) == {"/", "/a", "/b"}


def test_compaction(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    history = busy(keeper, 60)
    before = keeper.path.stat().st_size
    monkeypatch.setattr(embedded, "_COMPACT_ABOVE", 100)
    again = keeper.reopened()
    assert again.path.stat().st_size < before / 3
    assert again.tree() == history[-1][1]
    again.do(Create("/more"))
    assert again.reopened().tree() == {**history[-1][1], "/more": b""}
    size = again.path.stat().st_size
    assert again.reopened().path.stat().st_size == size  # small already


def test_a_torn_line_that_could_not_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next write cuts it off: what comes after a damaged line is lost at the next start."""
    path = tmp_path / "journal"
    keeper = Keeper(path)
    keeper.do(Create("/a", b"1"))
    write = files.write

    def broken(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(files, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
        disk.setattr(files, "ftruncate", broken)
        with pytest.raises(KeeperError, match="cannot be written"):
            keeper.do(Create("/b", b"2"))
    keeper.do(Create("/c", b"3"))
    assert Keeper(path).tree() == keeper.tree() == {"/": b"", "/a": b"1", "/c": b"3"}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_disk_that_fails(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, call: str, half: bool
) -> None:
    keeper.do(Create("/a"))
    size = keeper.path.stat().st_size
    with monkeypatch.context() as patch:
        disk = FaultyDisk(patch)
        disk.half = half
        disk.fails = lambda n, name, target: name == call
        for _ in range(3):
            with pytest.raises(KeeperError, match="cannot be written"):
                keeper.do(Create("/b", b"data"))
    assert "/b" not in keeper.tree()
    assert keeper.path.stat().st_size == size
    keeper.do(Create("/b"))
    assert set(keeper.reopened().tree()) == {"/", "/a", "/b"}


def test_a_new_journal_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk(monkeypatch)
    synced: list[str] = []
    disk.fails = lambda n, name, target: (
        name == "fsync" and bool(synced.append(os.readlink(f"/proc/self/fd/{target}")))
    )
    Keeper(tmp_path / "journal").close()
    assert str(tmp_path) in synced  # the directory that has its name
