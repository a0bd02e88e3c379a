"""The ledger: which offsets a destination holds, and in which files.  I/O only through ``Files``.

The format
----------
A destination is a folder of plain Parquet files with the folder ``_tidelog`` beside them.  All
readers of such folders pass over names that begin with an underscore.

    DIR/date=2026-01-01/20260101T120000-1f2e3d4c-00000-0.parquet      data, any depth of folders
    DIR/_tidelog/00000000000000000001.json            manifests, from 1, without a gap
    DIR/_tidelog/00000000000000000050.snapshot.json   the state after manifest 50: a short cut;
                                                      the last two are kept
    DIR/_tidelog/staging/<load>/owner.json            a load that is under way, or that died
    DIR/_tidelog/staging/<load>/<name>.staged         its files, until they are published
    DIR/_tidelog/dead_letters/<name>.letters          records that did not decode (Parquet)
    DIR/_tidelog/lock                                 locked while a load runs (flock)

A manifest is one JSON object that is written once and never changed:

    format      1
    number      its own, as in its name
    kind        load | compaction | cleanup | letters
    load        the name of its staging folder
    cluster     the cluster's id                          topics   {name: topic id}
    ranges      what was read: [{topic, partition, start, end, rows, dead, skipped, lost}].
                ``end`` is exclusive.  ``rows`` are in files, ``dead`` in letters, ``skipped``
                nowhere; ``lost`` are spans that the topic no longer had or that were corrupt.
                Offsets beyond these were no records: holes of compaction and transactions.
    begins      partitions that had no records yet: [[topic, partition, offset]].  What comes
                from there on and is deleted before the next load is lost
    files       what was added: [{path, rows, bytes, schema, parts}], ``schema`` an index into
                ``schemas``, ``parts`` [[topic, partition, first, last, rows]]
    letters     the same for dead letters
    removed     paths that are no longer part of the destination (compaction; a load in which a
                column got a wider type)
    schemas     the schemas of ``files``, as Spark writes a schema in JSON
    schema      the schema of the whole destination from now on; its ``whole`` are the columns
                that hold whole numbers beyond 2**53, and therefore never become doubles
    settings    of the load: ``layout`` holds what all loads of a destination share
    query       {id, batch} of a continuous load
    sent        numbers of manifests whose letters are now in the dead-letter topic
    cleaned     staging folders that this manifest declares dead (cleanup)
    started_ms, time_ms, host

How a load is published
-----------------------
1.  Tasks write ``.staged`` files into the staging folder and flush them to disk.
2.  The driver creates manifest N + 1, where N was the last one when the load was planned.
    *This is the moment of publication*: files and offsets, all or nothing.  If N + 1 is taken,
    another load was quicker, and this one has happened not at all.
3.  The files in ``removed`` are deleted, the staged files are renamed to their paths, and the
    staging folder goes.

A crash before 2 leaves a staging folder that no manifest names: the next load declares it dead
with a ``cleanup`` manifest, which takes number N + 1 away from a process that may still be at it
(it was only stopped, on this machine or another), and then deletes it.  A crash in 3
leaves a staging folder whose manifest is there: the next load, or a reader through the ledger,
does the rest of 3.  Each part of 3 may be done twice, and by two at once.

What a plain reader (pandas, DuckDB, pyarrow, Spark) can see
-------------------------------------------------------------
Never a record twice, never a record of a load that was not published.  While 3 is under way,
which is milliseconds, it may see some of the files of the load and not yet the others; of a
compaction, that the small files are gone and the large one is not yet there (and so of a load
that gives a column another type).  If the process
dies within these milliseconds, it stays so until the next load or ``read_lake``.  A reader
through the ledger sees all of a load or nothing of it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tidelog.clock import Clock, SystemClock
from tidelog.pipeline.lake.files import Files, LakeError, LocalFiles
from tidelog.pipeline.ranges import Span, Spans, spans_text, union
from tidelog.topic_partition import TopicPartition

FORMAT = 1
FOLDER = "_tidelog"
STAGING = f"{FOLDER}/staging"
LETTERS = f"{FOLDER}/dead_letters"
LOCK = f"{FOLDER}/lock"
_SNAPSHOT, _SNAPSHOT_EVERY = ".snapshot.json", 50
# A load on another machine shows that it lives by touching its owner file.
OWNER_PATIENCE_MS = 10 * 60_000

LOAD, COMPACTION, CLEANUP, SENT = "load", "compaction", "cleanup", "letters"


class Overtaken(LakeError):
    """Another load published first; nothing of this one is there."""


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """What became of the offsets from ``start`` up to ``end``."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    dead: int = 0
    skipped: int = 0
    lost: Spans = ()

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def lost_texts(rows: Iterable[RangeEntry]) -> list[str]:
    """What is lost, for people: ``topic-0: offsets 3 to 7``."""
    lost: dict[TopicPartition, list[Span]] = {}
    for row in rows:
        if row.lost:
            lost.setdefault(row.tp, []).extend(row.lost)
    return [f"{tp}: offsets {spans_text(union(spans), limit=1000)}" for tp, spans in lost.items()]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file and the records in it; ``parts`` are (topic, partition, first, last, rows)."""

    path: str
    rows: int
    bytes: int
    parts: tuple[tuple[str, int, int, int, int], ...] = ()
    schema: int = 0

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def staged(self) -> str:
        """Its name in the staging folder: the last part of a path is never used twice."""
        return self.path.rpartition("/")[2] + ".staged"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a task has written into the staging folder, and its own schema."""

    entry: FileEntry
    schema: Any  # as Spark writes a schema in JSON


def with_schemas(files: Sequence[StagedFile]) -> dict[str, Any]:
    """``files`` and ``schemas`` of a manifest: each schema is written once."""
    schemas: list[Any] = []
    for file in files:
        if file.schema not in schemas:
            schemas.append(file.schema)
    entries = (replace(file.entry, schema=schemas.index(file.schema)) for file in files)
    return {"files": tuple(entries), "schemas": tuple(schemas)}


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module."""

    kind: str
    load: str = ""
    number: int = 0
    cluster: str | None = None
    topics: dict[str, str] = field(default_factory=dict)
    ranges: tuple[RangeEntry, ...] = ()
    begins: tuple[tuple[str, int, int], ...] = ()
    files: tuple[FileEntry, ...] = ()
    letters: tuple[FileEntry, ...] = ()
    removed: tuple[str, ...] = ()
    schemas: tuple[Any, ...] = ()
    schema: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] | None = None
    sent: tuple[int, ...] = ()
    cleaned: tuple[str, ...] = ()
    started_ms: int = 0
    time_ms: int = 0
    host: str = ""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.ranges)

    def encode(self) -> bytes:
        fields = {name: value for name, value in asdict(self).items() if value or name == "number"}
        return json.dumps({"format": FORMAT} | fields, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> Manifest:
        found = _read_json(data, name)
        found["ranges"] = tuple(
            RangeEntry(**row | {"lost": _pairs(row["lost"])}) for row in found.get("ranges", ())
        )
        for key in ("files", "letters"):
            found[key] = tuple(_file(row) for row in found.get(key, ()))
        for key in ("removed", "schemas", "sent", "cleaned"):
            found[key] = tuple(found.get(key, ()))
        found["begins"] = tuple(tuple(row) for row in found.get("begins", ()))
        return cls(**found)


@dataclass(frozen=True, slots=True)
class State:
    """What the destination holds after manifest ``number``: the replay of all up to it."""

    number: int = 0
    cluster: str | None = None
    topics: dict[str, str] = field(default_factory=dict)
    covered: dict[TopicPartition, Spans] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    letters: dict[str, FileEntry] = field(default_factory=dict)
    schemas: tuple[Any, ...] = ()
    schema: Any = None
    layout: dict[str, Any] = field(default_factory=dict)
    queries: dict[str, int] = field(default_factory=dict)  # the last batch of each
    unsent: tuple[int, ...] = ()  # manifests with letters that their topic has not yet
    rows: int = 0
    begins: dict[TopicPartition, int] = field(default_factory=dict)

    def end(self, tp: TopicPartition) -> int | None:
        """From where the next load goes on; None if it begins where the log does."""
        spans = self.covered.get(tp)
        if spans:
            return spans[-1][1]
        if tp not in self.begins and any(row.topic == tp.topic for row in self.covered):
            return 0  # the partition was added since
        return self.begins.get(tp)

    def after(self, manifest: Manifest) -> State:
        """The next state.  The only place where a manifest gets its meaning."""
        covered = dict(self.covered)
        for row in manifest.ranges:
            covered[row.tp] = union([*covered.get(row.tp, ()), (row.start, row.end)])
        schemas = list(self.schemas)
        files = dict(self.files)
        for path in manifest.removed:
            files.pop(path, None)
        for entry in manifest.files:
            schema = manifest.schemas[entry.schema]
            if schema not in schemas:
                schemas.append(schema)
            files[entry.path] = replace(entry, schema=schemas.index(schema))
        queries = dict(self.queries)
        if manifest.query:
            queries[manifest.query["id"]] = manifest.query["batch"]
        unsent = [number for number in self.unsent if number not in manifest.sent]
        if manifest.letters and manifest.settings.get("dead_letters"):
            unsent.append(manifest.number)
        return State(
            manifest.number,
            self.cluster or manifest.cluster,
            self.topics | manifest.topics,
            covered,
            files,
            self.letters | {entry.path: entry for entry in manifest.letters},
            tuple(schemas),
            manifest.schema or self.schema,
            self.layout or manifest.settings.get("layout", {}),
            queries,
            tuple(unsent),
            self.rows + manifest.rows,
            self.begins
            | {TopicPartition(topic, number): at for topic, number, at in manifest.begins},
        )

    def encode(self) -> bytes:
        fields = asdict(self)
        fields["covered"] = [[*tp, spans] for tp, spans in self.covered.items()]
        fields["begins"] = [[*tp, at] for tp, at in self.begins.items()]
        for key in ("files", "letters"):
            fields[key] = list(fields[key].values())
        return json.dumps({"format": FORMAT} | fields, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> State:
        found = _read_json(data, name)
        found["covered"] = {
            TopicPartition(topic, partition): _pairs(spans)
            for topic, partition, spans in found["covered"]
        }
        found["begins"] = {
            TopicPartition(topic, number): at for topic, number, at in found.get("begins", ())
        }
        for key in ("files", "letters"):
            found[key] = {row["path"]: _file(row) for row in found[key]}
        for key in ("schemas", "unsent"):
            found[key] = tuple(found[key])
        return cls(**found)


# -- the ledger -------------------------------------------------------------------


class Ledger:
    """The manifests of one destination; ``state`` is what was read or published last."""

    def __init__(self, files: Files, clock: Clock | None = None) -> None:
        self.files = files
        self.state = State()
        self._clock = clock or SystemClock()

    def refresh(self) -> State:
        """Replay what has been published since; from the newest snapshot at first."""
        if self.state.number == 0:
            names = self.files.names(FOLDER)
            for name in reversed([row for row in names if row.endswith(_SNAPSHOT)]):
                self.state = State.decode(self.files.read(f"{FOLDER}/{name}"), name)
                break
        while (manifest := self.manifest(self.state.number + 1)) is not None:
            self.state = self.state.after(manifest)
        return self.state

    def manifest(self, number: int) -> Manifest | None:
        """One manifest; None if there is none of that number."""
        name = _name(number)
        if not self.files.exists(name):
            return None
        return Manifest.decode(self.files.read(name), name)

    def manifests(self) -> Iterator[Manifest]:
        """All of them, from the first."""
        number = 1
        while (manifest := self.manifest(number)) is not None:
            yield manifest
            number += 1

    def newest(self) -> Iterator[Manifest]:
        """All of them, from the last that was read."""
        for number in range(self.state.number, 0, -1):
            manifest = self.manifest(number)
            assert manifest is not None
            yield manifest

    # -- writing ------------------------------------------------------------------

    def begin(self, load: str) -> None:
        """Create the staging folder of a load that is planned on the state as it is."""
        owner = {
            "after": self.state.number,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_ms": self._clock.now_ms(),
        }
        self.files.create(f"{STAGING}/{load}/owner.json", json.dumps(owner).encode())

    def still_alive(self, load: str) -> None:
        """For loads on other machines, who cannot see our lock."""
        self.files.touch(f"{STAGING}/{load}/owner.json")

    def publish(self, manifest: Manifest) -> State:
        """Make a manifest true, and then the folder like it; ``Overtaken`` if another was first."""
        for entry in (*manifest.files, *manifest.letters):
            if not self.files.exists(f"{STAGING}/{manifest.load}/{entry.staged}"):
                self.abandon(manifest.load)
                raise LakeError(
                    f"a task has written {entry.staged}, and it is not there: nothing was "
                    "published; is the destination on a file system that all executors share?"
                )
        state = self._create(manifest)
        self._settle(replace(manifest, number=state.number))
        return state

    def abandon(self, load: str) -> None:
        """Our own load has failed: its files go."""
        if load:
            self.files.remove(f"{STAGING}/{load}")

    def _create(self, manifest: Manifest) -> State:
        manifest = replace(
            manifest,
            number=self.state.number + 1,
            time_ms=self._clock.now_ms(),
            host=socket.gethostname(),
        )
        if not self.files.create(_name(manifest.number), manifest.encode()):
            # A network file system may repeat a request that had succeeded: then it is ours.
            there = self.manifest(manifest.number)
            if there is None or not manifest.load or there.load != manifest.load:
                self.abandon(manifest.load)
                raise Overtaken(
                    "another load into this destination published before this one could: nothing "
                    "of this one was kept; run it again"
                )
        self.state = self.state.after(manifest)
        if manifest.number % _SNAPSHOT_EVERY == 0:
            self.files.create(_name(manifest.number, _SNAPSHOT), self.state.encode())
            # Each holds all files: kept for ever, they would outgrow the data.  One stays for
            # those who are just about to read it.
            self.files.remove(_name(manifest.number - 2 * _SNAPSHOT_EVERY, _SNAPSHOT))
        return self.state

    def _settle(self, manifest: Manifest) -> None:
        for path in manifest.removed:
            self.files.remove(path)
        staging = f"{STAGING}/{manifest.load}"
        for entry in (*manifest.files, *manifest.letters):
            self.files.move(f"{staging}/{entry.staged}", entry.path)
        for load in (manifest.load, *manifest.cleaned):
            if load:
                self.files.remove(f"{STAGING}/{load}")

    # -- after a crash --------------------------------------------------------------

    def settle_all(self) -> list[str]:
        """Finish what published loads left undone; returns the loads that were not published."""
        orphans = []
        for load in self.files.names(STAGING):
            owner = self._owner(load)
            manifest = self.manifest(owner["after"] + 1) if owner else None
            if manifest is not None and manifest.load == load:
                self._settle(manifest)
            else:
                orphans.append(load)
        return orphans

    def recover(self) -> State:
        """Before a load, with the lock held: finish what is published, remove what is not."""
        self.refresh()
        orphans = self.settle_all()
        for load in orphans:
            self._check_dead(load)
        if orphans:
            self.publish(Manifest(CLEANUP, cleaned=tuple(orphans)))
        for name in self.files.names(FOLDER):
            if name.startswith("."):  # a draft of a manifest, by one who died over it
                self.files.remove(f"{FOLDER}/{name}")
        return self.state

    def _owner(self, load: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self.files.read(f"{STAGING}/{load}/owner.json"))
        except (OSError, ValueError):
            return None
        return found

    def _check_dead(self, load: str) -> None:
        """We hold this machine's lock; only a load on another machine can be alive."""
        owner = self._owner(load)
        if owner is None or owner["host"] == socket.gethostname():
            return
        silent = self._clock.now_ms() - self.files.touched_ms(f"{STAGING}/{load}/owner.json")
        if silent < OWNER_PATIENCE_MS:
            raise LakeError(
                f"process {owner['pid']} on {owner['host']} is at work on a load into this "
                f"destination: let it finish; if it died, try again in "
                f"{(OWNER_PATIENCE_MS - silent) // 60_000 + 1} minutes"
            )


def open_ledger(to: str | Path) -> Ledger:
    """The ledger of a destination that is there."""
    root = Path(to)
    ledger = Ledger(LocalFiles(root))
    if not root.is_dir():
        raise LakeError(f"{to}: there is no such directory")
    if ledger.refresh().number == 0:
        raise LakeError(f"{to}: nothing was loaded into this directory: it has no ledger")
    return ledger


def _name(number: int, suffix: str = ".json") -> str:
    return f"{FOLDER}/{number:020d}{suffix}"


def _read_json(data: bytes, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(data)
        version = found.pop("format")
    except (ValueError, KeyError, AttributeError) as error:
        raise LakeError(f"{name} is damaged: {error}") from error
    if version != FORMAT:
        raise LakeError(
            f"{name} has format {version!r}, and this tidelog knows {FORMAT}: use a newer tidelog"
        )
    return found


def _file(row: dict[str, Any]) -> FileEntry:
    return FileEntry(**row | {"parts": tuple(tuple(part) for part in row["parts"])})


def _pairs(rows: Any) -> Spans:
    return tuple((start, end) for start, end in rows)
