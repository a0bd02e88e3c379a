"""The task of a load: fetch, decode, write Parquet, and return what was written.

Runs on an executor.  Files go into the staging folder, flushed to disk, under names that no
other attempt uses; only what the driver gets as a result and publishes counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import ApiError
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.json_rows import Bad
from tidelog.pipeline.lake.layout import BY_PREFIX, Layout, Part, divide, stored_columns, too_long
from tidelog.pipeline.lake.ledger import (
    LETTERS,
    STAGING,
    FileEntry,
    RangeEntry,
    StagedFile,
)
from tidelog.pipeline.lake.options import LoadOptions
from tidelog.pipeline.lake.parquet import FileSettings, FolderFile
from tidelog.pipeline.lake.schemas import from_spark_json, whole_of
from tidelog.pipeline.lake.values import ValueDecoder
from tidelog.pipeline.loss import Unreadable
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import COLUMNS, HEADERS, Columns, OffsetRange, union
from tidelog.pipeline.reading import read_range
from tidelog.pipeline.schema import TYPES
from tidelog.topic_partition import TopicPartition

# When Spark has records between: which range of its task a row is of, and what its value holds.
RANGE, VALUES = "__range", "__values"

_MOST_BUFFERED = 256 << 20
_MOST_OPEN = 200
_PROGRESS_SECONDS = 0.5
LETTER_SCHEMA = pa.schema(
    [
        *(pa.field(name, TYPES[name]) for name in (*COLUMNS, HEADERS)),
        pa.field("reason", pa.string()),
        pa.field("load", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class WriteJob:
    """All that the tasks of a load need to know, but their ranges.  Travels to executors."""

    client: ClientOptions
    options: LoadOptions
    layout: Layout
    parts: tuple[Part, ...]  # of the layout
    load: str  # the staging folder
    started_ms: int
    schema: Any = None  # of the destination, or the user's, as Spark writes it

    @property
    def staging(self) -> Path:
        return self.options.root / STAGING / self.load

    @property
    def stamp(self) -> str:
        """How names of files begin."""
        started = time.gmtime(self.started_ms / 1000)
        return f"{time.strftime('%Y%m%dT%H%M%S', started)}-{self.load[:8]}"

    def columns(self) -> Columns:
        """What is fetched: headers also where a letter may need them."""
        may_be_bad = self.layout.value != "bytes" or any(
            part.function is None for part in self.parts
        )
        letters = may_be_bad and self.options.errors == "dead-letter"
        return Columns((*COLUMNS, HEADERS) if self.layout.headers or letters else COLUMNS)

    def decoder(self, *, fixed: bool = False) -> ValueDecoder:
        """``fixed``: its fields do not grow; nor do those of a schema of the user's."""
        layout = self.layout
        decoder = ValueDecoder(
            layout.value,
            fixed=fixed or layout.schema is not None,
            taken=frozenset(part.name.lower() for part in self.parts),
            separator=layout.separator,
        )
        if self.schema is not None and layout.has_fields:
            decoder.known(from_spark_json(self.schema), whole_of(self.schema))
        return decoder

    def file_settings(self, target_bytes: int) -> FileSettings:
        return FileSettings(self.staging, target_bytes, self.options.compression, self.layout.value)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task did, for the driver; with an ``error`` that a retry would not help, nothing."""

    task: int
    ranges: tuple[RangeEntry, ...] = ()
    files: tuple[StagedFile, ...] = ()
    letters: tuple[FileEntry, ...] = ()
    whole: tuple[str, ...] = ()  # columns with whole numbers beyond 2**53
    error: str | None = None


# -- the task -----------------------------------------------------------------------


def write_task(job: WriteJob, task: int, ranges: tuple[OffsetRange, ...]) -> TaskResult:
    """Read these ranges and write them."""
    return _run(job, task, ranges, lambda writer: _read_all(job, ranges, writer))


def write_rows(
    job: WriteJob, task: int, ranges: tuple[OffsetRange, ...], batches: Iterable[pa.RecordBatch]
) -> TaskResult:
    """Write what has come through Spark, with the folders that it worked out."""

    def copy(writer: _Writer) -> None:
        for batch in batches:
            for index, rows in _by_range(batch):
                names = [name for name in rows.schema.names if name.startswith(BY_PREFIX)]
                writer.add(ranges[index], rows.select(job.columns().names), rows.select(names))
            writer.progress()

    return _run(job, task, ranges, copy)


def _run(
    job: WriteJob,
    task: int,
    ranges: tuple[OffsetRange, ...],
    work: Callable[[_Writer], None],
) -> TaskResult:
    if not job.staging.is_dir():
        raise LakeError(
            f"{job.options.root} is not there on {os.uname().nodename}, or its load has been given "
            "up: the destination must be on a file system that all executors share"
        )
    writer = _Writer(job, task, ranges)
    try:
        work(writer)
        result = writer.finish()
    except ApiError as error:
        writer.discard()
        # Raised, it would make Spark run the task again, which would not help: so it is a result.
        result = TaskResult(task, error=str(error))
    writer.progress(result)
    return result


def read_task(
    job: WriteJob, task: int, ranges: tuple[OffsetRange, ...]
) -> Iterator[pa.RecordBatch]:
    """The records as they are, for Spark to work on; losses are written to the staging folder."""

    def lose(error: Unreadable) -> None:
        lost = error.lost
        with (job.staging / f"{task}.lost").open("a") as file:
            file.write(json.dumps([lost.topic, lost.partition, lost.start, lost.end]) + "\n")

    decoder = job.decoder(fixed=True)
    try:
        for index, part in enumerate(ranges):
            for batch in _read(job, part, lose):
                yield _for_spark(batch, index, decoder)
    except ApiError as error:
        # A retry by Spark would not help: the driver ends the job when it sees this.
        report = {"rows": 0, "done": False, "error": str(error)}
        (job.staging / f"{task}.reading.progress").write_text(json.dumps(report))
        raise


def raw_schema(job: WriteJob) -> pa.Schema:
    """What :func:`read_task` gives: the record, and as ``VALUES`` the columns of its value."""
    fields = [pa.field(name, TYPES[name]) for name in job.columns().names]
    decoder = job.decoder()
    if decoder.kind in ("json", "csv"):
        columns = [pa.field(decoder.column_name(row.name), row.type) for row in decoder.fields]
        fields.append(pa.field(VALUES, pa.struct(columns)))
    return pa.schema([*fields, pa.field(RANGE, pa.int32())])


def _for_spark(batch: pa.RecordBatch, index: int, decoder: ValueDecoder) -> pa.RecordBatch:
    count = batch.num_rows
    if decoder.kind in ("json", "csv"):
        decoded = decoder.decode(batch)
        names = [decoder.column_name(row.name) for row in decoder.fields]
        values = decoded.batch.select(names).to_struct_array()
        if decoded.good is not None:  # what does not decode has null in all columns
            tps = np.full(count, -1)
            tps[decoded.good.to_numpy()] = np.arange(len(decoded.good))
            values = values.take(pa.array(tps, mask=tps < 0))
        batch = batch.append_column(VALUES, values)
    return batch.append_column(RANGE, pa.array([index] * count, pa.int32()))


def read_lost(staging: Path) -> dict[TopicPartition, list[tuple[int, int]]]:
    """The losses that :func:`read_task` wrote."""
    result: dict[TopicPartition, list[tuple[int, int]]] = {}
    for path in staging.glob("*.lost"):
        for line in path.read_text().splitlines():
            topic, partition, start, end = json.loads(line)
            result.setdefault(TopicPartition(topic, partition), []).append((start, end))
    return result


def _read_all(job: WriteJob, ranges: tuple[OffsetRange, ...], writer: _Writer) -> None:
    for part in ranges:
        account = writer.accounts[part]

        def lose(error: Unreadable, account: _Account = account) -> None:
            account.lost.append((error.lost.start, error.lost.end))

        for batch in _read(job, part, lose):
            writer.add(part, batch)
            writer.progress()


def _read(
    job: WriteJob, part: OffsetRange, lose: Callable[[Unreadable], None]
) -> Iterator[pa.RecordBatch]:
    """The records of a range; what may be skipped goes to ``lose``."""
    return read_range(
        job.client,
        part,
        job.columns(),
        on_loss=lose if job.options.on_loss == "skip" else None,
        on_corrupt=lose if job.options.on_corrupt == "skip" else None,
    )


def _by_range(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Spark may put the end of one range and the start of the next into one batch."""
    indexes = batch.column(RANGE)
    for index in pc.unique(indexes).to_pylist():
        yield index, batch.filter(pc.equal(indexes, index))


# -- writing --------------------------------------------------------------------------


@dataclass(slots=True)
class _Account:
    """What became of one range."""

    rows: int = 0
    dead: int = 0
    skipped: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)


class _Writer:
    """Rows into files, one at a time for each folder."""

    def __init__(self, job: WriteJob, task: int, ranges: tuple[OffsetRange, ...]) -> None:
        self.accounts = {part: _Account() for part in ranges}
        self._job = job
        self._task = task
        self._decoder = job.decoder()
        self._dropped = stored_columns(job.parts)
        self._name = f"{job.stamp}-{task:05d}-{uuid.uuid4().hex[:8]}"
        self._count = 0
        self._open: dict[str, FolderFile] = {}
        self._done: list[StagedFile] = []
        self._done_letters: list[StagedFile] = []
        self._files = job.file_settings(job.options.target_bytes)
        self._letters = FolderFile(
            self._files, LETTERS, lambda: self._new_name(".letters"), self._done_letters
        )
        self._rows = 0
        self._bad = 0
        self._next_progress = 0.0

    def add(
        self, part: OffsetRange, batch: pa.RecordBatch, given: pa.RecordBatch | None = None
    ) -> None:
        """Rows of one range, in the order of offsets."""
        account = self.accounts[part]
        decoded = self._decoder.decode(batch)
        if decoded.bad:
            self._take_bad(part, account, batch, decoded.bad)
            if given is not None:
                given = given.take(decoded.good)
        good = decoded.batch
        self._rows += batch.num_rows
        if not self._job.layout.headers and HEADERS in good.schema.names:
            good = good.drop_columns(HEADERS)
        for folder, rows in divide(self._job.parts, good, given):
            if too_long(folder):
                wrong = np.flatnonzero(np.isin(batch["offset"], rows["offset"])).tolist()
                reason = f"the name of its folder would be too long: {folder[:40]}..."
                self._take_bad(part, account, batch, [(row, reason) for row in wrong])
            elif rows.num_rows:
                account.rows += rows.num_rows
                self._file(folder).add(self._stored(rows), part)
        while sum(file.buffered for file in self._open.values()) > _MOST_BUFFERED:
            max(self._open.values(), key=lambda file: file.buffered).flush()

    def _file(self, folder: str) -> FolderFile:
        """The file of a folder; the one that was used last is the last in the table."""
        file = self._open.pop(folder, None)
        if file is None:
            file = FolderFile(self._files, folder, lambda: self._new_name(".parquet"), self._done)
            if len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
        self._open[folder] = file
        return file

    def _take_bad(
        self, part: OffsetRange, account: _Account, batch: pa.RecordBatch, bad: list[Bad]
    ) -> None:
        row, reason = bad[0]
        offset = batch.column("offset")[row].as_py()
        where = f"{part.tp}@{offset}: {reason}"
        self._bad += len(bad)
        if self._job.options.errors == "fail":
            raise LakeError(f"{where}; --errors dead-letter would put such records aside")
        most = self._job.options.max_errors
        if most is not None and self._bad > most:
            raise LakeError(too_many(self._bad, most, where))
        if self._job.options.errors == "skip":
            account.skipped += len(bad)
            return
        account.dead += len(bad)
        rows = batch.take(pa.array([row for row, _ in bad], pa.int64()))
        reasons = pa.array([reason for _, reason in bad], pa.string())
        rows = rows.append_column("reason", reasons)
        rows = rows.append_column("load", pa.array([self._job.load] * len(reasons), pa.string()))
        self._letters.add(rows.cast(LETTER_SCHEMA), part)

    def _stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without what the folder's name holds."""
        dropped = [name for name in rows.schema.names if name in self._dropped]
        return rows.drop_columns(dropped) if dropped else rows

    def _new_name(self, suffix: str) -> str:
        self._count += 1
        return f"{self._name}-{self._count - 1}{suffix}"

    # -- the end --

    def finish(self) -> TaskResult:
        for file in (*self._open.values(), self._letters):
            file.close()
        ranges = (
            RangeEntry(
                *part.tp,
                part.start,
                part.end,
                account.rows,
                account.dead,
                account.skipped,
                union(account.lost),
            )
            for part, account in self.accounts.items()
        )
        return TaskResult(
            self._task,
            tuple(ranges),
            tuple(self._done),
            tuple(file.entry for file in self._done_letters),
            tuple(self._decoder.whole_columns()),
        )

    def discard(self) -> None:
        for file in (*self._open.values(), self._letters):
            file.abandon()

    def progress(self, result: TaskResult | None = None) -> None:
        """Report to the driver, through the folder that we share, how far we are."""
        now = time.monotonic()
        if result is None and now < self._next_progress:
            return
        self._next_progress = now + _PROGRESS_SECONDS
        report: dict[str, Any] = {"rows": self._rows, "done": result is not None}
        report |= {"error": result.error} if result and result.error else {}
        with contextlib.suppress(OSError):  # the load was given up: the next file will fail
            (self._job.staging / f"{self._task}.progress").write_text(json.dumps(report))


def too_many(bad: int, most: int, where: str) -> str:
    return f"{bad} records do not decode, and --max-errors is {most}; the first is {where}"
