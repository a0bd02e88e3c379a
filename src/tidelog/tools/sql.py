"""``tidelog sql``: queries over topics, computed by Spark.

A person gets a table of the first rows; ``--json`` (a list with an object for each row, one on
a line) and ``--csv`` print all of them, as they come.  Times are in UTC; bytes are base64 in
JSON, and elsewhere too unless they are text; structures in a cell are JSON.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidelog.client.offsets import END, FORMS, START, Position, Range
from tidelog.pipeline import spark_failures
from tidelog.pipeline.sql_text import QueryError, check, reason
from tidelog.text import plural
from tidelog.tools.options import (
    bootstrap_option,
    connect,
    json_option,
    offset_or_range_value,
    offset_value,
)
from tidelog.tools.output import note, show_table
from tidelog.tools.pairs import pairs_option
from tidelog.tools.spark import interruptible, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LONGEST_CELL = 200
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def _sample(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == "all":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r}: write how many records, or all", ctx, param)
    return int(value)


@click.command()
@click.argument("query")
@click.option(
    "--from",
    "start",
    callback=offset_or_range_value,
    metavar="OFFSET",
    help=f"Where to begin: {FORMS}; or a range A:B.  Default: start.",
)
@click.option("--until", callback=offset_value, metavar="OFFSET", help="Where to stop (exclusive).")
@click.option(
    "-n",
    "--rows",
    default=50,
    show_default=True,
    type=click.IntRange(1),
    help="The number of rows to show.",
)
@click.option(
    "--sample",
    callback=_sample,
    default="10000",
    show_default=True,
    metavar="N|all",
    help="How many records of a topic are read to find its columns.",
)
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="[TOPIC=]DDL",
    help="Give the columns instead: 'searches=user string, ms int'.",
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--master", metavar="URL", help="A Spark cluster (default: this machine).")
@pairs_option("--conf", "settings", help="A Spark setting; repeatable.")
@bootstrap_option
def sql(
    query: str,
    start: Position | Range | None,
    until: Position | None,
    rows: int,
    sample: int | None,
    schemas: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    master: str | None,
    settings: dict[str, str],
    bootstrap: str,
) -> None:
    """Run an SQL QUERY over topics; - reads the query from standard input.

    Each topic is a table.  Its columns are the fields of JSON values, and _key, _value, _headers,
    _partition, _offset and _timestamp.

    \b
        tidelog sql 'select keyword, count(*) from searches group by keyword order by 2 desc'
        tidelog sql 'select * from search-events' --from @-10m
        tidelog sql 'describe searches'
        tidelog sql 'select _key, max(_offset) from searches group by 1' --csv > last.csv
    """
    if as_json and as_csv:
        raise click.UsageError("give --json or --csv, not both")
    first, last = _span(start, until)
    text = sys.stdin.read() if query == "-" else query
    named = _schemas(schemas)
    # A wrong address or topic is reported before Spark is started.
    with connect(bootstrap) as cluster, _failures():
        check(text, cluster.topic_names())
    # These take a second to import.
    from tidelog.pipeline.options import ClientOptions
    from tidelog.pipeline.progress import Line, of_jobs

    client = ClientOptions.parse({"kafka.bootstrap.servers": bootstrap})
    line = Line(enabled=not (as_json or as_csv) and sys.stderr.isatty())
    with interruptible(line) as stop:
        spark = start_spark("tidelog sql", line, stop, master=master, settings=settings)
        from tidelog.pipeline.sql import TopicTables, as_json_rows, as_text

        with _failures():
            line.show("looking at the topics")
            # A session of its own: tables of another query must not be seen.
            topics = TopicTables(spark.newSession(), client, first, last, sample, named)
            frame = topics.query(text)
            line.end()
            for remark in topics.notes:
                note(remark)
            if as_json:
                _show_json(as_json_rows(frame).toLocalIterator(prefetchPartitions=True))
            elif as_csv:
                _show_csv(frame.columns, as_text(frame).toLocalIterator(prefetchPartitions=True))
            else:
                with of_jobs(spark, line):
                    found = as_text(frame).limit(rows + 1).collect()
                _show_table(frame, found, rows)


def _schemas(values: tuple[str, ...]) -> dict[str, str]:
    """By topic; under an empty name those that hold for any."""
    result = {}
    for text in values:
        match = re.fullmatch(r"(?:([A-Za-z0-9._-]+)=)?(.*)", text.strip(), re.DOTALL)
        assert match is not None
        result[match[1] or ""] = match[2].strip()
    return result


def _span(start: Position | Range | None, until: Position | None) -> tuple[Position, Position]:
    if isinstance(start, Range):
        if until is not None:
            raise click.UsageError("a range has its own end: leave --until out")
        return start.first, start.last
    return start or START, until or END


@contextmanager
def _failures() -> Iterator[None]:
    """Spark's message, without the rest."""
    try:
        yield
    except QueryError as error:
        raise click.ClickException(str(error)) from None
    except Exception as error:
        why = spark_failures.reason(error)
        if why is not None:
            raise click.ClickException(why) from None
        if type(error).__module__.startswith(("py4j.", "pyspark.")):
            raise click.ClickException(reason(error)) from None
        raise


# -- output ---------------------------------------------------------------------


def _show_table(frame: DataFrame, found: list[Any], limit: int) -> None:
    cells = [[_cell(value) for value in row] for row in found[:limit]]
    numbers = {name for name, kind in frame.dtypes if kind.split("(")[0] in _NUMBERS}
    show_table(frame.columns, cells, right=numbers)
    if len(found) > limit:
        note(f"the first {plural(limit, 'row')}; -n shows more of them, --json and --csv all")
    else:
        note(plural(len(cells), "row"))


def _cell(text: str | None) -> str:
    if text is None:
        return "null"
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 3] + "..."


def _show_json(rows: Iterator[Any]) -> None:
    before = "["
    for (text,) in rows:
        click.echo(before + text, nl=False)
        before = ",\n "
    click.echo("]" if before != "[" else "[]")


def _show_csv(names: list[str], rows: Iterator[Any]) -> None:
    """As a spreadsheet takes it; null is empty, and an empty text is quoted."""
    click.echo(_csv_line(names))
    for row in rows:
        click.echo(_csv_line(row))


def _csv_line(values: Iterable[str | None]) -> str:
    return ",".join("" if value is None else _csv_cell(value) for value in values)


def _csv_cell(text: str) -> str:
    if text and not any(char in text for char in ',"\r\n'):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'
