"""``tidelog groups``: list, delete and explain consumer groups; describe and reset have files
of their own.

With ``--json`` an error that concerns a group is in the answer (``error``) and on standard
error; keys are always all there.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from tidelog.client import groups as asking
from tidelog.client.connection import BrokerUnreachable
from tidelog.errors import ApiError
from tidelog.tools.command_group import CommandGroup
from tidelog.tools.groups_describe import describe
from tidelog.tools.groups_reset import reset
from tidelog.tools.options import bootstrap_option, confirm, connect, json_option, yes_option
from tidelog.tools.output import (
    Column,
    printable,
    say,
    short_id,
    short_time,
    show,
    show_json,
    show_results,
    show_rows,
)
from tidelog.views.groups import GroupHistory, HistoryEvent, group_history

STATES = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Reconciling")
TYPES = (asking.CLASSIC, asking.CONSUMER)


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, describe, reset, delete and explain consumer groups."""


groups.add_command(describe)
groups.add_command(reset)


# -- list -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """A group in the list."""

    group: str
    state: str
    type: str
    protocol_type: str


_LIST: list[Column[Listed]] = [
    Column("group", lambda row: row.group),
    Column("state", lambda row: row.state),
    Column("type", lambda row: row.type),
]


@groups.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state; repeatable.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(TYPES, case_sensitive=False),
    help="Only groups of this protocol; repeatable.",
)
@bootstrap_option
@json_option
def list_groups(
    states: tuple[str, ...], types: tuple[str, ...], bootstrap: str, as_json: bool
) -> None:
    """List the groups."""
    with connect(bootstrap) as cluster:
        found = asking.list_groups(cluster, states, types)
    wanted = states + types
    empty = "no groups" if not wanted else f"no group is {' or '.join(wanted)}"
    show(
        [Listed(r.group_id, r.state, r.type, r.protocol_type) for r in found], _LIST, as_json, empty
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
        confirm(f"Delete {printable(', '.join(wanted))} with all offsets?", yes)
        results = asking.delete_groups(cluster, wanted)
    report = [
        DeletedGroup(name, error is None, error.message if error else None)
        for name, error in results.items()
    ]
    show_results(report, as_json, lambda row: f"{printable(row.group)} deleted")


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """What became of a group to delete."""

    group: str
    deleted: bool
    error: str | None


@groups.command()
@click.argument("name", metavar="GROUP")
@bootstrap_option
@json_option
def explain(name: str, bootstrap: str, as_json: bool) -> None:
    """Show why GROUP rebalanced: which members joined, left or expired, and when."""
    with connect(bootstrap) as cluster:
        try:
            found = asking.explain_group(cluster, name)
        except BrokerUnreachable:
            raise
        except ApiError as error:
            if as_json:
                show_json(GroupHistory(name, error=error.message))
            raise
    history = group_history(name, found)
    if as_json:
        show_json(history)
        return
    events = history.events + [
        HistoryEvent(row.removed_at, _GONE, -1, "", f"{row.topic}-{row.partition}: {row.reason}")
        for row in history.removed_offsets
    ]
    if events:
        # Stable: what happened at the same time stays in order.
        show_rows(sorted(events, key=lambda event: event.time), _EVENTS)
    else:
        click.echo(f"{printable(name)}: nothing has happened since the broker started")
    for member in found.members:
        if member.waited_for:
            say(f"waiting for {asking.member_text(member)}")


_GONE = "offset gone"
_EVENTS: list[Column[HistoryEvent]] = [
    Column("time", lambda row: row.time, short=short_time),
    Column("event", lambda row: row.event),
    Column("gen", lambda row: None if row.event == _GONE else row.generation, right=True),
    Column("member", lambda row: row.member, short=short_id),
    Column("cause", lambda row: row.cause),
]
