"""What a task of a load does: fetch, decode, write Parquet, and tell what it did.

Runs on an executor.  Files go into the staging folder, flushed to disk, under names that no
other attempt uses; only what the driver hears of and publishes counts.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.client.cluster import TopicPartition
from tidelog.errors import ApiError
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.layout import BY_PREFIX, Part, divide, stored_columns
from tidelog.pipeline.lake.ledger import LETTERS, STAGING
from tidelog.pipeline.lake.schemas import from_spark_json, to_spark_json
from tidelog.pipeline.lake.values import Decoded, Decoder, conform
from tidelog.pipeline.loss import Unreadable
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import COLUMNS, HEADERS, Columns, OffsetRange
from tidelog.pipeline.reading import POLL_TIMEOUT, read_range
from tidelog.pipeline.schema import TYPES

ERRORS = ("fail", "skip", "dead-letter")
COMPRESSIONS = ("snappy", "zstd", "lz4", "gzip", "none")
# When Spark has records between: which range of its task a row is of, and what its value holds.
RANGE, VALUES = "__range", "__values"

_ROW_GROUP_BYTES = 64 << 20
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
        letters = self.value != "bytes" and self.errors == "dead-letter"
        return Columns((*COLUMNS, HEADERS) if self.headers or letters else COLUMNS)

    def decoder(self) -> Decoder:
        taken = frozenset(part.name.lower() for part in self.parts)
        decoder = Decoder(self.value, fixed=self.fixed, taken=taken, separator=self.separator)
        if self.schema is not None and self.value in ("json", "csv"):
            decoder.known(from_spark_json(self.schema))
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
    for index, part in enumerate(ranges):
        for batch in read_range(
            job.client,
            part,
            job.columns(),
            on_loss=lose if job.skip_lost else None,
            on_corrupt=lose if job.skip_corrupt else None,
            patience=job.patience,
        ):
            yield _for_spark(batch, index, decoder)


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

        for batch in read_range(
            job.client,
            part,
            job.columns(),
            on_loss=lose if job.skip_lost else None,
            on_corrupt=lose if job.skip_corrupt else None,
            patience=job.patience,
        ):
            writer.add(part, batch)
            writer.progress()


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
        self._name = f"{job.stamp}-{task:05d}-{uuid.uuid4().hex[:4]}"
        self._count = 0
        self._open: dict[str, _File] = {}
        self._letters = _File(self, LETTERS, ".letters")
        self._done: list[dict[str, Any]] = []
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
            self._take_bad(part, account, batch, decoded)
            if given is not None:
                given = given.take(decoded.good)
        good = decoded.batch
        account.rows += good.num_rows
        self._rows += batch.num_rows
        if not self._job.headers and HEADERS in good.schema.names:
            good = good.drop_columns(HEADERS)
        for folder, rows in divide(self._job.parts, good, given):
            if rows.num_rows:
                self._file(folder).add(part, rows)
        while sum(file.buffered for file in self._open.values()) > _MOST_BUFFERED:
            max(self._open.values(), key=lambda file: file.buffered).flush()

    def _file(self, folder: str) -> _File:
        """The file of a folder; the one that was used last is the last in the table."""
        file = self._open.pop(folder, None)
        if file is None:
            file = _File(self, folder, ".parquet")
            if len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
        self._open[folder] = file
        return file

    def _take_bad(
        self, part: OffsetRange, account: _Account, batch: pa.RecordBatch, decoded: Decoded
    ) -> None:
        row, reason = decoded.bad[0]
        offset = batch.column("offset")[row].as_py()
        where = f"{part.place}@{offset}: {reason}"
        self._bad += len(decoded.bad)
        if self._job.errors == "fail":
            raise LakeError(f"{where}; --errors dead-letter would put such records aside")
        if self._job.max_errors is not None and self._bad > self._job.max_errors:
            raise LakeError(too_many(self._bad, self._job.max_errors, where))
        if self._job.errors == "skip":
            account.skipped += len(decoded.bad)
            return
        account.dead += len(decoded.bad)
        rows = batch.take(pa.array([row for row, _ in decoded.bad], pa.int64()))
        reasons = pa.array([reason for _, reason in decoded.bad], pa.string())
        rows = rows.append_column("reason", reasons)
        rows = rows.append_column("load", pa.array([self._job.load] * len(reasons), pa.string()))
        self._letters.add(part, rows.cast(LETTER_SCHEMA))

    # -- for _File --

    @property
    def job(self) -> WriteJob:
        return self._job

    @property
    def dropped(self) -> set[str]:
        return self._dropped

    def new_name(self, suffix: str) -> str:
        self._count += 1
        return f"{self._name}-{self._count - 1}{suffix}"

    def written(self, entry: dict[str, Any]) -> None:
        self._done.append(entry)

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


class _File:
    """Rows of one folder: a buffer, and the Parquet file that is being written."""

    def __init__(self, owner: _Writer, folder: str, suffix: str) -> None:
        self._owner = owner
        self._folder = folder
        self._suffix = suffix
        self._batches: list[pa.RecordBatch] = []
        self._parts: dict[tuple[str, int], list[int]] = {}
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        self._name = ""
        self._rows = 0
        self._row_group_bytes = min(_ROW_GROUP_BYTES, owner.job.target_bytes)
        self.buffered = 0

    def add(self, part: OffsetRange, rows: pa.RecordBatch) -> None:
        pieces = -(-rows.nbytes // self._row_group_bytes)
        step = max(1, -(-rows.num_rows // max(1, pieces)))
        for start in range(0, rows.num_rows, step):
            self._add(part, rows.slice(start, step))

    def _add(self, part: OffsetRange, rows: pa.RecordBatch) -> None:
        offsets = rows.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        dropped = [name for name in rows.schema.names if name in self._owner.dropped]
        if dropped and self._suffix == ".parquet":
            rows = rows.drop_columns(dropped)
        if self._schema is not None and rows.schema != self._schema:
            if self._writer is not None:
                self.close()  # a file has one schema
            else:
                kind = pa.struct(rows.schema)
                self._batches = [_grown(batch, kind) for batch in self._batches]
        self._schema = rows.schema
        self._batches.append(rows)
        self._rows += rows.num_rows
        self.buffered += rows.nbytes
        known = self._parts.setdefault((part.topic, part.partition), [first, last, 0])
        known[0], known[1] = min(known[0], first), max(known[1], last)
        known[2] += rows.num_rows
        if self.buffered >= self._row_group_bytes:
            self.flush()
            if self._sink is not None and self._sink.tell() >= self._owner.job.target_bytes:
                self.close()

    def flush(self) -> None:
        """What is buffered becomes a row group."""
        if not self._batches:
            return
        job = self._owner.job
        if self._writer is None:
            self._name = self._owner.new_name(self._suffix)
            self._sink = pa.OSFile(str(job.staging / f"{self._name}.staged"), "wb")
            self._writer = parquet_writer(self._sink, self._schema, job.compression, job.value)
        table = pa.Table.from_batches(self._batches)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._batches.clear()
        self.buffered = 0

    def close(self) -> None:
        """The file is whole and safe on disk."""
        self.flush()
        if self._writer is None:
            return
        assert self._sink is not None
        self._writer.close()
        self._sink.close()
        path = self._owner.job.staging / f"{self._name}.staged"
        sync_file(path)
        folder = f"{self._folder}/" if self._folder else ""
        self._owner.written(
            {
                "path": folder + self._name,
                "rows": self._rows,
                "bytes": path.stat().st_size,
                "parts": [[*place, *counts] for place, counts in self._parts.items()],
                "schema": to_spark_json(self._schema),
                "letters": self._suffix == ".letters",
            }
        )
        self._writer = self._sink = self._schema = None
        self._parts = {}
        self._rows = 0

    def abandon(self) -> None:
        if self._sink is not None:
            self._sink.close()
            (self._owner.job.staging / f"{self._name}.staged").unlink(missing_ok=True)


def parquet_writer(sink: Any, schema: pa.Schema, compression: str, value: str) -> pq.ParquetWriter:
    """Plain Parquet that every reader knows."""
    # Keys and values as they came are rarely worth a dictionary or a minimum and maximum.
    raw = [] if value in ("json", "csv") else ["value"]
    small = [name for name in schema.names if name not in ("key", "offset", HEADERS, *raw)]
    flat = not any(pa.types.is_nested(schema.field(name).type) for name in small)
    return pq.ParquetWriter(
        sink,
        schema,
        compression=compression,
        use_dictionary=small if flat else True,
        write_statistics=[*small, "offset"] if flat else True,
    )


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _grown(batch: pa.RecordBatch, kind: pa.StructType) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(conform(batch.to_struct_array(), kind))


def too_many(bad: int, most: int, where: str) -> str:
    return f"{bad} records do not decode, and --max-errors is {most}; the first is {where}"
