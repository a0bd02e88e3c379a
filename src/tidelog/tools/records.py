"""``tidelog records``: delete records from the start of a log."""

from __future__ import annotations

import sys
from typing import Any

import click

from tidelog.client import partitions as logs
from tidelog.client.offsets import FORMS, Position
from tidelog.clock import SystemClock
from tidelog.errors import ApiError
from tidelog.text import plural
from tidelog.tools.command_group import CommandGroup
from tidelog.tools.options import (
    bootstrap_option,
    confirm,
    connect,
    json_option,
    offset_value,
    yes_option,
)
from tidelog.tools.output import Column, complain, show_json, show_rows
from tidelog.topic_partition import TopicPartition


@click.group(cls=CommandGroup)
def records() -> None:
    """Delete records from the start of a log."""


@records.command()
@click.argument("topic")
@click.option(
    "-p",
    "--partition",
    "numbers",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option(
    "--before",
    required=True,
    callback=offset_value,
    metavar="OFFSET",
    help=f"Delete records before: {FORMS}.",
)
@yes_option
@bootstrap_option
@json_option
def delete(
    topic: str,
    numbers: tuple[int, ...],
    before: Position,
    yes: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Delete the records of TOPIC before an offset.

    \b
        tidelog records delete clicks --before end            all of them
        tidelog records delete clicks --before @-48h          what is older than two days
        tidelog records delete clicks -p 0 --before 1000
    """
    with connect(bootstrap) as cluster:
        (view,) = cluster.topics([topic]).values()
        for number in numbers:
            view.leader_of(number)  # raises if there is no such partition
        rows = [
            TopicPartition(topic, part.index)
            for part in view.partitions
            if not numbers or part.index in numbers
        ]
        extents = logs.extents(cluster, rows)
        targets = logs.resolve_all(cluster, before, extents, SystemClock().now_ms())
        plan: list[dict[str, Any]] = []
        for row in rows:
            log, target = extents[row], targets[row]
            if target > log.end:
                message = (
                    f"{target} is past the end of {row}, which is {log.end}; `end` deletes all"
                )
                raise click.BadParameter(message, param_hint="--before")
            plan.append(
                {
                    "topic": topic,
                    "partition": row.partition,
                    "start": log.start,
                    "end": log.end,
                    "before": max(target, log.start),
                    "records": max(0, target - log.start),
                }
            )
        total = sum(row["records"] for row in plan)
        if not as_json:
            show_rows(plan, _COLUMNS)
        if total == 0:
            if as_json:
                show_json(plan)
            else:
                click.echo("there is nothing to delete")
            return
        confirm(f"Delete {plural(total, 'record')} of {topic}?", yes)
        doomed = {
            TopicPartition(topic, row["partition"]): row["before"] for row in plan if row["records"]
        }
        results = logs.delete_records(cluster, doomed)
    failed = _merge(plan, results)
    if as_json:
        show_json(plan)
    elif not failed:
        click.echo(f"{plural(total, 'record')} deleted")
    sys.exit(1 if failed else 0)


_COLUMNS: list[Column[dict[str, Any]]] = [
    Column("partition", lambda row: row["partition"], right=True),
    Column("start", lambda row: row["start"], right=True),
    Column("end", lambda row: row["end"], right=True),
    Column("delete before", lambda row: row["before"], right=True),
    Column("records", lambda row: row["records"], right=True),
]


def _merge(plan: list[dict[str, Any]], results: dict[TopicPartition, int | ApiError]) -> bool:
    """Write the results into the plan; True if something failed."""
    failed = False
    for row in plan:
        result = results.get(TopicPartition(row["topic"], row["partition"]), row["start"])
        if isinstance(result, ApiError):
            failed = True
            complain(result.message)
            row["error"] = result.message
        else:
            row["new_start"] = result
    return failed
