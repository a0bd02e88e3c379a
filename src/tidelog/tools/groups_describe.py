"""``tidelog groups describe``: members, offsets and lag."""

from __future__ import annotations

import click

from tidelog.text import plural
from tidelog.tools.options import bootstrap_option, connect, json_option
from tidelog.tools.output import Column, complain, printable, say, short_id, show_json, show_rows
from tidelog.views.groups import (
    BEFORE,
    BEYOND,
    GroupDescription,
    OffsetDescription,
    describe_groups,
)

_NOTICED_MS = 10_000  # a member that is silent for so long is mentioned


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show members, offsets and lag; of all groups if none is named."""
    with connect(bootstrap) as cluster:
        found = describe_groups(cluster, names)
    if as_json:
        show_json(found)
    else:
        for i, group in enumerate(group for group in found if group.error is None):
            if i:
                click.echo()
            _show_group(group)
        if not found:
            click.echo("no groups")
    errors = [group.error for group in found if group.error is not None]
    for message in errors:
        complain(message)
    if errors:
        raise click.exceptions.Exit(1)


def _show_group(group: GroupDescription) -> None:
    click.secho(printable(group.group), bold=True, nl=False)
    protocol = f", {group.protocol}" if group.protocol else ""
    click.echo(
        f"  {group.state}, {plural(len(group.members), 'member')}{printable(protocol)}, "
        f"lag {_lag(group)}, coordinator {group.coordinator}"
    )
    if group.partitions:
        show_rows(group.partitions, _columns(group.partitions), indent="  ")
    for line in (*_notes(group), *_member_notes(group)):
        say(f"  {line}")


def _lag(group: GroupDescription) -> str:
    """The sum; what has no committed offset has no lag, which is not the same as none."""
    unknown = sum(row.lag is None for row in group.partitions)
    if group.lag is None:
        committed = any(row.committed is not None for row in group.partitions)
        return "unknown" if committed else "unknown (nothing is committed)"
    return f"{group.lag:,}" + (f" and {plural(unknown, 'partition')} unknown" if unknown else "")


def _columns(rows: list[OffsetDescription]) -> list[Column[OffsetDescription]]:
    columns: list[Column[OffsetDescription]] = [
        Column("topic", lambda row: row.topic),
        Column("partition", lambda row: row.partition, right=True),
        Column("committed", lambda row: row.committed, right=True),
        Column("end", lambda row: row.end, right=True),
        Column("lag", lambda row: row.lag, right=True),
    ]
    if any(row.host for row in rows):
        columns.append(Column("host", lambda row: row.host))
    if any(row.instance for row in rows):
        columns.append(Column("instance", lambda row: row.instance))
    # Where member ids are made of the clients' names, there is no need to show both.
    if not all((row.member or "").startswith(row.client or "") for row in rows):
        columns.append(Column("client", lambda row: row.client))
    # ... and an instance id says which member it is.
    if any(row.member and row.instance is None for row in rows):
        columns.append(Column("member", lambda row: row.member, short=short_id))
    return columns


def _notes(group: GroupDescription) -> list[str]:
    """Why a lag is not the difference of two columns, and what is not there any more."""
    notes = []
    for row in group.partitions:
        if row.note == BEFORE:
            notes.append(
                f"{row.place}: {row.committed} is before the start of the log, {row.start}: "
                "the lag counts from there"
            )
        elif row.note == BEYOND:
            notes.append(
                f"{row.place}: {row.committed} is beyond the end of the log, {row.end}: "
                "a consumer would start where auto.offset.reset says"
            )
    notes += [
        f"the offset of {row.topic}-{row.partition} was removed at {row.removed_at}: {row.reason}"
        for row in group.removed_offsets
    ]
    return notes


def _member_notes(group: GroupDescription) -> list[str]:
    notes = []
    rebalancing = (group.state or "").endswith("Rebalance")
    for member in group.members:
        static = f"instance {member.instance}, " if member.instance is not None else ""
        who = f"{member.member} ({static}{member.client} at {member.host})"
        silent, left = _seconds(member.silent_ms), _seconds(member.expires_in_ms)
        if member.away:
            notes.append(f"{who}: away; its place is kept for {left} s more")
        elif member.waited_for:
            until = "" if left is None else f": silent for {silent} s, expires in {left} s"
            notes.append(f"waiting for {who}{until}")
        elif (member.silent_ms or 0) > _NOTICED_MS:
            notes.append(f"{who}: silent for {silent} s, expires in {left} s")
        if not member.partitions and not rebalancing:
            known = member.partitions is not None
            notes.append(f"{who}: {'no partitions' if known else 'an assignment of its own'}")
    if rebalancing:
        notes.append("which member has which partition is not known while rebalancing")
    return notes


def _seconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else round(milliseconds / 1000)
