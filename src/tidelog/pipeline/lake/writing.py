"""What a task of a load does: fetch, decode, write Parquet, and tell what it did.

Runs on an executor.  Files go into the staging folder, flushed to disk, under names that no
other attempt uses; only what the driver hears of and publishes counts.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import ApiError
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.json_rows import Bad
from tidelog.pipeline.lake.layout import BY_PREFIX, Part, divide, stored_columns, too_long
from tidelog.pipeline.lake.ledger import LETTERS, STAGING
from tidelog.pipeline.lake.parquet import FileSettings, FolderFile
from tidelog.pipeline.lake.schemas import from_spark_json, whole_of
from tidelog.pipeline.lake.values import Decoder
from tidelog.pipeline.loss import Unreadable
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import COLUMNS, HEADERS, Columns, OffsetRange
from tidelog.pipeline.reading import POLL_TIMEOUT, read_range
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
    """All that a task needs to know but its ranges."""

    client: ClientOptions
    root: str
    load: str  # the staging folder
    stamp: str  # how names of files begin
    parts: tuple[Part, ...] = ()
    value: str = "bytes"
    schema: Any = None  # of the destination, as Spark writes it
    fixed: bool = False  # the schema is the user's and does not grow
    separator: str = ","
    headers: bool = False
    compression: str = "snappy"
    target_bytes: int = 128 << 20
    errors: str = "dead-letter"
    max_errors: int | None = None
    skip_lost: bool = False
    skip_corrupt: bool = False
    patience: float = POLL_TIMEOUT

    @property
    def staging(self) -> Path:
        return Path(self.root) / STAGING / self.load

    def columns(self) -> Columns:
        """What is fetched: headers also where a letter may need them."""
        may_be_bad = self.value != "bytes" or any(part.function is None for part in self.parts)
        letters = may_be_bad and self.errors == "dead-letter"
        return Columns((*COLUMNS, HEADERS) if self.headers or letters else COLUMNS)

    def decoder(self) -> Decoder:
        taken = frozenset(part.name.lower() for part in self.parts)
        decoder = Decoder(self.value, fixed=self.fixed, taken=taken, separator=self.separator)
        if self.schema is not None and self.value in ("json", "csv"):
            decoder.known(from_spark_json(self.schema), whole_of(self.schema))
        return decoder


# -- the task -----------------------------------------------------------------------


def write_task(job: WriteJob, task: int, ranges: tuple[OffsetRange, ...]) -> dict[str, Any]:
    """Read these ranges and write them; what cannot be helped by trying again is told."""
    return _told(job, task, ranges, lambda writer: _read_all(job, ranges, writer))


def write_rows(
    job: WriteJob, task: int, ranges: tuple[OffsetRange, ...], batches: Iterable[pa.RecordBatch]
) -> dict[str, Any]:
    """Write what has come through Spark, with the folders that it worked out."""

    def copy(writer: _Writer) -> None:
        for batch in batches:
            for index, rows in _by_range(batch):
                names = [name for name in rows.schema.names if name.startswith(BY_PREFIX)]
                writer.add(ranges[index], rows.select(job.columns().names), rows.select(names))
            writer.progress()

    return _told(job, task, ranges, copy)


def _told(job: WriteJob, task: int, ranges: tuple[OffsetRange, ...], work: Any) -> dict[str, Any]:
    if not job.staging.is_dir():
        raise LakeError(
            f"{job.root} is not there on {os.uname().nodename}, or its load has been given up: "
            "the destination must be on a file system that all executors share"
        )
    writer = _Writer(job, task, ranges)
    try:
        work(writer)
        result = writer.finish()
    except ApiError as error:
        writer.discard()
        # Trying again would not help, and Spark would: so it is a result.
        result = {"task": task, "error": str(error)}
    writer.progress(result)
    return result


def read_task(
    job: WriteJob, task: int, ranges: tuple[OffsetRange, ...]
) -> Iterator[pa.RecordBatch]:
    """The records as they are, for Spark to work on; losses are noted in the staging folder."""

    def lose(error: Unreadable) -> None:
        lost = error.lost
        with (job.staging / f"{task}.lost").open("a") as file:
            file.write(json.dumps([lost.topic, lost.partition, lost.start, lost.end]) + "\n")

    decoder = replace(job, fixed=True).decoder()
    try:
        for index, part in enumerate(ranges):
            for batch in _read(job, part, lose):
                yield _for_spark(batch, index, decoder)
    except ApiError as error:
        # Trying again would not help, and Spark would: the driver ends the job when it sees this.
        told = {"rows": 0, "done": False, "error": str(error)}
        (job.staging / f"{task}.reading.progress").write_text(json.dumps(told))
        raise


def raw_schema(job: WriteJob) -> pa.Schema:
    """What :func:`read_task` gives: the record, and as ``VALUES`` the columns of its value."""
    fields = [pa.field(name, TYPES[name]) for name in job.columns().names]
    decoder = job.decoder()
    if decoder.kind in ("json", "csv"):
        columns = [pa.field(decoder.column_name(row.name), row.type) for row in decoder.fields]
        fields.append(pa.field(VALUES, pa.struct(columns)))
    return pa.schema([*fields, pa.field(RANGE, pa.int32())])


def _for_spark(batch: pa.RecordBatch, index: int, decoder: Decoder) -> pa.RecordBatch:
    count = batch.num_rows
    if decoder.kind in ("json", "csv"):
        decoded = decoder.decode(batch)
        names = [decoder.column_name(row.name) for row in decoder.fields]
        values = decoded.batch.select(names).to_struct_array()
        if decoded.good is not None:  # what does not decode has null in all columns
            places = np.full(count, -1)
            places[decoded.good.to_numpy()] = np.arange(len(decoded.good))
            values = values.take(pa.array(places, mask=places < 0))
        batch = batch.append_column(VALUES, values)
    return batch.append_column(RANGE, pa.array([index] * count, pa.int32()))


def read_lost(staging: Path) -> dict[TopicPartition, list[tuple[int, int]]]:
    """What :func:`read_task` noted."""
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
        on_loss=lose if job.skip_lost else None,
        on_corrupt=lose if job.skip_corrupt else None,
        patience=job.patience,
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
        self._done: list[dict[str, Any]] = []
        self._done_letters: list[dict[str, Any]] = []
        self._files = FileSettings(job.staging, job.target_bytes, job.compression, job.value)
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
        if not self._job.headers and HEADERS in good.schema.names:
            good = good.drop_columns(HEADERS)
        for folder, rows in divide(self._job.parts, good, given):
            if too_long(folder):
                wrong = np.flatnonzero(np.isin(batch["offset"], rows["offset"])).tolist()
                reason = f"the name of its folder would be too long: {folder[:40]}..."
                self._take_bad(part, account, batch, [(row, reason) for row in wrong])
            elif rows.num_rows:
                account.rows += rows.num_rows
                self._file(folder).add(part, self._stored(rows))
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
        where = f"{part.place}@{offset}: {reason}"
        self._bad += len(bad)
        if self._job.errors == "fail":
            raise LakeError(f"{where}; --errors dead-letter would put such records aside")
        if self._job.max_errors is not None and self._bad > self._job.max_errors:
            raise LakeError(too_many(self._bad, self._job.max_errors, where))
        if self._job.errors == "skip":
            account.skipped += len(bad)
            return
        account.dead += len(bad)
        rows = batch.take(pa.array([row for row, _ in bad], pa.int64()))
        reasons = pa.array([reason for _, reason in bad], pa.string())
        rows = rows.append_column("reason", reasons)
        rows = rows.append_column("load", pa.array([self._job.load] * len(reasons), pa.string()))
        self._letters.add(part, rows.cast(LETTER_SCHEMA))

    def _stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without what the folder's name tells."""
        dropped = [name for name in rows.schema.names if name in self._dropped]
        return rows.drop_columns(dropped) if dropped else rows

    def _new_name(self, suffix: str) -> str:
        self._count += 1
        return f"{self._name}-{self._count - 1}{suffix}"

    # -- the end --

    def finish(self) -> dict[str, Any]:
        for file in (*self._open.values(), self._letters):
            file.close()
        return {
            "task": self._task,
            "ranges": [
                {
                    "topic": part.topic,
                    "partition": part.partition,
                    "start": part.start,
                    "end": part.end,
                    "rows": account.rows,
                    "dead": account.dead,
                    "skipped": account.skipped,
                    "lost": account.lost,
                }
                for part, account in self.accounts.items()
            ],
            "files": self._done,
            "whole": self._decoder.whole_columns(),
            "letters": self._done_letters,
        }

    def discard(self) -> None:
        for file in (*self._open.values(), self._letters):
            file.abandon()

    def progress(self, result: dict[str, Any] | None = None) -> None:
        """Tell the driver, through the folder that we share, how far we are."""
        now = time.monotonic()
        if result is None and now < self._next_progress:
            return
        self._next_progress = now + _PROGRESS_SECONDS
        told = {"rows": self._rows, "done": result is not None}
        told |= {"error": result["error"]} if result and "error" in result else {}
        try:
            (self._job.staging / f"{self._task}.progress").write_text(json.dumps(told))
        except OSError:
            return  # the load may have been given up, which the next file will tell


def too_many(bad: int, most: int, where: str) -> str:
    return f"{bad} records do not decode, and --max-errors is {most}; the first is {where}"
