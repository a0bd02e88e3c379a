"""``tidelog groups``: list, describe, reset, delete and explain consumer groups."""

from __future__ import annotations

import sys
from typing import Any

import click

from tidelog.client import groups as asking
from tidelog.client.cluster import NO_LEADER, Cluster, TopicPartition
from tidelog.client.groups import CommittedOffset, GroupMember, GroupView
from tidelog.client.offsets import Extent, Kind, Position
from tidelog.client.partitions import extents, resolve_all
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.tools.options import (
    bootstrap_option,
    confirm,
    connect,
    json_option,
    offset_value,
    yes_option,
)
from tidelog.tools.output import complain, note, printable, show_json, show_table, time_text

STATES = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Reconciling")
TYPES = ("classic", "consumer")


@click.group()
def groups() -> None:
    """List, describe, reset, delete and explain consumer groups."""


# -- list -----------------------------------------------------------------------


@groups.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state; may be given several times.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(TYPES, case_sensitive=False),
    help="Only groups whose members speak this protocol.",
)
@bootstrap_option
@json_option
def list_groups(
    states: tuple[str, ...], types: tuple[str, ...], bootstrap: str, as_json: bool
) -> None:
    """List the groups."""
    with connect(bootstrap) as cluster:
        found = asking.list_groups(cluster, states, types)
    if as_json:
        show_json(
            [
                {
                    "group": row.group_id,
                    "state": row.state,
                    "type": row.type,
                    "protocol_type": row.protocol_type,
                }
                for row in found
            ]
        )
    elif found:
        show_table(("group", "state", "type"), [(r.group_id, r.state, r.type) for r in found])
    else:
        wanted = states + types
        click.echo("no groups" if not wanted else f"no group is {' or '.join(wanted)}")


# -- describe -------------------------------------------------------------------


@groups.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show members, offsets and lag; of all groups if none is named."""
    described = []
    with connect(bootstrap) as cluster:
        wanted = list(dict.fromkeys(names))
        if not names:
            wanted = [row.group_id for row in asking.list_groups(cluster)]
        for name in wanted:
            try:
                described.append(_describe(cluster, name))
            except ApiError as error:
                # It may have gone since it was listed.
                if names or error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
    if as_json:
        show_json(described)
        return
    for i, group in enumerate(described):
        if i:
            click.echo()
        _show_group(group)
    if not described:
        click.echo("no groups")


def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    try:
        view = asking.describe_group(cluster, name)
    except ApiError as error:
        # When its last offset has gone, a group without members goes too; the reason stays.
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND or not _removed(cluster, name):
            raise
        view = GroupView(name, asking.DEAD, "", "", asking.coordinator(cluster, name), ())
    committed = asking.committed_offsets(cluster, name)
    owners = {place: member for member in view.members for place in member.partitions or ()}
    places = sorted(committed.keys() | owners.keys())
    logs = _logs(cluster, places)
    rows = [
        _row(place, committed.get(place), logs.get(place), owners.get(place)) for place in places
    ]
    known = [row["lag"] for row in rows if row["lag"] is not None]
    return {
        "group": name,
        "state": view.state,
        "protocol_type": view.protocol_type,
        "protocol": view.protocol,
        "coordinator": view.coordinator,
        "lag": sum(known) if known or not rows else None,
        "members": [_member(member) for member in view.members],
        "partitions": rows,
        "removed_offsets": _removed(cluster, name),
    }


def _logs(cluster: Cluster, places: list[TopicPartition]) -> dict[TopicPartition, Extent]:
    """Where the logs of these partitions begin and end, of those that can be asked."""
    topics = cluster.metadata({place.topic for place in places}).topics if places else {}
    led = {
        TopicPartition(topic.name, part.index)
        for topic in topics.values()
        for part in topic.partitions
        if part.leader != NO_LEADER and not topic.error
    }
    return extents(cluster, [place for place in places if place in led])


def _row(
    place: TopicPartition,
    committed: CommittedOffset | None,
    log: Extent | None,
    owner: GroupMember | None,
) -> dict[str, Any]:
    lag = None
    if log is not None and committed is not None:
        lag = max(0, log.end - max(committed.offset, log.start))
    return {
        "topic": place.topic,
        "partition": place.partition,
        "committed": committed.offset if committed else None,
        "leader_epoch": committed.leader_epoch if committed else None,
        "metadata": committed.metadata if committed else None,
        "start": log.start if log else None,
        "end": log.end if log else None,
        "lag": lag,
        "member": owner.member_id if owner else None,
        "client": owner.client_id if owner else None,
        "host": owner.host if owner else None,
    }


def _member(member: GroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.host,
        "partitions": None
        if member.partitions is None
        else [{"topic": p.topic, "partition": p.partition} for p in member.partitions],
    }


def _removed(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Offsets that the group has lost.  Only tidelog remembers."""
    try:
        removed = asking.explain_group(cluster, name).removed_offsets
    except ApiError as error:
        if error.code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND):
            raise
        return []
    return [
        {
            "topic": row.topic,
            "partition": row.partition,
            "removed_at": time_text(row.removed_at_ms),
            "reason": row.reason,
        }
        for row in removed
    ]


def _lag(group: dict[str, Any]) -> str:
    """The sum; what has no committed offset has no lag, which is not the same as none."""
    unknown = sum(row["lag"] is None for row in group["partitions"])
    if group["lag"] is None:
        return "unknown (nothing is committed)"
    return f"{group['lag']:,}" + (f" and {plural(unknown, 'partition')} unknown" if unknown else "")


def _show_group(group: dict[str, Any]) -> None:
    click.secho(printable(group["group"]), bold=True, nl=False)
    protocol = f", {group['protocol']}" if group["protocol"] else ""
    click.echo(
        f"  {group['state']}, {plural(len(group['members']), 'member')}{protocol}, "
        f"lag {_lag(group)}, coordinator {group['coordinator']}"
    )
    if group["partitions"]:
        columns = ("topic", "partition", "committed", "end", "lag", "client", "host", "member")
        show_table(
            columns,
            [tuple(row[column] for column in columns) for row in group["partitions"]],
            right=("partition", "committed", "end", "lag"),
            indent="  ",
        )
    for member in group["members"]:
        if not member["partitions"]:
            what = (
                "no partitions" if member["partitions"] is not None else "an assignment of its own"
            )
            who = f"{member['member']} ({member['client']} at {member['host']})"
            click.echo(f"  {printable(who)}: {what}")
    for row in group["removed_offsets"]:
        click.echo(
            f"  the offset of {row['topic']}-{row['partition']} was removed at "
            f"{row['removed_at']}: {row['reason']}"
        )


# -- reset ----------------------------------------------------------------------


@groups.command()
@click.argument("name", metavar="GROUP")
@click.option(
    "--to",
    "position",
    required=True,
    callback=offset_value,
    metavar="OFFSET",
    help="start, end, N, +N, -N, @TIME or @-48h.",
)
@click.option("--topic", "topics", multiple=True, help="Default: all that the group has read.")
@click.option("-p", "--partition", "numbers", type=click.IntRange(0), multiple=True)
@click.option("-y", "--yes", is_flag=True, help="Do it; without this the plan is shown, no more.")
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
    """Let GROUP go on from another offset.

    Shows the plan; --yes does it.  The consumers of the group must be stopped.

    \b
        tidelog groups reset billing --to start
        tidelog groups reset billing --to @-48h --topic orders --yes
        tidelog groups reset billing --to 1742 --topic orders -p 0 --yes
    """
    if numbers and len(topics) != 1:
        raise click.UsageError("--partition needs the one --topic that it is of")
    with connect(bootstrap) as cluster:
        view = _group_or_new(cluster, name, topics)
        if view is not None and view.state != asking.EMPTY:
            raise asking.active_error(name, len(view.members))
        committed = asking.committed_offsets(cluster, name)
        places = _places(cluster, name, committed, topics, numbers)
        logs = extents(cluster, places)
        targets = resolve_all(cluster, position, logs, SystemClock().now_ms())
        _check_targets(position, targets, logs)
        plan = [
            {
                "topic": place.topic,
                "partition": place.partition,
                "from": committed[place].offset if place in committed else None,
                "to": targets[place],
                "start": logs[place].start,
                "end": logs[place].end,
            }
            for place in places
        ]
        errors: dict[TopicPartition, ApiError] = {}
        if not as_json:
            columns = ("topic", "partition", "from", "to", "start", "end")
            rows = [tuple(row[column] for column in columns) for row in plan]
            show_table(columns, rows, right=columns[1:])
        if yes:
            results = asking.set_offsets(cluster, name, targets)
            errors = {place: error for place, error in results.items() if error is not None}
    if as_json:
        show_json({"group": name, "done": yes and not errors, "plan": plan})
    for place, error in errors.items():
        complain(f"{place}: {error.message}")
    if errors:
        sys.exit(1)
    if not yes:
        note("nothing was changed: add --yes to do it")
    elif not as_json:
        click.echo(f"{printable(name)}: {plural(len(plan), 'offset')} set")


def _group_or_new(cluster: Cluster, name: str, topics: tuple[str, ...]) -> GroupView | None:
    """The group; None if there is none yet and the topics are named, so that it can be made."""
    try:
        return asking.describe_group(cluster, name)
    except ApiError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND or not topics:
            raise
        return None


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
    if position.kind is not Kind.ABSOLUTE:
        return
    for place, offset in targets.items():
        log = logs[place]
        if not log.start <= offset <= log.end:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{place} has offsets {log.start} to {log.end}, not {offset}",
            )


# -- delete and explain -----------------------------------------------------------


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@yes_option
@bootstrap_option
@json_option
def delete(names: tuple[str, ...], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete groups with all their offsets; their consumers must be stopped."""
    wanted = list(dict.fromkeys(names))
    with connect(bootstrap) as cluster:
        confirm(f"Delete {', '.join(wanted)} with all offsets?", yes)
        results = asking.delete_groups(cluster, wanted)
    if as_json:
        show_json(
            [
                {"group": name, "deleted": error is None}
                | ({"error": error.message} if error is not None else {})
                for name, error in results.items()
            ]
        )
    for name, error in results.items():
        if error is not None:
            complain(error.message)
        elif not as_json:
            click.echo(f"{printable(name)} deleted")
    sys.exit(1 if any(results.values()) else 0)


@groups.command()
@click.argument("name", metavar="GROUP")
@bootstrap_option
@json_option
def explain(name: str, bootstrap: str, as_json: bool) -> None:
    """Say why GROUP rebalanced: who joined, left or died, when, and what came of it."""
    with connect(bootstrap) as cluster:
        found = asking.explain_group(cluster, name)
    events = [
        {
            "time": time_text(event.time_ms),
            "event": event.kind,
            "generation": event.generation,
            "member": event.member_id,
            "cause": event.cause,
        }
        for event in found.events
    ]
    if as_json:
        show_json({"group": name, "generation": found.generation, "events": events})
        return
    if not events:
        click.echo(f"{printable(name)}: nothing has happened since the broker started")
        return
    columns = ("time", "event", "generation", "member", "cause")
    rows = [tuple(event[column] for column in columns) for event in events]
    show_table(columns, rows, right=("generation",))
