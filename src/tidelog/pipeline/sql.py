"""SQL over topics: each topic that a query names is a table.

    frame = sql.query(spark, "select keyword, count(*) from searches group by keyword", bootstrap)

The columns of a topic are the fields of its values, if these are JSON objects (found out from a
sample of records at both ends of each partition), and always ``_key``, ``_value`` (both as text;
``cast(_value as binary)`` has the bytes as they were), ``_headers``, ``_partition``, ``_offset``
and ``_timestamp``.  A field that has the name of one of these is in ``_value`` only.  A value
that is not what the sample made expect gives nulls; ``_value`` has it.

Which topics a query names, Spark says: it fails on the first table that it does not know, that
table is made, and so on until it knows them all.  Topics with dashes and dots may stand after
``from`` and ``join`` as they are, elsewhere in backquotes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.functions import col, date_format, expr, from_json, struct, to_json

from tidelog.client.cluster import TopicPartition, check_topic
from tidelog.client.offsets import END, START, Extent, Position
from tidelog.client.partitions import extents, resolve_all
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.pipeline.json_types import fields_of, quote, schema_text
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import Columns, OffsetRange
from tidelog.pipeline.reading import read_range
from tidelog.text import plural

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Name here -> the source's column, and what becomes of it.
METADATA = {
    "_key": ("key", "cast(key as string)"),
    "_partition": ("partition", "partition"),
    "_offset": ("offset", "offset"),
    "_timestamp": ("timestamp", "timestamp"),
    "_headers": ("headers", "headers"),
    "_value": ("value", "cast(value as string)"),
}
_READS = ("select", "with", "from", "values", "table", "describe", "desc", "explain", "show", "(")
_SAMPLE_RECORDS = 1000
_SAMPLE_PARTITIONS = 50
_SAMPLE_BYTES = 16 << 20
_NOT_FOUND = ("TABLE_OR_VIEW_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE")


class QueryError(Exception):
    """What is wrong with a query, in a sentence or two."""


@dataclass(slots=True)
class Topics:
    """The topics of a cluster as tables of a session."""

    spark: SparkSession
    client: ClientOptions
    start: Position = START
    until: Position = END
    notes: list[str] = field(default_factory=list)  # what a user should know of the tables

    def query(self, text: str) -> DataFrame:
        """The result of a query; Spark computes it when it is asked for."""
        _check_that_it_reads(text)
        with self.client.cluster() as cluster:
            names = [
                topic.name for topic in cluster.metadata().topics.values() if not topic.internal
            ]
        text = quote_topics(text, names)
        tables: dict[str, dict[str, str]] = {}
        while True:
            try:
                return self.spark.sql(text)
            except AnalysisException as error:
                table = _missing_table(error)
                if error.getCondition() == "INVALID_IDENTIFIER":
                    for name in dashed_names(text):
                        raise no_topic(name, names) from error
                if table is None or table in tables:
                    raise self._better(text, tables, error) from error
                topic = self._topic(table, names)
                tables[table] = self._fields(topic)
                self._make(topic, tables[table], text)

    def _better(
        self, text: str, tables: Mapping[str, dict[str, str]], error: AnalysisException
    ) -> QueryError:
        """What is wrong, with every column in view: Spark names those that are spelt nearly so."""
        for table, fields in tables.items():
            self._make(_unquoted(table), fields, None)
        try:
            self.spark.sql(text)
        except AnalysisException as again:
            error = again
        return QueryError(reason(error))

    def _topic(self, table: str, names: Collection[str]) -> str:
        topic = _unquoted(table)
        if topic not in names:
            raise no_topic(topic, names)
        if "`.`" in table:
            raise QueryError(f"write the topic {topic} in backquotes: `{topic}`")
        if sum(row.lower() == topic.lower() for row in names) > 1:
            self.spark.conf.set("spark.sql.caseSensitive", "true")
        return topic

    def _make(self, topic: str, fields: dict[str, str], text: str | None) -> None:
        """A table with the columns that this query can need."""
        self._frame(topic, fields, text).createOrReplaceTempView(quote(topic))

    def _frame(self, topic: str, fields: dict[str, str], text: str | None) -> DataFrame:
        metadata, chosen = (list(METADATA), list(fields)) if text is None else needed(text, fields)
        columns = [METADATA[name][0] for name in metadata]
        if chosen:
            columns.append("value")
        rows = (
            self.spark.read.format("tidelog")
            .options(**{f"kafka.{name}": value for name, value in self.client.settings})
            .option("subscribe", topic)
            .option("startingOffsets", str(self.start))
            .option("endingOffsets", str(self.until))
            .option("columns", ",".join(dict.fromkeys(columns)) or "offset")
            .load()
        )
        result = [expr(METADATA[name][1]).alias(name) for name in metadata]
        if not chosen:
            return rows.select(*(result or [expr("offset").alias("_offset")]))
        schema = schema_text({name: fields[name] for name in chosen})
        parsed = from_json(expr("cast(value as string)"), schema)
        return rows.select(parsed.alias("__json"), *result).select(
            *(expr(f"__json.{quote(name)}").alias(name) for name in chosen), *metadata
        )

    def _fields(self, topic: str) -> dict[str, str]:
        """The JSON fields of a topic's values; none, if most of them are no JSON objects."""
        objects, others = [], 0
        for value in self._sample(topic):
            try:
                found = json.loads(value)
            except ValueError:
                found = None
            if isinstance(found, dict):
                objects.append(found)
            else:
                others += 1
        if not objects and not others:
            self.notes.append(f"{topic}: there are no records, so only columns such as _key")
        if not objects or others > len(objects):
            return {}
        if others:
            self.notes.append(
                f"{topic}: {others} of {plural(others + len(objects), 'sampled record')} are no "
                "JSON objects; their fields are null, _value has the text"
            )
        known: set[str] = set()
        fields = {}
        for name, kind in fields_of(objects).items():
            if name in METADATA:
                self.notes.append(f"{topic}: the field {name} of the values is in _value only")
            elif name.lower() in known:
                self.notes.append(
                    f"{topic}: the field {name} differs from another by case only; it is in "
                    "_value only"
                )
            else:
                fields[name] = kind
                known.add(name.lower())
        return fields

    def _sample(self, topic: str) -> Iterable[bytes]:
        """Some values from both ends of the partitions; nulls say nothing."""
        with self.client.cluster() as cluster:
            view = cluster.topics([topic])[topic]
            check_topic(view)
            places = [TopicPartition(topic, part.index) for part in view.partitions]
            logs = extents(cluster, places)
            now = SystemClock().now_ms()
            starts = resolve_all(cluster, self.start, logs, now)
            ends = resolve_all(cluster, self.until, logs, now)
        spans = {
            place: Extent(max(starts[place], log.start), min(ends[place], log.end))
            for place, log in logs.items()
        }
        largest = sorted(spans, key=lambda place: spans[place].start - spans[place].end)
        chosen = [row for row in largest[:_SAMPLE_PARTITIONS] if spans[row].start < spans[row].end]
        each = _SAMPLE_RECORDS // (2 * max(1, len(chosen)))
        size = 0
        for place in chosen:
            start, end = spans[place]
            cuts = [(start, end)]
            if end - start > 2 * each:
                cuts = [(start, start + each), (end - each, end)]
            for first, last in cuts:
                part = OffsetRange(*place, first, last, view.topic_id)
                for batch in read_range(
                    self.client, part, Columns(("value",)), on_loss=_skip, on_corrupt=_skip
                ):
                    for value in batch.column(0).to_pylist():
                        if value is not None:
                            size += len(value)
                            yield value
                    if size > _SAMPLE_BYTES:
                        return


def query(
    spark: SparkSession,
    text: str,
    bootstrap: str,
    *,
    start: Position = START,
    until: Position = END,
) -> DataFrame:
    """The result of a query over the topics of a cluster."""
    client = ClientOptions.parse({"kafka.bootstrap.servers": bootstrap})
    # Tables of another query, with other offsets, must not be seen.
    return Topics(spark.newSession(), client, start, until).query(text)


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


def _skip(_: Exception) -> None:
    """A sample may have holes."""


# -- the text of a query (pure) -------------------------------------------------

_SKIPPED = r"'(?:[^'\\]|\\.)*' | \"(?:[^\"\\]|\\.)*\" | `[^`]*` | --[^\n]* | /\*.*?\*/"
_TABLE = re.compile(
    rf"({_SKIPPED}) | (\b(?:from|join|table|describe|desc)\s+)([A-Za-z0-9._-]+)",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_COUNT = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_IMPLICIT = re.compile(
    r"\* | \|> | `` | \b(?:natural|table)\b | \(\s*from\b"
    r"| \b(?:all|distinct|union|intersect|except|minus)\s+from\b | ^(?!select|with)",
    re.VERBOSE,
)


def quote_topics(text: str, names: Collection[str]) -> str:
    """Backquotes around topics whose names SQL would not take as they are."""

    def quoted(match: re.Match[str]) -> str:
        skipped, before, name = match.groups()
        if skipped or name not in names or re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            return match[0]
        return f"{before}`{name}`"

    return _TABLE.sub(quoted, text)


def dashed_names(text: str) -> list[str]:
    """Names with dashes that stand where a table stands, without quotes."""
    found = [match[3] for match in _TABLE.finditer(text) if match[3]]
    return [name for name in found if "-" in name]


def needed(text: str, fields: Iterable[str]) -> tuple[list[str], list[str]]:
    """The metadata and the fields that a query can mean: what it does not name, it does not need.

    If a column can be meant without being named (``*`` and its like), all are needed.
    """
    lower = _COUNT.sub("", text).lower().strip()
    if _IMPLICIT.search(lower):
        return list(METADATA), list(fields)
    return (
        [name for name in METADATA if name in lower],
        [name for name in fields if name.lower() in lower],
    )


def _check_that_it_reads(text: str) -> None:
    bare = re.sub(r"^(?:\s|--[^\n]*\n|/\*.*?\*/)+", "", text, flags=re.DOTALL).lower()
    if not bare:
        raise QueryError("the query is empty")
    if not bare.startswith(_READS):
        word = bare.split()[0].upper()
        raise QueryError(
            f"{word}: topics can only be read here; begin with {', '.join(_READS[:5])}"
        )


def _missing_table(error: AnalysisException) -> str | None:
    condition = error.getCondition() or ""
    if condition not in _NOT_FOUND:
        return None
    parameters = error.getMessageParameters() or {}
    return parameters.get("relationName") or parameters.get("identifier")


def _unquoted(table: str) -> str:
    """The topic that Spark calls `` `a` `` or `` `a`.`b` ``."""
    parts = re.findall(r"`((?:[^`]|``)*)`", table)
    return ".".join(part.replace("``", "`") for part in parts)


def no_topic(name: str, names: Collection[str]) -> ApiError:
    """There is no such topic; perhaps there is one that is spelt nearly so."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not close:
        lower = {row.lower(): row for row in names}
        close = [lower[row] for row in difflib.get_close_matches(name.lower(), lower, n=1)]
    hint = f"did you mean {close[0]!r}?" if close else "see `tidelog topics list`"
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}; {hint}")


def reason(error: Exception) -> str:
    """What Spark says, without plans, stacks and codes."""
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:  # of a Python worker: its last words
        said = re.findall(r"^(?:\w+\.)*[A-Z]\w*: (.+)$", text, re.MULTILINE)
        text = said[-1] if said else text
    text = text.removeprefix("An error occurred while calling ").split("\n\tat ")[0]
    text = re.split(r";\n(?='|[A-Z+])", text)[0]  # the plan of the query
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text)
    text = re.sub(r" ?SQLSTATE: \w+", "", text)
    text = re.sub(r"; line (\d+) pos (\d+)$", r" (line \1, pos \2)", text)
    text = re.sub(r" ?Set failOnDataLoss to .*$", "", text)
    return text.strip()
