"""Reading through the ledger: all of a load or nothing of it, and the topic behind it.

    frame = read_lake(spark, "/data/searches")
    frame = read_lake(spark, "/data/searches", live=True)      and what is only in the topic yet

The frame is a snapshot of the moment in which it is made.  A load that merges small files while
the frame is being read takes files away: make it again then.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.client.cluster import TOPIC_GONE, check_topic
from tidelog.pipeline.json_types import quote
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.jobs import map_in_arrow
from tidelog.pipeline.lake.json_rows import EXACT
from tidelog.pipeline.lake.layout import BY_PREFIX, Layout, Part, folder_column, renamed_fields
from tidelog.pipeline.lake.ledger import FileEntry, State, open_ledger
from tidelog.pipeline.lake.schemas import from_spark_json, whole_of
from tidelog.pipeline.lake.values import ValueDecoder, conform_any
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.schema import TYPES
from tidelog.pipeline.spark_failures import explained, is_connect
from tidelog.topic_partition import TopicPartition
from tidelog.wire.uuids import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_INEXACT = "it is double in the lake, and here are whole numbers that a double would round"
_FOLDER_TYPES = {"date": "date", "to_date": "date"}


def lake_schema(to: str | Path) -> pa.Schema:
    """The columns of all files, and the folders as text, for readers that look only into the
    first file: ``pyarrow.dataset.dataset(DIR, schema=lake_schema(DIR), partitioning="hive")``."""
    state = open_ledger(to).state
    if state.schema is None:
        raise LakeError(f"{to}: no records were loaded yet")
    schema = from_spark_json(state.schema)
    for part in Layout(**state.layout).parts():
        if part.name not in schema.names:
            schema = schema.append(pa.field(part.name, pa.string()))
    return schema


def read_lake(
    spark: SparkSession, to: str | Path, *, live: bool = False, bootstrap: str | None = None
) -> DataFrame:
    """What is in a destination; with ``live`` also what its topics have beyond that.

    The cut between the two is exact: the offset up to which the ledger has each partition.
    """
    ledger = open_ledger(to)
    with contextlib.suppress(OSError):  # one who may only read waits for the next load
        ledger.settle_all()
    state = ledger.state
    if state.schema is None:
        raise LakeError(f"{to}: no records were loaded yet")
    lake = _files(spark, state, Path(to).absolute())
    if not live:
        return lake
    settings = next(row.settings for row in ledger.newest() if "bootstrap" in row.settings)
    committed = "read_committed" if settings.get("read_committed") else "read_uncommitted"
    kafka = {
        "kafka.bootstrap.servers": bootstrap or settings["bootstrap"],
        "kafka.isolation.level": committed,
    }
    if is_connect(spark):
        raise LakeError("live is not supported over Spark Connect; without it, the lake is read")
    with explained():
        return _topic(spark, state, kafka, lake)


def _files(spark: SparkSession, state: State, root: Path) -> DataFrame:
    """Files of one schema at a time, because Spark does not widen a whole number to a double."""
    from pyspark.sql.types import StructType

    wanted = StructType.fromJson(state.schema)
    parts = Layout(**state.layout).parts()
    groups: dict[int, list[FileEntry]] = {}
    for entry in state.files.values():
        groups.setdefault(entry.schema, []).append(entry)
    frames = []
    for index, entries in groups.items():
        schema = StructType.fromJson(state.schemas[index])
        for part in parts:
            kind = _folder_type(part)
            if kind is not None:
                schema = schema.add(part.name, kind)
        frame = (
            spark.read.schema(schema)
            .option("basePath", str(root))
            .parquet(*[str(root / entry.path) for entry in entries])
        )
        files = ", ".join(entry.path for entry in entries[:3])
        frames.append(_columns(frame, schema, wanted, parts, files))
    if not frames:
        return spark.createDataFrame([], wanted)
    result = frames[0]
    for frame in frames[1:]:
        result = result.unionByName(frame)
    return result


def _folder_type(part: Part) -> str | None:
    """What a folder's name is; None lets Spark look at the names."""
    if part.function is not None:
        return _FOLDER_TYPES.get(part.function, "integer")
    if part.column == "partition":
        return "integer"
    return "string" if part.column in ("topic", "key") else None


def _columns(
    frame: DataFrame, schema: Any, wanted: Any, parts: tuple[Part, ...], files: str
) -> DataFrame:
    """All columns of the destination, with its types, and those of the folders."""
    from pyspark.sql import functions as f

    there = {row.name: row.dataType for row in schema}
    columns = []
    for row in wanted:
        column = f.lit(None).cast(row.dataType)
        if row.name in there:
            found = f.col(quote(row.name))
            column = found.cast(row.dataType)
            rounded = _rounded(found, there[row.name], row.dataType)
            if rounded is not None:
                why = f"{row.name}: {_INEXACT}; read such files by themselves: {files}"
                column = f.when(rounded, f.raise_error(why)).otherwise(column)
        columns.append(column.alias(row.name))
    columns += [f.col(quote(part.name)) for part in parts]
    return frame.select(*columns)


def _rounded(column: Column, before: Any, after: Any) -> Column | None:
    """Whether a cast may round a number, in files that an older tidelog has left as they were."""
    from pyspark.sql import functions as f

    names = (before.typeName(), after.typeName())
    if names == ("long", "double"):
        return (column > EXACT) | (column < -EXACT)
    if names == ("array", "array"):
        inner = (before.elementType, after.elementType)
        if _rounded(column, *inner) is not None:
            return f.exists(column, lambda row: _rounded(row, *inner))
    if names == ("struct", "struct"):
        types = {row.name: row.dataType for row in before}
        found = [
            _rounded(column.getField(row.name), types[row.name], row.dataType)
            for row in after
            if row.name in types
        ]
        rows = [row for row in found if row is not None]
        return functools.reduce(operator.or_, rows) if rows else None
    return None


# -- what is not loaded yet -----------------------------------------------------------


def _topic(
    spark: SparkSession, state: State, kafka: Mapping[str, str], lake: DataFrame
) -> DataFrame:
    from pyspark.sql import functions as f

    with ClientOptions.parse(kafka).cluster() as cluster:
        views = cluster.metadata({tp.topic for tp in state.covered}).topics
    for name, view in views.items():
        if view.error in TOPIC_GONE:
            raise LakeError(
                f"there is no topic {name!r} any more; what was loaded can be read without live"
            )
        check_topic(view)
        if state.topics.get(name, uuid_text(view.topic_id)) != uuid_text(view.topic_id):
            raise LakeError(
                f"topic {name!r} was deleted and created again since it was loaded, or it is "
                "another cluster's: lake and topic do not belong together"
            )
    # New partitions are read from their start (-2), as the next load would.
    starts = {
        name: {
            str(row.index): _or(state.end(TopicPartition(name, row.index)), -2)
            for row in view.partitions
        }
        for name, view in views.items()
    }
    headers = Layout(**state.layout).headers
    frame = (
        spark.read.format("tidelog")
        .options(**kafka)
        .option("subscribe", ",".join(sorted(views)))
        .option("startingOffsets", json.dumps(starts))
        .option("includeHeaders", str(headers).lower())
        .load()
    )
    frame = with_values(frame, state)
    parts = Layout(**state.layout).parts()
    types = {field.name: field.dataType for field in lake.schema}
    frame = _with_times(frame, parts)
    for name, column in renamed_fields(parts, frame.columns).items():
        frame = frame.withColumn(name, f.col(quote(column)))
    folders = {
        part.name: f.col(f"{BY_PREFIX}{i}") if part.function else f.expr(part.expression)
        for i, part in enumerate(parts)
    }
    frame = frame.select(
        *[f.col(quote(name)) for name in frame.columns if name not in folders],
        *[column.cast(types[name]).alias(name) for name, column in folders.items()],
    )
    return lake.unionByName(frame.select(*[_named(name, types) for name in lake.columns]))


def _with_times(frame: DataFrame, parts: Sequence[Part]) -> DataFrame:
    """And the dates and hours of the folders, as a load works them out: Spark would take them in
    the session's time zone, and fail where a text is no time."""
    timed = {f"{BY_PREFIX}{i}": part for i, part in enumerate(parts) if part.function}
    if not timed:
        return frame
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    wanted = StructType(list(frame.schema.fields))
    for name, part in timed.items():
        wanted = wanted.add(name, _folder_type(part))
    types = [to_arrow_type(wanted[name].dataType) for name in timed]

    def work_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [
                pc.cast(folder_column(part, parts, batch), kind)
                for part, kind in zip(timed.values(), types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *columns], [*batch.schema.names, *timed]
            )

    return map_in_arrow(frame, work_out, wanted)


def _named(name: str, types: dict[str, Any]) -> Column:
    from pyspark.sql import functions as f

    return f.col(quote(name)).cast(types[name]).alias(name)


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def with_values(frame: DataFrame, state: State) -> DataFrame:
    """Raw records as a load would write them, with the columns that the destination has now.

    What does not decode is left out: the load will make a dead letter of it.
    """
    layout = Layout(**state.layout)
    if layout.value == "bytes":
        return frame
    from pyspark.sql.pandas.types import from_arrow_schema

    names = {field.name for field in from_spark_json(state.schema)}
    decoder = ValueDecoder(
        layout.value,
        fixed=layout.schema is not None,
        taken=frozenset(part.name.lower() for part in layout.parts()),
        separator=layout.separator,
    )
    raw = [pa.field(name, TYPES[name]) for name in frame.columns if name != "value"]
    if layout.value == "text":
        wanted = pa.schema([pa.field("value", pa.string()), *raw])
    else:
        decoder.known(from_spark_json(state.schema), whole_of(state.schema))
        columns = [pa.field(decoder.column_name(row.name), row.type) for row in decoder.fields]
        assert {field.name for field in columns} <= names
        wanted = pa.schema([*columns, *raw])

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = decoder.decode(batch).batch
            arrays = [_as(rows.column(field.name), field.type) for field in wanted]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    return map_in_arrow(frame, decode, from_arrow_schema(wanted))


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column that has grown since the last load: null where a value does not fit yet."""
    if column.type == kind:
        return column
    if pa.types.is_floating(column.type) and pa.types.is_integer(kind):
        # Up to there each double is one whole number.
        near = pc.less(pc.abs(column), EXACT)
        whole = pc.cast(pc.if_else(near, column, None), kind, safe=False)
        return pc.if_else(pc.equal(pc.cast(whole, column.type), column), whole, None)
    return conform_any(column, kind)
