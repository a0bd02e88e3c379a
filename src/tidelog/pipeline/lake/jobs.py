"""Tasks on Spark: sent, watched, and what came of them.

The driver learns how far tasks are from small files in the staging folder, which it shares
with them anyway: Spark itself tells only which tasks have ended.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.pipeline.lake.files import LakeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LOOK_SECONDS = 0.5
_FULL = os.strerror(errno.ENOSPC)

_GROUP_PROPERTIES = (
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
)

S = TypeVar("S")
T = TypeVar("T")


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


def reported(staging: Path) -> tuple[int, int, str | None]:
    """Rows, finished tasks and the first error, from what tasks have left in the folder."""
    rows = done = 0
    problem = None
    for path in staging.glob("*.progress"):
        try:
            told = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # it is being written
        rows += told["rows"]
        done += told["done"]
        problem = problem or told.get("error")
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
