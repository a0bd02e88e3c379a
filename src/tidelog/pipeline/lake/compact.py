"""Few files of many: as part of a load, recorded in the ledger like one.

Small files of one folder are merged when there are eight of about the same size, so that a row
is written again only a few times however often loads come: eight files of 1 MB become one of
8 MB, eight of these one of 64 MB.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.ledger import FileEntry, State
from tidelog.pipeline.lake.parquet import parquet_writer, sync_file
from tidelog.pipeline.lake.schemas import from_spark_json, to_spark_json
from tidelog.pipeline.lake.values import conform
from tidelog.pipeline.lake.writing import WriteJob
from tidelog.text import plural

FANOUT = 8
_SMALLEST = 16 << 10  # all below are of one size
_ROW_GROUP_BYTES = 64 << 20
_BATCH_ROWS = 64 << 10


def choose(state: State, target: int) -> list[tuple[FileEntry, ...]]:
    """Which files are to become one.  Pure."""
    sizes: dict[tuple[str, int], list[FileEntry]] = {}
    for entry in state.files.values():
        if 2 * entry.bytes <= target:
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
    schema = from_spark_json(job.schema)
    present = {name for entry in ordered for name in _names(job, entry)}
    schema = pa.schema([field for field in schema if field.name in present])
    name = f"{job.stamp}-{task:05d}-{uuid.uuid4().hex[:4]}-0.parquet"
    path = job.staging / f"{name}.staged"
    rows = 0
    with pa.OSFile(str(path), "wb") as sink:
        writer = parquet_writer(sink, schema, job.compression, job.value)
        pending: list[pa.RecordBatch] = []
        for entry in ordered:
            for batch in _read(job, entry, schema):
                rows += batch.num_rows
                pending.append(batch)
                if sum(row.nbytes for row in pending) >= _ROW_GROUP_BYTES:
                    _write(writer, pending)
        _write(writer, pending)
        writer.close()
    sync_file(path)
    expected = sum(entry.rows for entry in ordered)
    if rows != expected:
        raise LakeError(
            f"files of folder {ordered[0].folder or '.'!r} have {plural(rows, 'row')}, and the "
            f"ledger says {expected}: they were not merged; see `tidelog load verify`"
        )
    folder = f"{ordered[0].folder}/" if ordered[0].folder else ""
    return {
        "path": folder + name,
        "rows": rows,
        "bytes": path.stat().st_size,
        "parts": _parts(ordered),
        "schema": to_spark_json(schema),
    }


def _path(job: WriteJob, entry: FileEntry) -> Path:
    return Path(job.root) / entry.path


def _names(job: WriteJob, entry: FileEntry) -> list[str]:
    names: list[str] = pq.read_schema(_path(job, entry)).names
    return names


def _read(job: WriteJob, entry: FileEntry, schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    kind = pa.struct(schema)
    with pq.ParquetFile(_path(job, entry)) as file:
        for batch in file.iter_batches(_BATCH_ROWS):
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
