"""``tidelog consume``: records from anywhere to anywhere.

It reads with our own client: raw batches, every codec, exact offsets.  Of librdkafka's
properties it therefore takes only those in ``_PROPERTIES``.  With ``--group`` it is a member
of a consumer group instead, see ``consume_group.py``.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from tidelog.client.cluster import Cluster, TopicView
from tidelog.client.fetcher import Fetcher
from tidelog.client.offsets import END, FORMS, START, Extent, Kind, Position, Range
from tidelog.client.partitions import extents, resolve_all
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.tools.formats import ENCODING_ALIASES, ENCODINGS, Formatter, formatter
from tidelog.tools.options import (
    Choice,
    bootstrap_option,
    connect,
    offset_or_range_value,
    offset_value,
    unescape,
)
from tidelog.tools.output import note
from tidelog.tools.pairs import pairs
from tidelog.tools.reading import Limits, Reader
from tidelog.topic_partition import TopicPartition

if TYPE_CHECKING:
    from tidelog.tools.consume_group import GroupReader

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
    help="Be a member of this consumer group: go on where it has stopped, and commit what was "
    "shown.  --from start or end is then for partitions of which nothing is committed.",
)
@click.option("--from-beginning", is_flag=True, help="The same as --from start.")
@click.option("--until", callback=offset_value, metavar="OFFSET", help="Where to stop (exclusive).")
@click.option("-e", "--exit", "at_end", is_flag=True, help="Stop at the end as it is now.")
@click.option("-n", "--max-messages", type=click.IntRange(1), help="Stop after so many.")
@click.option(
    "--timeout",
    "--idle-timeout",
    type=click.IntRange(0),
    metavar="MS",
    help="Stop when nothing came for so long.",
)
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only these."
)
@click.option("--include", "--whitelist", metavar="REGEX", help="All topics of such names.")
@click.option("--exclude", "--blacklist", metavar="REGEX", help="No topics of such names.")
@click.option(
    "--format",
    "template",
    metavar="FORMAT",
    help="value, key, kv, headers, offset, timestamp, json, or a template such as "
    "'{topic}-{partition}@{offset} {time} {key} {value} {headers}'.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--key-separator", metavar="SEP", help="Keys too, and SEP (default: a tab).")
@click.option("--null", default="null", show_default=True, help="How null is shown.")
@click.option(
    "--encoding",
    type=Choice(ENCODINGS, ENCODING_ALIASES),
    default="utf-8",
    show_default=True,
    help="How keys and values become text; raw writes bytes as they are, utf8 and text are utf-8.",
)
@click.option("--skip-bad", is_flag=True, help="Skip what cannot be decoded or shown.")
@click.option(
    "--retry",
    type=click.FloatRange(0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a lost broker.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help=f"One of {', '.join(_PROPERTIES)}; with --group any librdkafka setting.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not say how many at the end.")
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
    properties: tuple[str, ...],
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
    if group is not None:
        if not topics or partitions or until is not None or first not in (START, END):
            raise click.UsageError(
                "with --group name topics, and leave out -p, --until and any --from but start and "
                "end: the group knows where it is (`tidelog groups reset` moves it)"
            )
        idle = None if timeout is None else timeout / 1000
        limits = Limits(None, max_messages, idle)
        settings = {"auto.offset.reset": "earliest" if first == START else "latest"}
        settings |= pairs(properties, "--property")
        _consume_as_member(
            bootstrap, group, topics, settings, write, limits, at_end, skip_bad, quiet
        )
        return
    chooser = _Chooser(topics, include, exclude)
    options = _fetch_options(properties)
    with connect(bootstrap) as cluster:
        chosen = chooser.choose(cluster)
        if not chosen and (last is not None or partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic matches {chooser}")
        if not chosen:
            note(f"no topic matches {chooser} yet; waiting for one")
        rows = _partitions(chosen, partitions)
        logs = extents(cluster, rows)
        begins, ends = _resolve(cluster, logs, first, last)
        follows = last is None and not partitions
        reader = Reader(
            cluster,
            Fetcher(cluster, **options),
            write,
            sys.stdout.buffer,
            Limits(ends, max_messages, None if timeout is None else timeout / 1000, retry),
            skip_bad=skip_bad,
            choose=(lambda: chooser.present(cluster)) if follows else None,
            waits=bool(include or exclude),
        )
        for row, offset in begins.items():
            reader.assign(row, offset)
        _run(reader, quiet)


def _run(reader: Reader | GroupReader, quiet: bool) -> None:
    """Read, and say how much at the end."""
    try:
        reader.run()
    except BrokenPipeError:
        quiet = True
        raise
    finally:
        if not quiet:
            skipped = f", {reader.skipped:,} skipped" if reader.skipped else ""
            note(f"{plural(reader.count, 'record')}{skipped}")


def _consume_as_member(
    bootstrap: str,
    group: str,
    topics: tuple[str, ...],
    properties: dict[str, str],
    write: Formatter,
    limits: Limits,
    at_end: bool,
    skip_bad: bool,
    quiet: bool,
) -> None:
    from tidelog.tools.consume_group import GroupReader

    with connect(bootstrap) as cluster:
        chosen = list(cluster.topics(topics).values())
        if at_end:
            logs = extents(cluster, _partitions(chosen, ()))
            limits.until = {row: log.end for row, log in logs.items()}
    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": "tidelog-consume",
        "group.id": group,
        **properties,
    }
    reader = GroupReader(settings, topics, write, sys.stdout.buffer, limits, skip_bad=skip_bad)
    _run(reader, quiet)


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
    if first.kind is Kind.ABSOLUTE:
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


def _fetch_options(properties: tuple[str, ...]) -> dict[str, Any]:
    options: dict[str, int] = {}
    for name, value in pairs(properties, "--property").items():
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
