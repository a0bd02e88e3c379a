"""``tidelog topics describe``: partitions with their replicas, offsets and sizes, and settings.

What a leader that does not answer would know is shown as ``?``.
"""

from __future__ import annotations

import click

from tidelog.text import plural, some
from tidelog.tools.options import bootstrap_option, connect, json_option
from tidelog.tools.output import Column, note, show_json, show_rows, size_text
from tidelog.views.topics import PartitionDescription, TopicDescription, describe_topics


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show partitions, offsets, sizes and settings; of all topics if none is named.

    Internal topics (such as __consumer_offsets) are shown only if they are named.
    """
    with connect(bootstrap) as cluster:
        found = describe_topics(cluster, names)
    if as_json:
        show_json(found.topics)
    else:
        for i, topic in enumerate(found.topics):
            if i:
                click.echo()
            _show_topic(topic)
        if not found.topics and not found.error:
            click.echo("no topics; create one with `tidelog topics create NAME`")
    for broker in found.silent:
        note(f"broker {broker} does not answer: offsets and sizes of what it leads are not known")
    unsure = [
        f"{topic.name}-{part.partition}"
        for topic in found.topics
        for part in topic.partitions
        if part.is_silent and part.leader not in found.silent
    ]
    if unsure:
        note(
            f"the leader of {some(unsure)} cannot say yet what is committed: it needs as many "
            "replicas in sync as min.insync.replicas says"
        )
    if found.error:
        raise found.error  # after what there is


def _show_topic(topic: TopicDescription) -> None:
    parts = topic.partitions
    click.secho(topic.name, bold=True, nl=False)
    counted = all(part.records is not None or part.offsets is None for part in parts)
    click.echo(
        f"  {plural(len(parts), 'partition')}, {plural(topic.replication_factor, 'replica')}, "
        f"{_extent(parts, counted)}, id {topic.topic_id}"
    )
    for name, value in topic.config.items():
        click.echo(f"  {name}={value}")
    for name, value in topic.inherited.items():
        click.echo(f"  {name}={value}  (from the broker)")
    moving = sum(bool(part.adding) for part in parts)
    if moving:
        click.echo(f"  {plural(moving, 'partition')} being reassigned")
    behind = sum(part.under_replicated for part in parts)
    leaderless = sum(part.leader < 0 for part in parts)
    if behind or leaderless:
        click.secho(
            f"  {plural(behind, 'partition')} under-replicated, {leaderless or 'none'} offline",
            fg="red" if leaderless else "yellow",
        )
    columns: list[Column[PartitionDescription]] = [
        Column("partition", lambda row: row.partition, right=True),
        Column("leader", lambda row: row.leader if row.leader >= 0 else "none"),
        Column("replicas", lambda row: ",".join(map(str, row.replicas))),
        Column("in sync", lambda row: ",".join(map(str, row.isr))),
        Column("start", lambda row: _known(row, row.start), right=True),
        Column("end", lambda row: _known(row, row.end), right=True),
        Column(
            "records" if counted else "offsets", lambda row: _known(row, row.offsets), right=True
        ),
        Column("size", lambda row: _known(row, _size(row)), right=True),
    ]
    show_rows(parts, columns, indent="  ")


def _known(part: PartitionDescription, value: object) -> object:
    return "?" if part.is_silent else value


def _size(part: PartitionDescription) -> str | None:
    return None if part.bytes is None else size_text(part.bytes)


def _extent(parts: list[PartitionDescription], counted: bool) -> str:
    """How much there is, as far as it is known: not of partitions without a leader."""
    known = [part for part in parts if part.offsets is not None]
    silent = sum(part.is_silent for part in parts)
    if parts and not known:
        return f"{'' if silent else 'offline: '}how many records it has is unknown"
    records = plural(sum(part.offsets or 0 for part in known), "record")
    size = size_text(sum(part.bytes or 0 for part in known))
    offline = len(parts) - len(known) - silent
    beside = f" beside {plural(offline, 'partition')} that are offline" if offline else ""
    if silent:
        beside += f" beside {plural(silent, 'partition')} whose leader does not answer"
    return f"{'' if counted else 'up to '}{records}, {size}{beside}"
