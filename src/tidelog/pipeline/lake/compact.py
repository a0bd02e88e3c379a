"""Few files of many: as part of a load, recorded in the ledger like one.

Small files of one folder are merged when there are eight of about the same size, so that a row
is written again only a few times however often loads come: eight files of 1 MB become one of
8 MB, eight of these one of 64 MB.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.lake.files import LakeError, naming
from tidelog.pipeline.lake.ledger import FileEntry, State
from tidelog.pipeline.lake.parquet import parquet_writer, sync_file
from tidelog.pipeline.lake.schemas import differences, from_spark_json, to_spark_json
from tidelog.pipeline.lake.values import conform
from tidelog.pipeline.lake.writing import WriteJob
from tidelog.text import plural

FANOUT = 8
_SMALLEST = 16 << 10  # all below are of one size
_ROW_GROUP_BYTES = 64 << 20
_BATCH_ROWS, _BATCH_BYTES = 64 << 10, 16 << 20


def choose(state: State, target: int) -> list[tuple[FileEntry, ...]]:
    """Which files are to become one.  Pure."""
    sizes: dict[tuple[str, int], list[FileEntry]] = {}
    # A file with numbers that do not fit into the type that their column has now, from an older
    # tidelog, stays as it is.
    narrow = {i for i, row in enumerate(state.schemas) if differences(row, state.schema)[1]}
    for entry in state.files.values():
        if 2 * entry.bytes <= target and entry.schema not in narrow:
            sizes.setdefault((entry.folder, _tier(entry.bytes)), []).append(entry)
    result = []
    for _, entries in sorted(sizes.items()):
        group: list[FileEntry] = []
        for entry in entries:
            if group and sum(row.bytes for row in group) + entry.bytes > target:
                result.append(tuple(group))  # as much as one file may be
                group = []
            group.append(entry)
        if len(group) >= FANOUT:
            result.append(tuple(group))
    return [group for group in result if len(group) > 1]


def _tier(size: int) -> int:
    tier = 0
    limit = _SMALLEST
    while size > limit:
        limit *= FANOUT
        tier += 1
    return tier


def compact_task(job: WriteJob, task: int, entries: Iterable[FileEntry]) -> dict[str, Any]:
    """Write the rows of these files into one, in the order of their offsets."""
    ordered = sorted(entries, key=lambda entry: (entry.parts, entry.path))
    return write_again(job, f"{job.stamp}-{task:05d}-{uuid.uuid4().hex[:4]}-0.parquet", ordered)


def write_again(job: WriteJob, name: str, entries: Sequence[FileEntry]) -> dict[str, Any]:
    """The rows of files of one folder as a new one, with the types of the job's schema."""
    schema = from_spark_json(job.schema)
    present = {name for entry in entries for name in _names(job, entry)}
    schema = pa.schema([field for field in schema if field.name in present])
    path = job.staging / f"{name}.staged"
    rows = 0
    with (
        naming(path),
        pa.OSFile(str(path), "wb") as sink,
        parquet_writer(sink, schema, job.compression, job.value) as writer,
    ):
        pending: list[pa.RecordBatch] = []
        for entry in entries:
            for batch in rows_of_file(job, entry, schema):
                rows += batch.num_rows
                pending.append(batch)
                if sum(row.nbytes for row in pending) >= _ROW_GROUP_BYTES:
                    _write(writer, pending)
        _write(writer, pending)
    sync_file(path)
    folder = entries[0].folder
    expected = sum(entry.rows for entry in entries)
    if rows != expected:
        raise LakeError(
            f"files of folder {folder or '.'!r} have {plural(rows, 'row')}, and the ledger says "
            f"{expected}: they were not written again; see `tidelog load verify`"
        )
    return {
        "path": f"{folder}/{name}" if folder else name,
        "rows": rows,
        "bytes": path.stat().st_size,
        "parts": _parts(entries),
        "schema": to_spark_json(schema),
    }


def _path(job: WriteJob, entry: FileEntry) -> Path:
    """Where a file is: not yet published, if it is one of this load."""
    staged = job.staging / entry.staged
    return staged if staged.exists() else Path(job.root) / entry.path


def _names(job: WriteJob, entry: FileEntry) -> list[str]:
    names: list[str] = pq.read_schema(_path(job, entry)).names
    return names


def rows_of_file(job: WriteJob, entry: FileEntry, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    """The rows of a file, with the columns and types of a schema."""
    kind = pa.struct(schema)
    with pq.ParquetFile(_path(job, entry)) as file:
        # Few of large rows: a file that compresses well is many times as large in memory.
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        size = max(1, sum(group.total_byte_size for group in groups))
        most = max(1, file.metadata.num_rows * _BATCH_BYTES // size)
        for batch in file.iter_batches(min(most, _BATCH_ROWS)):
            yield pa.RecordBatch.from_struct_array(conform(batch.to_struct_array(), kind))


def _write(writer: pq.ParquetWriter, pending: list[pa.RecordBatch]) -> None:
    if pending:
        table = pa.Table.from_batches(pending)
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        pending.clear()


def _parts(entries: Iterable[FileEntry]) -> list[list[Any]]:
    result: dict[tuple[str, int], list[int]] = {}
    for topic, partition, first, last, rows in (part for row in entries for part in row.parts):
        known = result.setdefault((topic, partition), [first, last, 0])
        known[0], known[1] = min(known[0], first), max(known[1], last)
        known[2] += rows
    return [[*place, *counts] for place, counts in result.items()]
