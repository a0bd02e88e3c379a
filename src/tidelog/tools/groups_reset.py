"""``tidelog groups reset``: set the committed offsets of a group."""

from __future__ import annotations

from dataclasses import dataclass

import click

from tidelog.client import groups as asking
from tidelog.client.cluster import Cluster
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.groups import CommittedOffset, GroupView
from tidelog.client.offsets import FORMS, Extent, Position, PositionKind
from tidelog.client.partitions import extents, resolve_all
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.tools.options import bootstrap_option, connect, json_option, offset_value
from tidelog.tools.output import Column, complain, note, printable, show_json, show_rows
from tidelog.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class Reset:
    """An offset to set."""

    topic: str
    partition: int
    from_: int | None
    to: int
    start: int
    end: int


_COLUMNS: list[Column[Reset]] = [
    Column("topic", lambda row: row.topic),
    Column("partition", lambda row: row.partition, right=True),
    Column("from", lambda row: row.from_, right=True),
    Column("to", lambda row: row.to, right=True),
    Column("start", lambda row: row.start, right=True),
    Column("end", lambda row: row.end, right=True),
]


@click.command()
@click.argument("name", metavar="GROUP")
@click.option(
    "--to",
    "position",
    required=True,
    callback=offset_value,
    metavar="OFFSET",
    help=f"{FORMS}.  Not relative to the committed offsets.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="A topic; repeatable (default: all with committed offsets).",
)
@click.option(
    "-p",
    "--partition",
    "numbers",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition of the one --topic; repeatable.",
)
@click.option(
    "-y", "--yes", is_flag=True, help="Apply the plan; without it the plan is only shown."
)
@bootstrap_option
@json_option
def reset(
    name: str,
    position: Position,
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
    yes: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Set the committed offsets of GROUP.

    Shows a plan; --yes applies it.  The consumers of the group must be stopped.

    \b
        tidelog groups reset billing --to start
        tidelog groups reset billing --to @-48h --topic orders --yes
        tidelog groups reset billing --to 1742 --topic orders -p 0 --yes
    """
    if numbers and len(topics) != 1:
        raise click.UsageError("--partition needs the one --topic that it is of")
    plan: list[Reset] = []
    errors: list[str] = []
    with connect(bootstrap) as cluster:
        try:
            view = _group_or_new(cluster, name, topics)
            if view is not None and view.state != asking.EMPTY:
                raise asking.active_error(cluster, name)
            targets, plan = _plan(cluster, name, position, topics, numbers)
            if not as_json:
                show_rows(plan, _COLUMNS)
                if view is None:
                    note(f"group {name!r} does not exist yet: it will be created")
            if yes:
                results = asking.set_offsets(cluster, name, targets)
                errors = [
                    f"{place}: {error.message}"
                    for place, error in results.items()
                    if error is not None
                ]
        except BrokerUnreachable:
            raise
        except ApiError as error:
            errors = [error.message]
    if as_json:
        done = yes and not errors
        show_json({"group": name, "done": done, "plan": plan, "error": "; ".join(errors) or None})
    for message in dict.fromkeys(errors):
        complain(message)
    if errors:
        raise click.exceptions.Exit(1)
    if not yes:
        note("nothing was changed: add --yes to do it")
    elif not as_json:
        click.echo(f"{printable(name)}: {plural(len(plan), 'offset')} set")


def _group_or_new(cluster: Cluster, name: str, topics: tuple[str, ...]) -> GroupView | None:
    """The group; None if there is none yet and the topics are named, so that it can be made."""
    try:
        return asking.describe_group(cluster, name)
    except ApiError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        if topics:
            return None
        message = f"{error.message}, or give it a start with --topic"
        raise ApiError(error.code, message) from None


def _plan(
    cluster: Cluster,
    name: str,
    position: Position,
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
) -> tuple[dict[TopicPartition, int], list[Reset]]:
    """The offsets to set, and the same for people."""
    committed = asking.committed_offsets(cluster, name)
    places = _places(cluster, name, committed, topics, numbers)
    logs = extents(cluster, places)
    targets = resolve_all(cluster, position, logs, SystemClock().now_ms())
    _check_targets(position, targets, logs)
    plan = [
        Reset(
            *place,
            committed[place].offset if place in committed else None,
            targets[place],
            *logs[place],
        )
        for place in places
    ]
    return targets, plan


def _places(
    cluster: Cluster,
    name: str,
    committed: dict[TopicPartition, CommittedOffset],
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
) -> list[TopicPartition]:
    """The partitions to reset: all of the named topics, or of those with offsets."""
    wanted = list(dict.fromkeys(topics)) or sorted({place.topic for place in committed})
    if not wanted:
        message = f"group {name!r} has committed nothing: say which topics with --topic"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    found = cluster.topics(wanted)
    places = []
    for topic in wanted:
        for number in numbers or range(len(found[topic].partitions)):
            found[topic].leader_of(number)  # raises if there is no such partition
            places.append(TopicPartition(topic, number))
    return sorted(set(places))


def _check_targets(
    position: Position, targets: dict[TopicPartition, int], logs: dict[TopicPartition, Extent]
) -> None:
    """An offset that is not there would send consumers to auto.offset.reset."""
    if position.kind is not PositionKind.ABSOLUTE:
        return
    for place, offset in targets.items():
        log = logs[place]
        if not log.start <= offset <= log.end:
            word = "start" if offset < log.start else "end"
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{place} has offsets {log.start} to {log.end}, not {offset}: use {word}, "
                "or choose partitions with --topic and -p",
            )
