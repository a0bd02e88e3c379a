"""``tidelog groups describe``: members, offsets and lag."""

from __future__ import annotations

from typing import Any

import click

from tidelog.client import groups as asking
from tidelog.client.cluster import NO_LEADER, Cluster
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.groups import CommittedOffset, GroupMember, GroupView
from tidelog.client.offsets import Extent
from tidelog.client.partitions import extents
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.tools.options import bootstrap_option, connect, json_option
from tidelog.tools.output import (
    complain,
    printable,
    say,
    short_id,
    show_json,
    show_table,
    time_text,
)
from tidelog.topic_partition import TopicPartition
from tidelog.wire.messages.explain_group import ExplainGroupResponse, MemberStatus

_NOTICED_MS = 10_000  # a member that is silent for so long is mentioned
_BEFORE, _BEYOND = "before the start", "beyond the end"


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show members, offsets and lag; of all groups if none is named."""
    found: dict[str, _Asked | ApiError] = {}
    with connect(bootstrap) as cluster:
        wanted = list(dict.fromkeys(names))
        if not names:
            wanted = [row.group_id for row in asking.list_groups(cluster)]
        together = asking.describe_together(cluster, wanted)
        for name in wanted:
            try:
                found[name] = _Asked(cluster, name, together.get(name))
            except BrokerUnreachable:
                raise
            except ApiError as error:
                # One that was listed may have gone since.
                if names or error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                    found[name] = error
        asked = [one for one in found.values() if isinstance(one, _Asked)]
        logs = _logs(cluster, {place for one in asked for place in one.places})
    rows = {
        name: _failed(name, one) if isinstance(one, ApiError) else one.row(logs)
        for name, one in found.items()
    }
    if as_json:
        show_json(list(rows.values()))
    else:
        _show([row for row in rows.values() if row["error"] is None], not rows)
    errors = [row["error"] for row in rows.values() if row["error"] is not None]
    for message in errors:
        complain(message)
    if errors:
        raise click.exceptions.Exit(1)


# -- asking ---------------------------------------------------------------------


class _Asked:
    """What the coordinator of a group says about it."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        known: tuple[GroupView, dict[TopicPartition, CommittedOffset]] | None,
    ) -> None:
        self.status = asking.explained(cluster, name)
        if known is not None:
            self.view, self.committed = known
        else:
            self.view = self._describe(cluster, name)
            self.committed = asking.committed_offsets(cluster, name)
        self.owners = {
            place: member for member in self.view.members for place in member.partitions or ()
        }
        self.places = sorted(self.committed.keys() | self.owners.keys())

    def _describe(self, cluster: Cluster, name: str) -> GroupView:
        try:
            return asking.describe_group(cluster, name)
        except ApiError as error:
            # When its last offset has gone, a group without members goes too; the reason stays.
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND or not _removed(self.status):
                raise
            node = asking.coordinator(cluster, name)
            return GroupView(name, "", asking.DEAD, "", "", node, ())

    def row(self, logs: dict[TopicPartition, Extent]) -> dict[str, Any]:
        view = self.view
        rows = [
            _partition(place, self.committed.get(place), logs.get(place), self.owners.get(place))
            for place in self.places
        ]
        known = [row["lag"] for row in rows if row["lag"] is not None]
        statuses = {row.member_id: row for row in self.status.members} if self.status else {}
        return {
            "group": view.group_id,
            "type": view.type or None,
            "state": view.state,
            "protocol_type": view.protocol_type,
            "protocol": view.protocol,
            "coordinator": view.coordinator,
            "lag": sum(known) if known else None,
            "members": [_member(row, statuses.get(row.member_id)) for row in view.members],
            "partitions": rows,
            "removed_offsets": _removed(self.status),
            "error": None,
        }


def _failed(name: str, error: ApiError) -> dict[str, Any]:
    unknown = ("type", "state", "protocol_type", "protocol", "coordinator", "lag")
    lists: dict[str, Any] = {"members": [], "partitions": [], "removed_offsets": []}
    return {"group": name, **dict.fromkeys(unknown), **lists, "error": error.message}


def _logs(cluster: Cluster, places: set[TopicPartition]) -> dict[TopicPartition, Extent]:
    """Where the logs of these partitions begin and end, of those that can be asked."""
    topics = cluster.metadata({place.topic for place in places}).topics if places else {}
    led = {
        TopicPartition(topic.name, part.index)
        for topic in topics.values()
        for part in topic.partitions
        if part.leader != NO_LEADER and not topic.error
    }
    return extents(cluster, sorted(places & led), known_only=True)


def _partition(
    place: TopicPartition,
    committed: CommittedOffset | None,
    log: Extent | None,
    owner: GroupMember | None,
) -> dict[str, Any]:
    lag = note = None
    if log is not None and committed is not None:
        lag = max(0, log.end - max(committed.offset, log.start))
        if committed.offset < log.start:
            note = _BEFORE
        elif committed.offset > log.end:
            note = _BEYOND
    return {
        "topic": place.topic,
        "partition": place.partition,
        "committed": committed.offset if committed else None,
        "leader_epoch": committed.leader_epoch if committed else None,
        "metadata": committed.metadata if committed else None,
        "start": log.start if log else None,
        "end": log.end if log else None,
        "lag": lag,
        "note": note,
        "member": owner.member_id if owner else None,
        "instance": owner.instance_id if owner else None,
        "client": owner.client_id if owner else None,
        "host": owner.host if owner else None,
    }


def _member(member: GroupMember, status: MemberStatus | None) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.host,
        "partitions": None
        if member.partitions is None
        else [{"topic": p.topic, "partition": p.partition} for p in member.partitions],
        **life(status),
    }


def life(status: MemberStatus | None) -> dict[str, Any]:
    """Is a member waited for, away or silent?  Only tidelog says."""
    if status is None:
        return dict.fromkeys(("waited_for", "away", "silent_ms", "expires_in_ms"))
    return {
        "waited_for": status.waited_for,
        "away": status.away,
        "silent_ms": status.silent_ms if status.silent_ms >= 0 else None,
        "expires_in_ms": status.expires_in_ms if status.expires_in_ms >= 0 else None,
    }


def _removed(status: ExplainGroupResponse | None) -> list[dict[str, Any]]:
    """Offsets that the group has lost."""
    return removed_offsets(status) if status is not None else []


def removed_offsets(status: ExplainGroupResponse) -> list[dict[str, Any]]:
    return [
        {
            "topic": row.topic,
            "partition": row.partition,
            "removed_at": time_text(row.removed_at_ms),
            "reason": row.reason,
        }
        for row in status.removed_offsets
    ]


# -- showing --------------------------------------------------------------------


def _show(groups: list[dict[str, Any]], nothing: bool) -> None:
    for i, group in enumerate(groups):
        if i:
            click.echo()
        _show_group(group)
    if nothing:
        click.echo("no groups")


def _show_group(group: dict[str, Any]) -> None:
    click.secho(printable(group["group"]), bold=True, nl=False)
    protocol = f", {group['protocol']}" if group["protocol"] else ""
    click.echo(
        f"  {group['state']}, {plural(len(group['members']), 'member')}{printable(protocol)}, "
        f"lag {_lag(group)}, coordinator {group['coordinator']}"
    )
    if group["partitions"]:
        _show_partitions(group["partitions"])
    for line in (*_notes(group), *_member_notes(group)):
        say(f"  {line}")


def _lag(group: dict[str, Any]) -> str:
    """The sum; what has no committed offset has no lag, which is not the same as none."""
    unknown = sum(row["lag"] is None for row in group["partitions"])
    if group["lag"] is None:
        committed = any(row["committed"] is not None for row in group["partitions"])
        return "unknown" if committed else "unknown (nothing is committed)"
    return f"{group['lag']:,}" + (f" and {plural(unknown, 'partition')} unknown" if unknown else "")


def _show_partitions(rows: list[dict[str, Any]]) -> None:
    columns = ["topic", "partition", "committed", "end", "lag"]
    columns += [name for name in ("host", "instance") if any(row[name] for row in rows)]
    # Where member ids are made of the clients' names, there is no need to say both.
    if not all((row["member"] or "").startswith(row["client"] or "") for row in rows):
        columns.append("client")
    # ... and an instance id says which member it is.
    if any(row["member"] and row["instance"] is None for row in rows):
        columns.append("member")
    show_table(
        columns,
        [tuple(row[column] for column in columns) for row in rows],
        right=("partition", "committed", "end", "lag"),
        indent="  ",
        short={"member": short_id},
    )


def _notes(group: dict[str, Any]) -> list[str]:
    """Why a lag is not the difference of two columns, and what is not there any more."""
    notes = []
    for row in group["partitions"]:
        place = f"{row['topic']}-{row['partition']}"
        if row["note"] == _BEFORE:
            notes.append(
                f"{place}: {row['committed']} is before the start of the log, {row['start']}: "
                "the lag counts from there"
            )
        elif row["note"] == _BEYOND:
            notes.append(
                f"{place}: {row['committed']} is beyond the end of the log, {row['end']}: "
                "a consumer would start where auto.offset.reset says"
            )
    notes += [
        f"the offset of {row['topic']}-{row['partition']} was removed at "
        f"{row['removed_at']}: {row['reason']}"
        for row in group["removed_offsets"]
    ]
    return notes


def _member_notes(group: dict[str, Any]) -> list[str]:
    notes = []
    rebalancing = group["state"].endswith("Rebalance")
    for member in group["members"]:
        static = f"instance {member['instance']}, " if member["instance"] is not None else ""
        who = f"{member['member']} ({static}{member['client']} at {member['host']})"
        silent, left = (_seconds(member[key]) for key in ("silent_ms", "expires_in_ms"))
        if member["away"]:
            notes.append(f"{who}: away; its place is kept for {left} s more")
        elif member["waited_for"]:
            until = "" if left is None else f": silent for {silent} s, expires in {left} s"
            notes.append(f"waiting for {who}{until}")
        elif (member["silent_ms"] or 0) > _NOTICED_MS:
            notes.append(f"{who}: silent for {silent} s, expires in {left} s")
        if not member["partitions"] and not rebalancing:
            known = member["partitions"] is not None
            notes.append(f"{who}: {'no partitions' if known else 'an assignment of its own'}")
    if rebalancing:
        notes.append("who has which partition is not known while rebalancing")
    return notes


def _seconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else round(milliseconds / 1000)
