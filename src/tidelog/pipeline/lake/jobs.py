"""The Spark jobs of a load: they are started, watched, and their results collected.

The driver learns how far tasks are from small files in the staging folder, which it shares
with them anyway: Spark itself reports only which tasks have ended.

Records go from the broker to the files in one task, past Spark.  Only where ``--by`` has an SQL
expression, they pass through the JVM, which computes it: reading and writing stay the same code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tidelog.pipeline.json_types import quote
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.layout import BY_PREFIX, needs_spark, renamed_fields
from tidelog.pipeline.lake.ledger import RangeEntry
from tidelog.pipeline.lake.schemas import to_spark_json
from tidelog.pipeline.lake.writing import (
    RANGE,
    VALUES,
    TaskResult,
    WriteJob,
    raw_schema,
    read_lost,
    read_task,
    write_rows,
    write_task,
)
from tidelog.pipeline.loss import Unreadable
from tidelog.pipeline.ranges import OffsetRange, overlap, union
from tidelog.pipeline.reading import read_range
from tidelog.pipeline.schema import TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE = 10_000  # records
_LOOK_SECONDS = 0.5
_FULL = os.strerror(errno.ENOSPC)

_GROUP_PROPERTIES = (
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
)

S = TypeVar("S")
T = TypeVar("T")

Tasks = Mapping[int, tuple[OffsetRange, ...]]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is: for a line on a terminal, or a caller of the Python API."""

    rows: int
    offsets: int  # of all tasks
    tasks_done: int
    tasks: int
    seconds: float
    doing: str = "reading the first records"

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def share(self) -> float:
        """From 0 to 1; holes make it end early, never late."""
        return min(1.0, self.rows / self.offsets) if self.offsets else 1.0

    @property
    def seconds_left(self) -> float | None:
        if self.rows_per_second <= 0:
            return None
        return (self.offsets - self.rows) / self.rows_per_second


def run(
    spark: SparkSession, name: str, collect: Callable[[], list[T]], watch: Callable[[], None]
) -> list[T]:
    """What ``collect`` gives, which runs a job; ``watch`` is called now and then meanwhile.

    A watcher that raises ends the job, and what it raised is raised here.
    """
    context = spark.sparkContext
    group = f"{name} {uuid.uuid4().hex}"
    # A streaming query has a group of its own, which must be there again afterwards.
    before = {key: context.getLocalProperty(key) for key in _GROUP_PROPERTIES}
    over = threading.Event()
    problem: list[BaseException] = []

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            try:
                watch()
            except BaseException as error:
                problem.append(error)
                with contextlib.suppress(Exception):  # a signal may have ended the JVM, too
                    context.cancelJobGroup(group)
                return

    watcher = threading.Thread(target=look, name="load-progress", daemon=True)
    context.setJobGroup(group, name, interruptOnCancel=True)
    watcher.start()
    try:
        return collect()
    except Exception as error:
        if problem:
            raise problem[0] from None
        watch()  # a task that has failed may have left a better sentence than Spark has
        text = reason_of(error)
        if _FULL in str(error) and _FULL not in text:
            folder = os.environ.get("SPARK_LOCAL_DIRS") or context.getConf().get("spark.local.dir")
            text = f"{_FULL}, where Spark keeps its own files: {folder}"
        raise LakeError(f"Spark could not finish the load: {text}") from error
    finally:
        over.set()
        watcher.join()
        for key, value in before.items():
            context.setLocalProperty(key, value)


def run_tasks(
    spark: SparkSession,
    name: str,
    rows: Sequence[S],
    work: Callable[[S], T],
    watch: Callable[[], None],
) -> list[T]:
    """Each row is a task; their results in order."""
    context = spark.sparkContext

    def collect() -> list[T]:
        results: list[T] = context.parallelize(rows, len(rows)).map(work).collect()
        return results

    return run(spark, name, collect, watch)


def map_in_arrow(
    frame: DataFrame,
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: Any,
) -> DataFrame:
    """``DataFrame.mapInArrow``, which asks for pandas without a need for it."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]
    from pyspark.util import PythonEvalType

    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    column = vectorized_udf(work, schema, kind, "pandas")(*[frame[row] for row in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def read_progress(staging: Path) -> tuple[int, int, str | None]:
    """Rows, finished tasks and the first error, from what tasks have left in the folder."""
    rows = done = 0
    problem = None
    for path in staging.glob("*.progress"):
        try:
            report = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # it is being written
        rows += report["rows"]
        done += report["done"]
        problem = problem or report.get("error")
    return rows, done, problem


def reason_of(error: BaseException) -> str:
    """The one line of a Java stack trace that says something."""
    text = str(error)
    found = re.findall(
        r"^(?:\s*)([A-Za-z_][\w.]*(?:Error|Exception|Unreadable|Loss|Batch)): (.+)$", text, re.M
    )
    own: list[str] = [
        message
        for kind, message in found
        if "spark" not in kind.lower() and "py4j" not in kind.lower() and "java" not in kind.lower()
    ]
    if own:
        return own[0].strip()
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


# -- folders by SQL expressions -----------------------------------------------------------


def run_write_tasks(
    spark: SparkSession, job: WriteJob, tasks: Tasks, watch: Callable[[], None]
) -> list[TaskResult]:
    """``write_task`` for each task."""
    if needs_spark(job.parts):
        return _run_through_spark(spark, job, tasks, watch)

    def work(row: tuple[int, tuple[OffsetRange, ...]]) -> TaskResult:
        return write_task(job, *row)

    return run_tasks(spark, "tidelog load", list(tasks.items()), work, watch)


def _run_through_spark(
    spark: SparkSession, job: WriteJob, tasks: Tasks, watch: Callable[[], None]
) -> list[TaskResult]:
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = list(tasks.items())
    # Times are UTC in all loads of a destination, whatever the caller's session shows.
    spark = spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from read_task(job, *rows[index])

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number, ranges = rows[context.partitionId()]
        result = write_rows(job, number, ranges, batches)
        yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

    # As many partitions as tasks, and nothing that would shuffle them.
    numbers = spark.range(0, len(rows), 1, len(rows))
    records = map_in_arrow(numbers, read, from_arrow_schema(raw_schema(job)))
    written = map_in_arrow(_with_folders(records, job), write, "result binary")
    results = run(
        spark,
        "tidelog load",
        lambda: [pickle.loads(row.result) for row in written.collect()],
        watch,
    )
    lost = read_lost(job.staging)

    def with_lost(entry: RangeEntry) -> RangeEntry:
        spans = union(lost.get(entry.tp, ()))
        both = (overlap(span, (entry.start, entry.end)) for span in spans)
        return replace(entry, lost=tuple(span for span in both if span is not None))

    return [replace(result, ranges=tuple(map(with_lost, result.ranges))) for result in results]


def _with_folders(records: DataFrame, job: WriteJob) -> DataFrame:
    """Add what Spark makes of the expressions, as text."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    frame = records
    if VALUES in records.columns:
        there = {name.lower() for name in records.columns}
        fields = [
            name for name in records.schema[VALUES].dataType.names if name.lower() not in there
        ]
        frame = frame.select(
            "*", *[f.col(f"{VALUES}.{quote(name)}").alias(name) for name in fields]
        )
        for name, column in renamed_fields(job.parts, fields).items():
            frame = frame.withColumn(name, f.col(quote(column)))
    folders = {i: part for i, part in enumerate(job.parts) if not part.built_in}
    for i, part in folders.items():
        try:
            frame = frame.withColumn(f"{BY_PREFIX}{i}", f.expr(part.expression).cast("string"))
        except (AnalysisException, ParseException) as error:
            reason = str(error).strip().splitlines()[0]
            raise LakeError(f"--by {part.expression}: {reason}") from None
    return frame.select(*job.columns().names, RANGE, *[f"{BY_PREFIX}{i}" for i in folders])


def _ignore(_: Unreadable) -> None:
    return None


def with_sample(job: WriteJob, ranges: Sequence[OffsetRange]) -> WriteJob:
    """With the fields of values in a new destination, from a sample: expressions may name them."""
    decoder = job.decoder()
    left = _SAMPLE
    for part in ranges:
        # What cannot be read is for the tasks to raise, or to leave out and note.
        for batch in read_range(
            job.client,
            part,
            job.columns(),
            on_loss=_ignore,
            on_corrupt=_ignore,
            target_bytes=1 << 18,
        ):
            decoder.decode(batch.slice(0, left))
            left -= batch.num_rows
            break
        if left <= 0:
            break
    fields = [pa.field(decoder.column_name(row.name), row.type) for row in decoder.fields]
    fields += [pa.field(name, TYPES[name]) for name in job.columns().names if name != "value"]
    return replace(job, schema=to_spark_json(pa.schema(fields), decoder.whole_columns()))
