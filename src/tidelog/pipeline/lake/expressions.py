"""Folders by any SQL expression: records pass through Spark on their way to the files.

Reading and writing stay the same code and one Spark task each; between them Spark works out the
expressions of ``--by`` on the record and on the columns of its value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.pipeline.json_types import quote
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.jobs import map_in_arrow, run
from tidelog.pipeline.lake.layout import BY_PREFIX, renamed_fields
from tidelog.pipeline.lake.schemas import to_spark_json
from tidelog.pipeline.lake.spans import overlap, union
from tidelog.pipeline.lake.writing import (
    RANGE,
    VALUES,
    WriteJob,
    raw_schema,
    read_lost,
    read_task,
    write_rows,
)
from tidelog.pipeline.loss import Unreadable
from tidelog.pipeline.ranges import OffsetRange
from tidelog.pipeline.reading import read_range
from tidelog.pipeline.schema import TYPES
from tidelog.topic_partition import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE = 10_000  # records

Tasks = Mapping[int, tuple[OffsetRange, ...]]


def run_through_spark(
    spark: SparkSession, job: WriteJob, tasks: Tasks, watch: Callable[[], None]
) -> list[dict[str, Any]]:
    """The same as ``write_task`` in each task."""
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
        yield pa.RecordBatch.from_pydict({"result": [json.dumps(result)]})

    # As many partitions as tasks, and nothing that would shuffle them.
    numbers = spark.range(0, len(rows), 1, len(rows))
    records = map_in_arrow(numbers, read, from_arrow_schema(raw_schema(job)))
    written = map_in_arrow(_with_folders(records, job), write, "result string")
    results = run(
        spark,
        "tidelog load",
        lambda: [json.loads(row.result) for row in written.collect()],
        watch,
    )
    lost = read_lost(job.staging)
    for entry in (row for result in results for row in result.get("ranges", ())):
        place = TopicPartition(entry["topic"], entry["partition"])
        for start, end in union(lost.get(place, ())):
            both = overlap((start, end), (entry["start"], entry["end"]))
            if both is not None:
                entry["lost"].append(both)
    return results


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
    """In a new destination nobody knows the fields of values yet, and expressions may name them."""
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
