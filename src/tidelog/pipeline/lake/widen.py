"""A column that gets a wider type: the files that have the old one are written again.

Plain readers (pandas, DuckDB, pyarrow, Spark) want a column to have one type in all files.  So
a load that meets 1.5 in a column of whole numbers also writes the older files again, and its
own where a task had seen whole numbers only.  It is one step in the ledger: the new rows, the
files that are written again and those that they replace are in one manifest.

A column with whole numbers beyond 2**53, which a double would round, is never widened: the
ledger notes it with the schema, and a fraction there is a dead letter.  A ledger of an older
tidelog has no such notes; what its files hold is seen when they are written again, and the load
then begins again, knowing it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidelog.pipeline.lake.compact import write_again
from tidelog.pipeline.lake.ledger import FileEntry, State
from tidelog.pipeline.lake.options import Widening
from tidelog.pipeline.lake.schemas import differences
from tidelog.pipeline.lake.values import Inexact
from tidelog.pipeline.lake.writing import WriteJob


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What a load changes in the schema, and in files because of that."""

    new_columns: tuple[str, ...]
    widened: tuple[Widening, ...]
    narrow: tuple[FileEntry, ...]  # files to be written again, with
    columns: tuple[frozenset[str], ...]  # the columns because of which they are
    files: tuple[dict[str, Any], ...]  # of this load
    rewritten: tuple[dict[str, Any], ...] = ()  # in place of older ones
    removed: tuple[str, ...] = ()

    def groups(self, target: int) -> list[tuple[FileEntry, ...]]:
        """Tasks of about so many bytes."""
        result: list[tuple[FileEntry, ...]] = []
        group: list[FileEntry] = []
        for entry in self.narrow:
            if group and sum(row.bytes for row in group) + entry.bytes > target:
                result.append(tuple(group))
                group = []
            group.append(entry)
        return [*result, tuple(group)]

    def after(self, results: Sequence[dict[str, Any] | None]) -> SchemaChange:
        """With what became of each file of ``narrow``; None is for one that is not there."""
        files = {row["path"]: row for row in self.files}
        rewritten, removed = [], []
        for entry, result in zip(self.narrow, results, strict=True):
            if result is None:
                continue
            if entry.path in files:
                files[entry.path] = result
            else:
                rewritten.append(result)
                removed.append(entry.path)
        gone = set(removed)
        older = [
            (columns, entry.path in gone)
            for entry, columns in zip(self.narrow, self.columns, strict=True)
            if entry.path not in files
        ]
        return replace(
            self,
            widened=tuple(
                replace(
                    row,
                    rewritten=sum(done for columns, done in older if row.column in columns),
                )
                for row in self.widened
            ),
            files=tuple(files.values()),
            rewritten=tuple(rewritten),
            removed=tuple(removed),
        )


def plan_change(state: State, schema: Any, files: Sequence[dict[str, Any]]) -> SchemaChange:
    """What a load with these files means for a destination.  Pure."""
    new: list[str] = []
    changed: list[tuple[str, str, str]] = []
    if state.schema is not None and schema is not None:
        new, changed = differences(state.schema, schema)
    narrow = [
        (FileEntry(row["path"], row["rows"], row["bytes"], tuple(map(tuple, row["parts"]))), found)
        for row in files
        if (found := _changed(row["schema"], schema))
    ]
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


def widen_task(
    job: WriteJob, task: int, entries: Iterable[FileEntry]
) -> list[dict[str, Any] | None]:
    """Write each file again, with the types of the job's schema; None if it is not there.

    ``{"inexact": column}`` if that would round numbers.
    """
    return [_widened(job, task, number, entry) for number, entry in enumerate(entries)]


def _widened(job: WriteJob, task: int, number: int, entry: FileEntry) -> dict[str, Any] | None:
    name = f"{job.stamp}-w{task:05d}-{uuid.uuid4().hex[:4]}-{number}.parquet"
    try:
        return write_again(job, name, [entry])
    except FileNotFoundError:  # somebody deleted it, which `verify` tells
        return None
    except Inexact as error:
        (job.staging / f"{name}.staged").unlink(missing_ok=True)
        return {"inexact": str(error)}
