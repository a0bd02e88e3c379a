"""Files that are written again: compaction, and columns that get a wider type.

**Compaction** is part of a load.  Small files of one folder are merged when there are eight of
about the same size, so that a row is written again only a few times however often loads come:
eight files of 1 MB become one of 8 MB, eight of these one of 64 MB.

**A wider type.**  Plain readers (pandas, DuckDB, pyarrow, Spark) want a column to have one type in
all files.  So a load that meets 1.5 in a column of whole numbers also writes the older files again,
and its own where a task had seen whole numbers only.  The new rows, the files that are written
again and those that they replace are in one manifest.

A column with whole numbers beyond 2**53, which a double would round, is never widened: the
ledger notes it with the schema, and a fraction there is a dead letter.  A ledger of an older
tidelog has no such notes; what its files hold is seen when they are written again, and the load
then begins again, knowing it.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.ledger import FileEntry, StagedFile, State
from tidelog.pipeline.lake.options import Widening
from tidelog.pipeline.lake.parquet import Counts, FolderFile, as_parts, count_rows
from tidelog.pipeline.lake.schemas import (
    Conflict,
    differences,
    from_spark_json,
    merge_fields,
    to_spark_json,
    whole_of,
)
from tidelog.pipeline.lake.values import Inexact, conform_batch
from tidelog.pipeline.lake.writing import TaskResult, WriteJob
from tidelog.text import plural

FANOUT = 8
_SMALLEST = 16 << 10  # all below are of one size
_BATCH_ROWS, _BATCH_BYTES = 64 << 10, 16 << 20


# -- compaction ---------------------------------------------------------------------


def choose(state: State, target: int) -> list[tuple[FileEntry, ...]]:
    """Which files are to become one.  No I/O."""
    sizes: dict[tuple[str, int], list[FileEntry]] = {}
    # A file with numbers that do not fit into the type that their column has now, from an older
    # tidelog, stays as it is.
    narrow = {i for i, row in enumerate(state.schemas) if differences(row, state.schema)[1]}
    for entry in state.files.values():
        if 2 * entry.bytes <= target and entry.schema not in narrow:
            sizes.setdefault((entry.folder, _tier(entry.bytes)), []).append(entry)
    result = []
    for _, entries in sorted(sizes.items()):
        *full, last = _grouped(entries, target)
        result += [group for group in full if len(group) > 1]
        if len(last) >= FANOUT:
            result.append(last)
    return result


def _tier(size: int) -> int:
    tier = 0
    limit = _SMALLEST
    while size > limit:
        limit *= FANOUT
        tier += 1
    return tier


def _grouped(entries: Iterable[FileEntry], target: int) -> list[tuple[FileEntry, ...]]:
    """Groups of about ``target`` bytes; the last may be smaller."""
    groups: list[list[FileEntry]] = [[]]
    for entry in entries:
        if groups[-1] and sum(row.bytes for row in groups[-1]) + entry.bytes > target:
            groups.append([])
        groups[-1].append(entry)
    return [tuple(group) for group in groups]


def compact_task(job: WriteJob, task: int, entries: Iterable[FileEntry]) -> StagedFile:
    """Write the rows of these files into one, in the order of their offsets."""
    ordered = sorted(entries, key=lambda entry: (entry.parts, entry.path))
    return _rewrite(job, f"{job.stamp}-{task:05d}-{uuid.uuid4().hex[:4]}-0.parquet", ordered)


def _rewrite(job: WriteJob, name: str, entries: Sequence[FileEntry]) -> StagedFile:
    """The rows of files of one folder as a new one, with the types of the job's schema."""
    present = {name for entry in entries for name in pq.read_schema(_path(job, entry)).names}
    schema = pa.schema([row for row in from_spark_json(job.schema) if row.name in present])
    done: list[StagedFile] = []
    folder = entries[0].folder
    file = FolderFile(job.file_settings(sys.maxsize), folder, lambda: name, done)
    try:
        for entry in entries:
            for batch in rows_of_file(job, entry, schema):
                file.add(batch)
        file.close()
    except BaseException:
        file.abandon()
        raise
    rows, expected = (
        sum(row.rows for row in group) for group in ([f.entry for f in done], entries)
    )
    if rows != expected:
        raise LakeError(
            f"files of folder {folder or '.'!r} have {plural(rows, 'row')}, and the ledger says "
            f"{expected}: they were not written again; see `tidelog load verify`"
        )
    counts: Counts = {}
    for part in (part for entry in entries for part in entry.parts):
        count_rows(counts, *part)
    (written,) = done
    return replace(written, entry=replace(written.entry, parts=as_parts(counts)))


def _path(job: WriteJob, entry: FileEntry) -> Path:
    """Where a file is: not yet published, if it is one of this load."""
    staged = job.staging / entry.staged
    return staged if staged.exists() else job.options.root / entry.path


def rows_of_file(job: WriteJob, entry: FileEntry, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file, with the columns and types of a schema."""
    with pq.ParquetFile(_path(job, entry)) as file:
        # Few of large rows: a file that compresses well is many times as large in memory.
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        size = max(1, sum(group.total_byte_size for group in groups))
        most = max(1, file.metadata.num_rows * _BATCH_BYTES // size)
        for batch in file.iter_batches(min(most, _BATCH_ROWS)):
            yield conform_batch(batch, schema)


# -- one schema for all tasks of a load -----------------------------------------------


def merged_schema(known: Any, results: Mapping[int, TaskResult]) -> tuple[Any, list[int]]:
    """The schema of the destination with what these tasks met, and the tasks to run again.

    Two tasks may meet the same new field at the same time, one as text, one as a number; or one
    a whole number that no double holds, the other a fraction.  The earlier task is right, and the
    later one is run again, knowing that.
    """
    fields: list[pa.Field] = list(from_spark_json(known)) if known else []
    whole = whole_of(known)
    again = []
    for number, result in sorted(results.items()):
        more, grown = whole.union(result.whole), fields
        try:
            for file in result.files:
                grown = merge_fields(grown, from_spark_json(file.schema), "", more)
        except Conflict:
            again.append(number)
        else:
            whole, fields = more, grown
    return to_spark_json(pa.schema(fields), whole) if fields else None, again


# -- wider types ----------------------------------------------------------------------


class RewrittenFiles(NamedTuple):
    """What became of a file: a new one, or nothing if it is not there; or ``inexact`` is the
    column whose numbers the new type would round."""

    file: StagedFile | None = None
    inexact: str = ""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What a load changes in the schema, and in files because of that."""

    new_columns: tuple[str, ...]
    widened: tuple[Widening, ...]
    narrow: tuple[FileEntry, ...]  # files to be written again, with
    columns: tuple[frozenset[str], ...]  # the columns because of which they are
    files: tuple[StagedFile, ...]  # of this load
    rewritten: tuple[StagedFile, ...] = ()  # in place of older ones
    removed: tuple[str, ...] = ()

    def groups(self, target: int) -> list[tuple[FileEntry, ...]]:
        """Tasks of about so many bytes."""
        return _grouped(self.narrow, target)

    def after(self, results: Sequence[RewrittenFiles]) -> SchemaChange:
        """With what became of each file of ``narrow``."""
        files = {file.entry.path: file for file in self.files}
        replaced: dict[str, StagedFile] = {}
        for entry, result in zip(self.narrow, results, strict=True):
            if result.file is not None:
                (files if entry.path in files else replaced)[entry.path] = result.file
        done = [
            columns
            for entry, columns in zip(self.narrow, self.columns, strict=True)
            if entry.path in replaced
        ]
        return replace(
            self,
            widened=tuple(
                replace(row, rewritten=sum(row.column in columns for columns in done))
                for row in self.widened
            ),
            files=tuple(files.values()),
            rewritten=tuple(replaced.values()),
            removed=tuple(replaced),
        )


def plan_change(state: State, schema: Any, files: Sequence[StagedFile]) -> SchemaChange:
    """What a load with these files changes in a destination.  No I/O."""
    new: list[str] = []
    changed: list[tuple[str, str, str]] = []
    if state.schema is not None and schema is not None:
        new, changed = differences(state.schema, schema)
    narrow = [(file.entry, found) for file in files if (found := _changed(file.schema, schema))]
    if changed:
        known = [_changed(row, schema) for row in state.schemas]
        narrow += [
            (entry, known[entry.schema]) for entry in state.files.values() if known[entry.schema]
        ]
    return SchemaChange(
        tuple(new),
        tuple(Widening(*row) for row in changed),
        tuple(entry for entry, _ in narrow),
        tuple(columns for _, columns in narrow),
        tuple(files),
    )


def _changed(before: Any, after: Any) -> frozenset[str]:
    return frozenset(column for column, _, _ in differences(before, after)[1])


def widen_task(job: WriteJob, task: int, entries: Iterable[FileEntry]) -> list[RewrittenFiles]:
    """Write each file again, with the types of the job's schema."""
    return [_widened(job, task, number, entry) for number, entry in enumerate(entries)]


def _widened(job: WriteJob, task: int, number: int, entry: FileEntry) -> RewrittenFiles:
    name = f"{job.stamp}-w{task:05d}-{uuid.uuid4().hex[:4]}-{number}.parquet"
    try:
        return RewrittenFiles(_rewrite(job, name, [entry]))
    except FileNotFoundError:  # it was deleted by hand, which `verify` reports
        return RewrittenFiles()
    except Inexact as error:
        return RewrittenFiles(inexact=str(error))
