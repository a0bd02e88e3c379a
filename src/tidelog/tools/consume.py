"""``tidelog consume``: records from anywhere to anywhere.

It reads with our own client (``consume_partitions.py``): raw batches, every codec, exact offsets.
Of librdkafka's properties it therefore takes only those in ``_PROPERTIES``.  With ``--group`` it
is a member of a consumer group (``consume_group.py``).  ``reading.py`` has the loop of both.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import click

from tidelog.client.cluster import Cluster, TopicView
from tidelog.client.fetcher import Fetcher
from tidelog.client.offsets import END, FORMS, START, Extent, Position, PositionKind, Range
from tidelog.client.partitions import extents, resolve_all
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.tools.consume_partitions import PartitionSource
from tidelog.tools.formats import ENCODING_ALIASES, ENCODINGS, formatter
from tidelog.tools.options import (
    Choice,
    bootstrap_option,
    connect,
    offset_or_range_value,
    offset_value,
    unescape,
)
from tidelog.tools.output import note
from tidelog.tools.pairs import pairs_option
from tidelog.tools.reading import ConsumeLoop, Source
from tidelog.topic_partition import TopicPartition

# Kafka's name, librdkafka's name, and what it is called here.
_PROPERTIES = {
    "fetch.min.bytes": "min_bytes",
    "fetch.max.bytes": "max_bytes",
    "fetch.max.wait.ms": "max_wait_ms",
    "fetch.wait.max.ms": "max_wait_ms",
    "max.partition.fetch.bytes": "partition_max_bytes",
    "fetch.message.max.bytes": "partition_max_bytes",
}


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--from",
    "--offset",
    "start",
    callback=offset_or_range_value,
    metavar="OFFSET",
    help=f"Where to begin: {FORMS}; or a range A:B.  Default: end "
    "(start, if --until or --exit says where to stop).",
)
@click.option(
    "--group",
    help="Join this consumer group: continue at its committed offsets, and commit what was shown. "
    " --from start or end then applies to partitions without a committed offset.",
)
@click.option("--from-beginning", is_flag=True, help="The same as --from start.")
@click.option("--until", callback=offset_value, metavar="OFFSET", help="Where to stop (exclusive).")
@click.option("-e", "--exit", "at_end", is_flag=True, help="Stop at the current end of the log.")
@click.option("-n", "--max-messages", type=click.IntRange(1), help="Stop after this many records.")
@click.option(
    "--timeout",
    "--idle-timeout",
    type=click.IntRange(0),
    metavar="MS",
    help="Stop after this long without a record.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option("--include", "--whitelist", metavar="REGEX", help="All topics whose names match.")
@click.option("--exclude", "--blacklist", metavar="REGEX", help="No topics whose names match.")
@click.option(
    "--format",
    "template",
    metavar="FORMAT",
    help="value, key, kv, headers, offset, timestamp, json, or a template such as "
    "'{topic}-{partition}@{offset} {time} {key} {value} {headers}'.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--key-separator", metavar="SEP", help="Print keys too, followed by SEP (default: a tab)."
)
@click.option("--null", default="null", show_default=True, help="How null is shown.")
@click.option(
    "--encoding",
    type=Choice(ENCODINGS, ENCODING_ALIASES),
    default="utf-8",
    show_default=True,
    help="How keys and values are shown; raw writes bytes as they are.",
)
@click.option("--skip-bad", is_flag=True, help="Skip records that cannot be decoded or shown.")
@click.option(
    "--retry",
    type=click.FloatRange(0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long to retry when a broker is lost.",
)
@pairs_option(
    "--property",
    "properties",
    help=f"One of {', '.join(_PROPERTIES)}; with --group any librdkafka setting.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print the number of records at the end.")
@bootstrap_option
def consume(
    topics: tuple[str, ...],
    start: Position | Range | None,
    group: str | None,
    from_beginning: bool,
    until: Position | None,
    at_end: bool,
    max_messages: int | None,
    timeout: int | None,
    partitions: tuple[int, ...],
    include: str | None,
    exclude: str | None,
    template: str | None,
    as_json: bool,
    key_separator: str | None,
    null: str,
    encoding: str,
    skip_bad: bool,
    retry: float,
    properties: dict[str, str],
    quiet: bool,
    bootstrap: str,
) -> None:
    """Read records from one or more TOPICs.

    \b
        tidelog consume clicks                              what comes from now on
        tidelog consume clicks --from start --exit          everything, then stop
        tidelog consume clicks --from @-2h --json           the last two hours, then go on
        tidelog consume clicks -p 0 --from 100:200          a hundred records
        tidelog consume --include 'click.*' --format offset
        tidelog consume clicks --group billing              share the work of a group
    """
    if bool(topics) == bool(include or exclude):
        raise click.UsageError("name topics, or choose them with --include or --exclude")
    first, last = _span(start, from_beginning, until, at_end)
    if as_json and template not in (None, "json"):
        raise click.UsageError("give --json or --format, not both")
    if template is None:
        template = "json" if as_json else ("kv" if key_separator is not None else "value")
    try:
        separator = unescape(key_separator) if key_separator is not None else "\t"
        write = formatter(template, separator, encoding, null)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from None
    if group is not None and (
        not topics or partitions or until is not None or first not in (START, END)
    ):
        raise click.UsageError(
            "with --group name topics, and leave out -p, --until and any --from but start and "
            "end: the group knows where it is (`tidelog groups reset` moves it)"
        )
    chooser = _Chooser(topics, include, exclude)
    fetch_options = _fetch_options(properties) if group is None else {}
    with connect(bootstrap) as cluster:
        source: Source
        if group is not None:
            settings = {
                "bootstrap.servers": bootstrap,
                "client.id": "tidelog-consume",
                "group.id": group,
                "auto.offset.reset": "earliest" if first == START else "latest",
                **properties,
            }
            source = _member(cluster, settings, topics, at_end)
        else:
            source = _partition_source(
                cluster, chooser, partitions, first, last, retry, fetch_options
            )
        reader = ConsumeLoop(
            source,
            write,
            sys.stdout.buffer,
            max_records=max_messages,
            idle_seconds=None if timeout is None else timeout / 1000,
            skip_bad=skip_bad,
        )
        try:
            reader.run()
        except BrokenPipeError:
            quiet = True
            raise
        finally:
            if not quiet:
                skipped = f", {reader.skipped:,} skipped" if reader.skipped else ""
                note(f"{plural(reader.count, 'record')}{skipped}")


def _member(
    cluster: Cluster, settings: dict[str, str], topics: tuple[str, ...], at_end: bool
) -> Source:
    from tidelog.tools.consume_group import GroupSource  # librdkafka, which is slow to import

    found = list(cluster.topics(topics).values())
    until = None
    if at_end:
        until = {row: log.end for row, log in extents(cluster, _partitions(found, ())).items()}
    return GroupSource(settings, topics, until)


def _partition_source(
    cluster: Cluster,
    chooser: _Chooser,
    numbers: tuple[int, ...],
    first: Position,
    last: Position | None,
    retry: float,
    fetch_options: dict[str, Any],
) -> Source:
    topics = chooser.choose(cluster)
    if not topics and (last is not None or numbers):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic matches {chooser}")
    if not topics:
        note(f"no topic matches {chooser} yet; waiting for one")
    logs = extents(cluster, _partitions(topics, numbers))
    begins, ends = _resolve(cluster, logs, first, last)
    source = PartitionSource(
        cluster,
        Fetcher(cluster, **fetch_options),
        ends,
        retry_seconds=retry,
        discover=None if last is not None or numbers else lambda: chooser.present(cluster),
        waits=chooser.by_pattern,
    )
    for partition, offset in begins.items():
        source.assign(partition, offset)
    return source


def _span(
    start: Position | Range | None, from_beginning: bool, until: Position | None, at_end: bool
) -> tuple[Position, Position | None]:
    """Where to begin and where to stop, if at all."""
    if from_beginning:
        if start is not None:
            raise click.UsageError("give --from or --from-beginning, not both")
        start = START
    if at_end and until is not None:
        raise click.UsageError("give --until or --exit, not both")
    if isinstance(start, Range):
        if until is not None:
            raise click.UsageError("a range has its own end: leave --until out")
        return start.first, start.last
    if at_end:
        until = END
    if start is None:
        # Up to somewhere in what is there already, one surely means from the start.
        start = END if until is None else START
    return start, until


class _Chooser:
    """Which topics are meant: by name, or by pattern."""

    def __init__(self, names: tuple[str, ...], include: str | None, exclude: str | None) -> None:
        self._names = names
        self._include = _pattern(include, "--include")
        self._exclude = _pattern(exclude, "--exclude")

    @property
    def by_pattern(self) -> bool:
        return not self._names

    def __str__(self) -> str:
        parts = [
            f"{option} {pattern.pattern!r}"
            for option, pattern in (("--include", self._include), ("--exclude", self._exclude))
            if pattern is not None
        ]
        return " ".join(parts)

    def choose(self, cluster: Cluster) -> list[TopicView]:
        """The topics; one that is named and is not there is an error."""
        if self._names:
            return list(cluster.topics(self._names).values())
        return self.present(cluster)

    def present(self, cluster: Cluster) -> list[TopicView]:
        """Those that are there."""
        return [
            topic
            for topic in cluster.metadata(self._names or None).topics.values()
            if not topic.internal
            and not topic.error
            and (self._include is None or self._include.fullmatch(topic.name))
            and (self._exclude is None or not self._exclude.fullmatch(topic.name))
        ]


def _pattern(text: str | None, option: str) -> re.Pattern[str] | None:
    """A regular expression for whole names; as in Kafka, a comma is an 'or'."""
    if text is None:
        return None
    try:
        return re.compile(re.sub(r",(?![^{}]*\})", "|", text))
    except re.error as error:
        message = f"{text!r} is not a regular expression: {error}"
        raise click.BadParameter(message, param_hint=option) from None


def _partitions(topics: list[TopicView], wanted: tuple[int, ...]) -> list[TopicPartition]:
    for topic in topics:
        for number in wanted:
            topic.leader_of(number)  # raises if there is no such partition
    return [
        TopicPartition(topic.name, part.index)
        for topic in topics
        for part in topic.partitions
        if not wanted or part.index in wanted
    ]


def _resolve(
    cluster: Cluster,
    logs: dict[TopicPartition, Extent],
    first: Position,
    last: Position | None,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int] | None]:
    """The first offset of each partition, and the one to stop before, if there is one."""
    now_ms = SystemClock().now_ms()
    begins = resolve_all(cluster, first, logs, now_ms)
    if first.kind is PositionKind.ABSOLUTE:
        for row, log in logs.items():
            if not log.start <= first.value <= log.end:
                there = f"has offsets {log.start} to {log.end - 1}"
                if log.start == log.end:
                    there = f"is empty, its next offset is {log.end}"
                message = f"{row} {there}: there is no {first.value}"
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
    if last is None:
        return begins, None
    time_ms = last.time_ms(now_ms)
    if time_ms is not None and time_ms > now_ms:
        raise click.UsageError("--until a time to come: use --timeout or -n to stop by itself")
    return begins, resolve_all(cluster, last, logs, now_ms)


def _fetch_options(properties: dict[str, str]) -> dict[str, int]:
    options: dict[str, int] = {}
    for name, value in properties.items():
        if name not in _PROPERTIES:
            raise click.BadParameter(
                f"{name}: this command takes {', '.join(_PROPERTIES)}", param_hint="--property"
            )
        try:
            options[_PROPERTIES[name]] = int(value)
        except ValueError:
            raise click.BadParameter(
                f"{name}={value}: it must be a whole number", param_hint="--property"
            ) from None
    return options
