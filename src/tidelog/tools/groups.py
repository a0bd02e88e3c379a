"""``tidelog groups``: list, delete and explain consumer groups; describe and reset have files
of their own.

With ``--json`` an error that concerns a group is in the answer (``error``) and on standard
error; keys are always all there.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from tidelog.client import groups as asking
from tidelog.client.connection import BrokerUnreachable
from tidelog.errors import ApiError
from tidelog.tools.command_group import CommandGroup
from tidelog.tools.groups_describe import describe, life, removed_offsets
from tidelog.tools.groups_reset import reset
from tidelog.tools.options import bootstrap_option, confirm, connect, json_option, yes_option
from tidelog.tools.output import (
    complain,
    printable,
    say,
    short_id,
    short_time,
    show_json,
    show_table,
    time_text,
)
from tidelog.wire.messages.explain_group import ExplainGroupResponse

STATES = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Reconciling")
TYPES = (asking.CLASSIC, asking.CONSUMER)


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, describe, reset, delete and explain consumer groups."""


groups.add_command(describe)
groups.add_command(reset)


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
    if as_json:
        show_json(
            [
                {
                    "group": name,
                    "deleted": error is None,
                    "error": None if error is None else error.message,
                }
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
        try:
            found = asking.explain_group(cluster, name)
        except BrokerUnreachable:
            raise
        except ApiError as error:
            if as_json:
                show_json(_explained(name, None, error.message))
            raise
    if as_json:
        show_json(_explained(name, found, None))
        return
    rows = _events(found)
    if rows:
        show_table(
            ("time", "event", "gen", "member", "cause"),
            rows,
            right=("gen",),
            short={"time": short_time, "member": short_id},
        )
    else:
        click.echo(f"{printable(name)}: nothing has happened since the broker started")
    for member in found.members:
        if member.waited_for:
            say(f"waiting for {asking.member_text(member)}")


def _explained(name: str, found: ExplainGroupResponse | None, error: str | None) -> dict[str, Any]:
    return {
        "group": name,
        "generation": None if found is None else found.generation,
        "events": [
            {
                "time": time_text(event.time_ms),
                "event": event.kind,
                "generation": event.generation,
                "member": event.member_id,
                "cause": event.cause,
            }
            for event in (() if found is None else found.events)
        ],
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.client_host,
                **life(member),
            }
            for member in (() if found is None else found.members)
        ],
        "removed_offsets": [] if found is None else removed_offsets(found),
        "error": error,
    }


def _events(found: ExplainGroupResponse) -> list[tuple[Any, ...]]:
    """What happened, and which offsets went, in the order of time."""
    rows: list[tuple[Any, ...]] = [
        (event.time_ms, event.kind, event.generation, event.member_id, event.cause)
        for event in found.events
    ]
    rows += [
        (row.removed_at_ms, "offset gone", None, "", f"{row.topic}-{row.partition}: {row.reason}")
        for row in found.removed_offsets
    ]
    rows.sort(key=lambda row: row[0])  # stable: what happened at the same time stays in order
    return [(time_text(row[0]), *row[1:]) for row in rows]
