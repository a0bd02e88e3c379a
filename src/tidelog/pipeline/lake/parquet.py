"""Parquet files in the staging folder, one at a time for each folder of the destination."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.files import sync_directory, sync_file
from tidelog.pipeline.lake.files import naming
from tidelog.pipeline.lake.ledger import FileEntry, StagedFile
from tidelog.pipeline.lake.schemas import to_spark_json
from tidelog.pipeline.lake.values import conform_batch
from tidelog.pipeline.ranges import HEADERS, OffsetRange

_ROW_GROUP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Where files go and how they are written."""

    staging: Path
    target_bytes: int
    compression: str
    value: str  # bytes, text, json, csv

    @property
    def row_group_bytes(self) -> int:
        return min(_ROW_GROUP_BYTES, self.target_bytes)


class FolderFile:
    """Rows of one folder: a buffer, and the file that is being written.

    ``name`` gives a new file's name; what is finished is added to ``done``.
    """

    def __init__(
        self,
        settings: FileSettings,
        folder: str,
        name: Callable[[], str],
        done: list[StagedFile],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._new_name = name
        self._done = done
        self._batches: list[pa.RecordBatch] = []
        self._parts: Counts = {}
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        self._name = ""
        self._rows = 0
        self.buffered = 0

    def add(self, rows: pa.RecordBatch, part: OffsetRange | None = None) -> None:
        """Rows of one range, in the order of offsets; without it they are not accounted for."""
        pieces = -(-rows.nbytes // self._settings.row_group_bytes)
        step = max(1, -(-rows.num_rows // max(1, pieces)))
        for start in range(0, rows.num_rows, step):
            self._add(rows.slice(start, step), part)

    def _add(self, rows: pa.RecordBatch, part: OffsetRange | None) -> None:
        if self._schema is not None and rows.schema != self._schema:
            if self._writer is not None:
                self.close()  # a file has one schema
            else:
                self._batches = [conform_batch(batch, rows.schema) for batch in self._batches]
        self._schema = rows.schema
        self._batches.append(rows)
        self._rows += rows.num_rows
        self.buffered += rows.nbytes
        if part is not None:
            offsets = rows.column("offset")
            first, last = offsets[0].as_py(), offsets[-1].as_py()
            count_rows(self._parts, part.topic, part.partition, first, last, rows.num_rows)
        if self.buffered >= self._settings.row_group_bytes:
            self.flush()
            if self._sink is not None and self._sink.tell() >= self._settings.target_bytes:
                self.close()

    def flush(self) -> None:
        """What is buffered becomes a row group."""
        if not self._batches:
            return
        settings = self._settings
        if self._writer is None:
            self._name = self._new_name()
            self._sink = pa.OSFile(str(self._path), "wb")
            self._writer = parquet_writer(
                self._sink, self._schema, settings.compression, settings.value
            )
        table = pa.Table.from_batches(self._batches)
        with naming(self._path):
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._batches.clear()
        self.buffered = 0

    def close(self) -> None:
        """The file is whole and safe on disk."""
        self.flush()
        if self._writer is None:
            return
        assert self._sink is not None
        with naming(self._path):
            self._writer.close()
            self._sink.close()
            sync_file(str(self._path))
            sync_directory(str(self._path.parent))
        folder = f"{self._folder}/" if self._folder else ""
        size = self._path.stat().st_size
        entry = FileEntry(folder + self._name, self._rows, size, as_parts(self._parts))
        self._done.append(StagedFile(entry, to_spark_json(self._schema)))
        self._writer = self._sink = self._schema = None
        self._parts = {}
        self._rows = 0

    def abandon(self) -> None:
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._sink.close()
            self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return self._settings.staging / f"{self._name}.staged"


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


Counts = dict[tuple[str, int], list[int]]  # by partition: first offset, last offset, rows


def count_rows(
    counts: Counts, topic: str, partition: int, first: int, last: int, rows: int
) -> None:
    known = counts.setdefault((topic, partition), [first, last, 0])
    known[0], known[1] = min(known[0], first), max(known[1], last)
    known[2] += rows


def as_parts(counts: Counts) -> tuple[tuple[str, int, int, int, int], ...]:
    """``parts`` of a :class:`FileEntry`."""
    return tuple(
        (topic, partition, first, last, rows)
        for (topic, partition), (first, last, rows) in counts.items()
    )
