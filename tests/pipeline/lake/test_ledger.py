"""The ledger: replay, publication, and every crash that can happen in between."""

from __future__ import annotations

import contextlib
import errno
import random
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline.lake.memory_files import Crash, MemoryFiles

from tidelog.clock import FakeClock
from tidelog.pipeline.lake.files import LakeError, LocalFiles, lock
from tidelog.pipeline.lake.ledger import (
    CLEANUP,
    COMPACTION,
    FOLDER,
    LOAD,
    OWNER_PATIENCE_MS,
    SENT,
    STAGING,
    FileEntry,
    Ledger,
    Manifest,
    Overtaken,
    RangeEntry,
    State,
)
from tidelog.topic_partition import TopicPartition

PLACE = TopicPartition("t", 0)
SCHEMA = {"type": "struct", "fields": []}


def load_once(ledger: Ledger, rows: int = 3) -> State:
    """A load of the next offsets, as one file for each; a compaction now and then."""
    state = ledger.recover()
    start = state.end(PLACE) or 0
    name = f"load{state.number:04d}"
    ledger.begin(name)
    entries = []
    for offset in range(start, start + rows):
        entry = FileEntry(f"p=1/{name}-{offset}.parquet", 1, 1, (("t", 0, offset, offset, 1),))
        entries.append(entry)
        ledger.files.create(f"{STAGING}/{name}/{entry.staged}", b"%d" % offset)
    return ledger.publish(
        Manifest(
            LOAD,
            name,
            cluster="c",
            topics={"t": "id"},
            ranges=(RangeEntry("t", 0, start, start + rows, rows),),
            files=tuple(entries),
            schemas=(SCHEMA,),
            schema=SCHEMA,
        )
    )


def test_dead_letters_are_unsent_until_the_ledger_says_otherwise() -> None:
    letters = (FileEntry("x.letters", 1, 1),)
    to_topic = Manifest(LOAD, number=1, letters=letters, settings={"dead_letters": "t.dead"})
    state = State().after(to_topic).after(replace(to_topic, number=2))
    assert state.unsent == (1, 2)
    state = state.after(Manifest(SENT, number=3, sent=(1,)))
    assert state.unsent == (2,)
    in_the_lake = replace(to_topic, number=4, settings={})
    assert state.after(in_the_lake).unsent == (2,), "these are sent to no topic"


def compact(ledger: Ledger) -> State:
    """All files into one."""
    state = ledger.recover()
    name = f"compaction{state.number:04d}"
    ledger.begin(name)
    entry = FileEntry(f"p=1/{name}.parquet", sum(row.rows for row in state.files.values()), 1)
    data = b" ".join(ledger.files.read(path) for path in state.files)
    ledger.files.create(f"{STAGING}/{name}/{entry.staged}", data)
    manifest = Manifest(COMPACTION, name, files=(entry,), removed=tuple(state.files))
    return ledger.publish(replace(manifest, schemas=(SCHEMA,)))


def seen(files: MemoryFiles) -> list[int]:
    """The rows that a plain reader sees."""
    return sorted(int(row) for data in files.visible().values() for row in data.split())


def test_loads_follow_each_other() -> None:
    files = MemoryFiles()
    ledger = Ledger(files)
    load_once(ledger)
    load_once(ledger)
    compact(ledger)
    state = load_once(ledger)
    assert state.covered == {PLACE: ((0, 9),)}
    assert seen(files) == list(range(9))
    assert len(state.files) == 4
    again = Ledger(files).refresh()
    assert again == state
    assert State.decode(state.encode(), "") == state
    assert [row.kind for row in ledger.manifests()] == [LOAD, LOAD, COMPACTION, LOAD]
    assert not files.names(STAGING)


def test_snapshots_are_a_short_cut() -> None:
    files = MemoryFiles()
    ledger = Ledger(files)
    for _ in range(220):
        state = load_once(ledger, rows=1)
    snapshots = [name for name in files.names(FOLDER) if name.endswith(".snapshot.json")]
    assert [int(name.split(".")[0]) for name in snapshots] == [150, 200]
    del files.content[f"{FOLDER}/{7:020d}.json"]  # never read: the snapshot is newer
    assert Ledger(files).refresh() == state


def test_what_is_not_there_is_not_published() -> None:
    """A task wrote to a folder that only its machine has, or a file system has lost it."""
    files = MemoryFiles()
    load_once(Ledger(files))
    ledger = Ledger(files)
    ledger.recover()
    ledger.begin("load")
    with pytest.raises(LakeError, match=r"x.parquet.staged, and it is not there: nothing was"):
        ledger.publish(Manifest(LOAD, "load", files=(FileEntry("x.parquet", 1, 1),)))
    assert Ledger(files).refresh().number == 1
    assert not files.names(STAGING)


def test_a_crash_at_every_moment() -> None:
    """Whatever was done when the process died: in the end each record is there once."""
    moment = 0
    while True:
        moment += 1
        files = MemoryFiles()
        load_once(Ledger(files))
        files.changes, files.die_at = 0, moment
        crashes = 0
        for step in (load_once, compact, load_once):
            while True:
                try:
                    step(Ledger(files))
                    break
                except Crash:
                    crashes += 1
                    rows = seen(files)
                    assert len(rows) == len(set(rows)), "a plain reader sees a record twice"
                    # Some time later it may die again.
                    files.changes, files.die_at = 0, (moment * 7) % 13 or None
                    if crashes > 5:
                        files.die_at = None
        files.die_at = None
        state = Ledger(files).recover()
        end = state.end(PLACE)
        assert end is not None
        assert seen(files) == list(range(end))
        assert not files.names(STAGING)
        if not crashes:
            assert moment > 20
            return


@pytest.mark.parametrize("seed", range(200))
def test_crashes_at_random(seed: int) -> None:
    dice = random.Random(seed)
    files = MemoryFiles()
    for _ in range(30):
        files.changes, files.die_at = 0, dice.choice([None, dice.randrange(1, 30)])
        with contextlib.suppress(Crash):
            dice.choice([load_once, load_once, compact])(Ledger(files))
        rows = seen(files)
        assert len(rows) == len(set(rows))
    files.die_at = None
    end = Ledger(files).recover().end(PLACE) or 0
    assert seen(files) == list(range(end))


def test_a_reader_finishes_what_is_published() -> None:
    files = MemoryFiles()
    ledger = Ledger(files)
    load_once(ledger)
    before = files.changes
    # The manifest is the fifth change: owner, three files, manifest; the moves do not come.
    files.die_at = before + 6
    with pytest.raises(Crash):
        load_once(Ledger(files))
    assert seen(files) == [0, 1, 2]
    files.die_at = None
    reader = Ledger(files)
    assert reader.refresh().end(PLACE) == 6
    assert reader.settle_all() == []
    assert seen(files) == list(range(6))


def test_the_one_who_was_stopped_cannot_publish_after_a_cleanup() -> None:
    files = MemoryFiles()
    load_once(Ledger(files))
    stopped = Ledger(files)
    stopped.recover()
    stopped.begin("stopped")
    other = Ledger(files)
    assert other.recover().number == 2  # the cleanup
    assert [row.kind for row in other.manifests()] == [LOAD, CLEANUP]
    with pytest.raises(Overtaken, match="another load"):
        stopped.publish(Manifest(LOAD, "stopped", ranges=(RangeEntry("t", 0, 3, 6, 3),)))
    load_once(other)
    assert seen(files) == list(range(6))


def test_two_on_different_machines() -> None:
    files = MemoryFiles()
    one, two = Ledger(files), Ledger(files)
    one.recover()
    two.recover()
    one.begin("one")
    two.begin("two")
    one.publish(Manifest(LOAD, "one", ranges=(RangeEntry("t", 0, 0, 3, 3),)))
    with pytest.raises(Overtaken):
        two.publish(Manifest(LOAD, "two", ranges=(RangeEntry("t", 0, 0, 3, 3),)))


def test_a_living_load_on_another_machine_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Ledger(LocalFiles(tmp_path))
    monkeypatch.setattr("socket.gethostname", lambda: "far")
    there.begin("theirs")
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    touched = LocalFiles(tmp_path).touched_ms(f"{STAGING}/theirs/owner.json")
    clock = FakeClock(touched + 1000)
    here = Ledger(LocalFiles(tmp_path), clock)
    with pytest.raises(LakeError, match="on far is at work"):
        here.recover()
    clock.advance(OWNER_PATIENCE_MS)
    assert here.recover().number == 1
    assert not (tmp_path / STAGING / "theirs").exists()


def test_local_files(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert files.names("a") == []
    assert files.create("a/b", b"x")
    assert not files.create("a/b", b"y")
    assert files.read("a/b") == b"x"
    assert files.names("a") == ["b"]
    assert files.move("a/b", "c/d/e")
    assert not files.move("a/b", "c/d/e")
    assert files.exists("c/d/e")
    files.remove("c")
    files.remove("c")
    assert files.names("") == ["a"]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(LakeError, match=r"hard link.*use a local disk or NFS"):
        LocalFiles(tmp_path).create("x", b"")
    assert not list(tmp_path.iterdir())


def test_the_lock_is_refused_or_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lake" / FOLDER / "lock"
    refused = pytest.raises(LakeError, match=r"is at work \(process \d+ on .*--wait")
    with lock(path), refused, lock(path):
        pass
    with lock(path, wait=True):
        pass


def test_damaged_manifests_are_named(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.create(f"{FOLDER}/{1:020d}.json", b"{")
    with pytest.raises(LakeError, match=r"00000000000000000001\.json is damaged"):
        Ledger(files).refresh()
    files.remove(f"{FOLDER}/{1:020d}.json")
    files.create(f"{FOLDER}/{1:020d}.json", b'{"format": 99}')
    with pytest.raises(LakeError, match="has format 99"):
        Ledger(files).refresh()
