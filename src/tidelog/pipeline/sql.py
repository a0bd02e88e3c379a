"""SQL over topics: each topic that a query names is a table.

    frame = sql.query(spark, "select keyword, count(*) from searches group by keyword", bootstrap)

The columns of a topic are the fields of its values, if these are JSON objects (inferred from a
sample of records at both ends of each partition), and always ``_key``, ``_value`` (both as text;
``cast(_value as binary)`` has the bytes as they were), ``_headers``, ``_partition``, ``_offset``
and ``_timestamp``.  A field that has the name of one of these is in ``_value`` only.  A value
that is not what the sample made expect gives nulls; ``_value`` has it.

Which topics a query names is known from Spark: it fails on the first table that it does not know,
that table is made, and so on until it knows them all.  Topics with dashes and dots may stand after
``from`` and ``join`` as they are, elsewhere in backquotes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.functions import col, date_format, expr, from_json, struct, to_json

from tidelog.client.cluster import no_topic
from tidelog.client.offsets import END, START, Position
from tidelog.pipeline.json_types import quote, schema_text
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.sql_columns import SAMPLE, Table, inferred, named
from tidelog.pipeline.sql_text import (
    METADATA,
    QueryError,
    check,
    dashed_names,
    needed,
    quote_topics,
    reason,
    unquoted,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_NO_TABLE = ("TABLE_OR_VIEW_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE")
_NO_COLUMN = ("UNRESOLVED_COLUMN", "UNRESOLVED_FIELD", "FIELD_NOT_FOUND")


@dataclass(slots=True)
class TopicTables:
    """The topics of a cluster as tables of a session."""

    spark: SparkSession
    client: ClientOptions
    start: Position = START
    until: Position = END
    sample: int | None = SAMPLE  # columns are inferred from so many records; None: all
    schemas: Mapping[str, str] = field(default_factory=dict)  # or these do, by topic; "": any
    notes: list[str] = field(default_factory=list)  # what a user should know of the tables

    def query(self, text: str) -> DataFrame:
        """The result of a query; Spark computes it when it is asked for."""
        with self.client.cluster() as cluster:
            names = cluster.topic_names()
        check(text, names)
        for topic in self.schemas:
            if topic and topic not in names:
                raise no_topic(topic, names)
        text = quote_topics(text, names)
        tables: dict[str, Table] = {}
        while True:
            try:
                return self.spark.sql(text)
            except AnalysisException as error:
                missing = _missing_table(error)
                if error.getCondition() == "INVALID_IDENTIFIER":
                    for name in dashed_names(text):
                        raise no_topic(name, names) from error
                if missing is None or missing in tables:
                    raise self._better(text, tables.values(), error) from error
                table = self._table(self._topic(missing, names))
                tables[missing] = table
                self._make(table, text)

    def _better(self, text: str, tables: Collection[Table], error: AnalysisException) -> QueryError:
        """The error with every column in view: Spark suggests those that are spelt nearly so."""
        for table in tables:
            self._make(table, None)
        try:
            self.spark.sql(text)
        except AnalysisException as again:
            error = again
        message = reason(error)
        if (error.getCondition() or "").startswith(_NO_COLUMN):
            for table in tables:
                if not table.whole:
                    message += (
                        f"\n{table.topic}: the columns are those of {table.seen()}; --sample all "
                        f"looks at all of them, --schema '{table.topic}=name type, ...' names them"
                    )
        return QueryError(message)

    def _topic(self, table: str, names: Collection[str]) -> str:
        topic = unquoted(table)
        if topic not in names:
            raise no_topic(topic, names)
        if "`.`" in table:
            raise QueryError(f"write the topic {topic} in backquotes: `{topic}`")
        if sum(row.lower() == topic.lower() for row in names) > 1:
            self.spark.conf.set("spark.sql.caseSensitive", "true")
        return topic

    def _table(self, topic: str) -> Table:
        schema = self.schemas.get(topic) or self.schemas.get("")
        if schema is not None:
            return named(topic, schema)
        return inferred(self.client, topic, self.start, self.until, self.sample)

    def _make(self, table: Table, text: str | None) -> None:
        """A table with the columns that this query can need; without a query, all."""
        fields = table.fields
        metadata, chosen = (list(METADATA), list(fields)) if text is None else needed(text, fields)
        if text is not None:
            self.notes += table.notes
            if chosen and not table.whole:
                self.notes.append(
                    f"{table.topic}: the columns are those of {table.seen()} (--sample, --schema)"
                )
        self._frame(table, metadata, chosen).createOrReplaceTempView(quote(table.topic))

    def _frame(self, table: Table, metadata: list[str], chosen: list[str]) -> DataFrame:
        columns = [METADATA[name][0] for name in metadata]
        if chosen:
            columns.append("value")
        rows = (
            self.spark.read.format("tidelog")
            .options(**{f"kafka.{name}": value for name, value in self.client.settings})
            .option("subscribe", table.topic)
            .option("startingOffsets", str(self.start))
            .option("endingOffsets", str(self.until))
            .option("columns", ",".join(dict.fromkeys(columns)) or "offset")
            .load()
        )
        result = [expr(METADATA[name][1]).alias(name) for name in metadata]
        if not chosen:
            return rows.select(*(result or [expr("offset").alias("_offset")]))
        schema = schema_text({name: table.fields[name] for name in chosen})
        parsed = from_json(expr("cast(value as string)"), schema)
        return rows.select(parsed.alias("__json"), *result).select(
            *(expr(f"__json.{quote(name)}").alias(name) for name in chosen), *metadata
        )


def _missing_table(error: AnalysisException) -> str | None:
    condition = error.getCondition() or ""
    if condition not in _NO_TABLE:
        return None
    parameters = error.getMessageParameters() or {}
    return parameters.get("relationName") or parameters.get("identifier")


def query(
    spark: SparkSession,
    text: str,
    bootstrap: str,
    *,
    start: Position = START,
    until: Position = END,
    sample: int | None = SAMPLE,
    schemas: Mapping[str, str] | None = None,
) -> DataFrame:
    """The result of a query over the topics of a cluster.

    ``sample``   from how many records of a topic its columns are inferred; None: from all
    ``schemas``  the columns of JSON values, by topic: ``{"searches": "user string, ms int"}``
    """
    client = ClientOptions.parse({"kafka.bootstrap.servers": bootstrap})
    # Tables of another query, with other offsets, must not be seen.
    topics = TopicTables(spark.newSession(), client, start, until, sample, schemas or {})
    return topics.query(text)


# -- results --------------------------------------------------------------------

_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSS"


def as_text(frame: DataFrame) -> DataFrame:
    """Every column as text, nulls as they are."""
    # Two columns of a result may have one name.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    return numbered.select(*(_as_text(name, kind) for name, kind in numbered.dtypes))


def _as_text(name: str, kind: str) -> Column:
    column = col(name)
    if kind.startswith(("struct", "array", "map")):
        return to_json(column, {"timestampFormat": f"{_TIME}XXX"})
    if kind == "timestamp":
        return date_format(column, f"{_TIME}XXX")
    if kind == "binary":
        return expr(f"if(is_valid_utf8({name}), cast({name} as string), base64({name}))")
    return column.cast("string")


def as_json_rows(frame: DataFrame) -> DataFrame:
    """One column: each row as a JSON object."""
    options = {"ignoreNullFields": "false", "timestampFormat": f"{_TIME}XXX"}
    count = range(len(frame.columns))
    fields = [
        col(f"c{number}").alias(name) for number, name in zip(count, frame.columns, strict=True)
    ]
    return frame.toDF(*(f"c{number}" for number in count)).select(
        to_json(struct(*fields), options).alias("json")
    )
