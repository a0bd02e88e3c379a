"""The columns of a topic in SQL: fields of its JSON values.

Kafka does not know them.  They are inferred from a sample of records, at both ends of the
partitions, or named by the user as in SQL.  A field that no record of the sample has
is no column, so messages about columns say how much was looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.offsets import Extent, Position
from tidelog.client.partitions import extents, resolve_all
from tidelog.clock import SystemClock
from tidelog.pipeline.json_types import fields_of, read_value, type_text
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import Columns, OffsetRange
from tidelog.pipeline.reading import read_range
from tidelog.pipeline.sql_text import METADATA, QueryError
from tidelog.text import plural
from tidelog.topic_partition import TopicPartition

SAMPLE = 10_000  # records, and
_SAMPLE_BYTES = 16 << 20  # as much as is read in a moment
_SAMPLE_PARTITIONS = 50


@dataclass(slots=True)
class Table:
    """What is known of a topic's values."""

    topic: str
    fields: dict[str, str] = field(default_factory=dict)  # name -> type
    looked_at: int = 0  # records
    there: int = 0  # offsets; there may be less records
    whole: bool = True  # everything was looked at
    notes: list[str] = field(default_factory=list)  # what a user should know

    def seen(self) -> str:
        return f"{plural(self.looked_at, 'record')} of about {self.there:,}"


def named(topic: str, text: str) -> Table:
    """A table whose columns the user has named: ``name type, ...``."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(text)
    except (PySparkException, AssertionError, ValueError):
        found = StructType([])
    if not found.fields:
        raise QueryError(f"--schema {text}: write it as in SQL, 'user string, n bigint'")
    for name in found.names:
        if name.lower() in METADATA:
            raise QueryError(f"--schema {text}: a column {name} is there in any case")
    return Table(topic, {row.name: type_text(row.dataType) for row in found})


def inferred(
    client: ClientOptions, topic: str, start: Position, until: Position, sample: int | None
) -> Table:
    """A table with the fields of some records, or of all; none, if most are no JSON objects."""
    table = Table(topic)
    count = others = 0

    def objects() -> Iterator[dict[str, Any]]:
        nonlocal count, others
        for value in _values(client, table, start, until, sample):
            try:
                found = read_value(value)
            except ValueError:
                found = None
            if isinstance(found, dict):
                count += 1
                yield found
            else:
                others += 1

    fields = fields_of(objects())
    if not count and not others:
        table.notes.append(f"{topic}: there are no records, so only columns such as _key")
    if not count or others > count:
        return table
    if others:
        table.notes.append(
            f"{topic}: {others} of {plural(others + count, 'sampled record')} are no "
            "JSON objects; their fields are null, _value has the text"
        )
    known: set[str] = set()
    for name, kind in fields.items():
        if name in METADATA:
            table.notes.append(f"{topic}: the field {name} of the values is in _value only")
        elif name.lower() in known:
            table.notes.append(
                f"{topic}: the field {name} differs from another by case only; it is in _value only"
            )
        else:
            table.fields[name] = kind
            known.add(name.lower())
    return table


def _values(
    client: ClientOptions, table: Table, start: Position, until: Position, sample: int | None
) -> Iterator[bytes]:
    """The values of the sample; without nulls.  Counts in the table what it looks at."""
    size = 0
    for part in _sample(client, table, start, until, sample):
        for batch in read_range(client, part, Columns(("value",)), on_loss=_skip, on_corrupt=_skip):
            table.looked_at += batch.num_rows
            for value in batch.column(0).to_pylist():
                if value is not None:
                    size += len(value)
                    yield value
            if size > _SAMPLE_BYTES and sample == SAMPLE:
                table.whole = False
                return


def _sample(
    client: ClientOptions, table: Table, start: Position, until: Position, sample: int | None
) -> list[OffsetRange]:
    with client.cluster() as cluster:
        view = cluster.topics([table.topic])[table.topic]
        tps = [TopicPartition(table.topic, part.index) for part in view.partitions]
        logs = extents(cluster, tps)
        now = SystemClock().now_ms()
        starts = resolve_all(cluster, start, logs, now)
        ends = resolve_all(cluster, until, logs, now)
    spans = {}
    for tp, log in logs.items():
        span = Extent(max(starts[tp], log.start), min(ends[tp], log.end))
        if span.start < span.end:
            spans[tp] = span
    table.there = sum(span.end - span.start for span in spans.values())
    chosen = sorted(spans, key=lambda tp: spans[tp].start - spans[tp].end)
    if sample is not None:
        chosen = chosen[:_SAMPLE_PARTITIONS]
        each = max(1, sample // (2 * max(1, len(chosen))))
    ranges = []
    for tp in chosen:
        first, last = spans[tp]
        cuts = [(first, last)]
        if sample is not None and last - first > 2 * each:
            cuts = [(first, first + each), (last - each, last)]
        ranges += [OffsetRange(*tp, *cut, view.topic_id) for cut in cuts]
    table.whole = sum(map(len, ranges)) == table.there
    return ranges


def _skip(_: Exception) -> None:
    """A sample may have holes."""
