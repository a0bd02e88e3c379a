"""The driver of a load: it runs the tasks, and brings what they met to one schema.

Tasks that do not agree are run again, and files whose columns got a wider type are written again;
all of it goes into the staging folder.  ``load.py`` publishes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.jobs import (
    Progress,
    Tasks,
    read_progress,
    run_tasks,
    run_write_tasks,
    with_sample,
)
from tidelog.pipeline.lake.layout import needs_spark
from tidelog.pipeline.lake.ledger import FileEntry, Ledger, StagedFile
from tidelog.pipeline.lake.options import check_fields
from tidelog.pipeline.lake.plan import pack
from tidelog.pipeline.lake.rewriting import (
    RewrittenFiles,
    SchemaChange,
    compact_task,
    merged_schema,
    plan_change,
    widen_task,
)
from tidelog.pipeline.lake.schemas import whole_of, with_whole
from tidelog.pipeline.lake.writing import TaskResult, WriteJob
from tidelog.pipeline.planner import Sizes
from tidelog.pipeline.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_MOST_ROUNDS = 5


class WrittenFiles(NamedTuple):
    """What the tasks of a load have written into its staging folder."""

    results: list[TaskResult]
    schema: Any  # of the destination from now on, as Spark writes it
    change: SchemaChange


class Driver:
    """See the module.  ``spark`` is called when a session is needed."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        ledger: Ledger,
        check_stop: Callable[[], None],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._spark = spark
        self._ledger = ledger
        self._check_stop = check_stop
        self._progress = progress

    def write(self, job: WriteJob, ranges: Sequence[OffsetRange], sizes: Sizes) -> WrittenFiles:
        """Read these ranges and write them, and what has to be written again because of them."""
        if needs_spark(job.parts) and job.schema is None and job.layout.has_fields:
            job = with_sample(job, ranges)
        cores = self._spark().sparkContext.defaultParallelism if ranges else 1
        tasks = dict(enumerate(pack(ranges, sizes, job.options.target_bytes, cores)))
        while True:
            results, schema = self._run_until_agreed(job, tasks)
            added = [file for result in results for file in result.files]
            if added and not self._ledger.state.files and job.layout.has_fields:
                check_fields(job.parts, schema)
            change, inexact = self._widen(replace(job, schema=schema), added)
            if not inexact - whole_of(job.schema):
                return WrittenFiles(results, schema, change)
            job = replace(job, schema=with_whole(job.schema, inexact))

    def _run_until_agreed(self, job: WriteJob, tasks: Tasks) -> tuple[list[TaskResult], Any]:
        """Run tasks again until what they met fits into one schema."""
        results = self._run(job, tasks)
        for _ in range(_MOST_ROUNDS):
            schema, again = merged_schema(job.schema, results)
            if not again:
                return list(results.values()), schema
            job = replace(job, schema=schema)
            results |= self._run(job, {number: tasks[number] for number in again})
        raise LakeError("the records have fields of changing types: name the types with --schema")

    def compact(self, job: WriteJob, groups: Sequence[tuple[FileEntry, ...]]) -> list[StagedFile]:
        """Write each group of files as one."""

        def work(row: tuple[int, tuple[FileEntry, ...]]) -> StagedFile:
            return compact_task(job, *row)

        return self._rewrite("merging files", job, groups, work)

    def _widen(self, job: WriteJob, added: Sequence[StagedFile]) -> tuple[SchemaChange, set[str]]:
        """Give all files the types that the columns have now, for readers who expect one type;
        also the columns for which that would round numbers."""
        change = plan_change(self._ledger.state, job.schema, added)
        if not change.narrow:
            return change, set()

        def work(row: tuple[int, tuple[FileEntry, ...]]) -> list[RewrittenFiles]:
            return widen_task(job, *row)

        groups = change.groups(job.options.target_bytes)
        results = [
            row for rows in self._rewrite("widening columns", job, groups, work) for row in rows
        ]
        inexact = {row.inexact for row in results if row.inexact}
        return (change, inexact) if inexact else (change.after(results), inexact)

    def _rewrite(
        self,
        title: str,
        job: WriteJob,
        groups: Sequence[tuple[FileEntry, ...]],
        work: Callable[[tuple[int, tuple[FileEntry, ...]]], T],
    ) -> list[T]:
        """Write files again, into the staging folder; each group is a task."""

        def watch() -> None:
            self._show(job, Progress(0, 0, 0, 0, 0.0, title))

        return run_tasks(
            self._spark(), f"tidelog load: {title}", list(enumerate(groups)), work, watch
        )

    def _run(self, job: WriteJob, tasks: Tasks) -> dict[int, TaskResult]:
        """The result of each task."""
        if not tasks:
            return {}
        for path in job.staging.glob("*.progress"):
            path.unlink()
        began = time.monotonic()
        offsets = sum(len(part) for parts in tasks.values() for part in parts)

        def watch() -> None:
            self._check_stop()
            rows, done, problem = read_progress(job.staging)
            if problem is not None:
                raise LakeError(problem)
            seconds = time.monotonic() - began
            self._show(job, Progress(rows, offsets, done, len(tasks), seconds))

        results = run_write_tasks(self._spark(), job, tasks, watch)
        for result in results:
            if result.error is not None:
                raise LakeError(result.error)
        return {result.task: result for result in results}

    def _show(self, job: WriteJob, progress: Progress) -> None:
        """Called now and then while a job runs."""
        self._check_stop()
        self._ledger.still_alive(job.load)
        if self._progress is not None:
            self._progress(progress)
