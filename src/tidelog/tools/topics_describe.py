"""``tidelog topics describe``: partitions with their replicas, offsets and sizes, and settings.

A leader that does not answer costs only what it alone knows: the rest is shown, with ``?`` there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tidelog.client import admin
from tidelog.client.admin import DEFAULT_SOURCE, ConfigEntry
from tidelog.client.cluster import NO_LEADER, Cluster, TopicView, check_topic
from tidelog.client.partitions import extents, log_sizes
from tidelog.errors import ApiError
from tidelog.text import plural, some
from tidelog.tools.in_sync import newcomers
from tidelog.tools.options import bootstrap_option, connect, json_option
from tidelog.tools.output import note, show_json, show_table, size_text
from tidelog.topic_partition import TopicPartition
from tidelog.wire.uuids import uuid_text


def factor(topic: TopicView) -> int:
    """How many replicas its partitions have."""
    return len(topic.partitions[0].replicas) if topic.partitions else 0


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show partitions, offsets, sizes and settings; of all topics if none is named.

    The broker's own topics (such as __consumer_offsets) are shown only if they are named.
    """
    missing: ApiError | None = None
    with connect(bootstrap) as cluster:
        metadata = cluster.metadata(dict.fromkeys(names) or None)
        found = metadata.topics
        shown = [found[name] for name in sorted(found) if names or not found[name].internal]
        leaders = {part.leader for topic in shown for part in topic.partitions} - {NO_LEADER}
        silent = cluster.silent(leaders)
        coming = newcomers(cluster, metadata.brokers, shown)
        there = []
        for topic in shown:
            try:
                check_topic(topic)
                there.append(topic)
            except ApiError as error:
                missing = missing or error
        answers = _ask(cluster, there, silent)
    described = []
    for topic in there:
        answer = answers[topic.name]
        if isinstance(answer, ApiError):
            missing = missing or answer
        else:
            described.append(_describe(topic, answer, coming))
    if as_json:
        show_json(described)
    else:
        _show_topics(described, bool(missing))
    for broker in sorted(silent):
        note(f"broker {broker} does not answer: offsets and sizes of what it leads are not known")
    unsure = [
        f"{topic['name']}-{part['partition']}"
        for topic in described
        for part in topic["partitions"]
        if _is_silent(part) and part["leader"] not in silent
    ]
    if unsure:
        note(
            f"the leader of {some(unsure)} cannot say yet what is committed: it needs as many "
            "replicas in sync as min.insync.replicas says"
        )
    if missing:
        raise missing  # after what there is


def _show_topics(described: list[dict[str, Any]], missing: bool) -> None:
    for i, topic in enumerate(described):
        if i:
            click.echo()
        _show_topic(topic)
    if not described and not missing:
        click.echo("no topics; make one with `tidelog topics create NAME`")


class _Answers:
    """What brokers say about these topics: few questions, each about many of them."""

    def __init__(self, cluster: Cluster, topics: Sequence[TopicView], silent: set[int]) -> None:
        leaders = {
            TopicPartition(topic.name, part.index): part.leader
            for topic in topics
            for part in topic.partitions
            if part.leader not in (NO_LEADER, *silent)
        }
        troubled = {topic.name for topic in topics if topic.error}
        led = [row for row in leaders if row.topic not in troubled]
        self.logs = extents(cluster, led, known_only=True)
        sizes = log_sizes(cluster, leaders, set(leaders.values()))
        self.sizes = {
            size.partition: size.size for size in sizes if size.broker_id == leaders[size.partition]
        }
        self.configs = admin.topic_configs(cluster, [topic.name for topic in topics])


def _ask(
    cluster: Cluster, topics: Sequence[TopicView], silent: set[int]
) -> dict[str, _Answers | ApiError]:
    """The answers for each topic.  If one is in the way (deleted meanwhile), the others do not
    suffer: half of them are asked about, and the other half."""
    try:
        found = _Answers(cluster, topics, silent)
    except ApiError as error:
        if len(topics) == 1:
            return {topics[0].name: error}
        middle = len(topics) // 2
        return {
            **_ask(cluster, topics[:middle], silent),
            **_ask(cluster, topics[middle:], silent),
        }
    return {topic.name: found for topic in topics}


def _describe(
    topic: TopicView, told: _Answers, coming: Mapping[tuple[str, int], set[int]]
) -> dict[str, Any]:
    rows = [TopicPartition(topic.name, part.index) for part in topic.partitions]
    configs = told.configs[topic.name]
    exact = _counts_records(configs)
    added = [coming.get((topic.name, part.index), set()) for part in topic.partitions]
    partitions = []
    for row, part, new in zip(rows, topic.partitions, added, strict=True):
        log = told.logs.get(row)
        partitions.append(
            {
                "partition": part.index,
                "leader": part.leader,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "adding": sorted(new),
                "offline": list(part.offline),
                "start": log.start if log else None,
                "end": log.end if log else None,
                "offsets": log.end - log.start if log else None,
                "records": log.end - log.start if log and exact else None,
                "bytes": told.sizes.get(row),
            }
        )
    return {
        "name": topic.name,
        "topic_id": uuid_text(topic.topic_id),
        "internal": topic.internal,
        "replication_factor": min(
            (
                len(set(part.replicas) - new)
                for part, new in zip(topic.partitions, added, strict=True)
            ),
            default=0,
        ),
        "partitions": partitions,
        "config": {row.name: row.value for row in configs if row.source == "topic"},
        "inherited": {
            row.name: row.value for row in configs if row.source not in ("topic", DEFAULT_SOURCE)
        },
    }


def _counts_records(configs: list[ConfigEntry]) -> bool:
    """Is there a record for each offset?  Compaction leaves gaps, and they stay.

    A policy that was set on the topic itself may have been another one before.
    """
    policy = next((row for row in configs if row.name == "cleanup.policy"), None)
    return policy is not None and policy.source != "topic" and "compact" not in str(policy.value)


def _show_topic(topic: dict[str, Any]) -> None:
    parts = topic["partitions"]
    click.secho(topic["name"], bold=True, nl=False)
    counted = all(part["records"] is not None or part["offsets"] is None for part in parts)
    click.echo(
        f"  {plural(len(parts), 'partition')}, {plural(topic['replication_factor'], 'replica')}, "
        f"{_extent(parts, counted)}, id {topic['topic_id']}"
    )
    for heading in ("config", "inherited"):
        for name, value in topic[heading].items():
            click.echo(f"  {name}={value}" + ("  (from the broker)" * (heading == "inherited")))
    behind = sum(bool({*part["replicas"]} - {*part["isr"], *part["adding"]}) for part in parts)
    moving = sum(bool(part["adding"]) for part in parts)
    if moving:
        click.echo(f"  {plural(moving, 'partition')} on the move to other brokers")
    leaderless = sum(part["leader"] < 0 for part in parts)
    if behind or leaderless:
        click.secho(
            f"  {plural(behind, 'partition')} under-replicated, {leaderless or 'none'} offline",
            fg="red" if leaderless else "yellow",
        )
    count = "records" if counted else "offsets"
    columns = ("partition", "leader", "replicas", "in sync", "start", "end", count, "size")
    show_table(
        columns,
        [
            (
                part["partition"],
                part["leader"] if part["leader"] >= 0 else "none",
                ",".join(map(str, part["replicas"])),
                ",".join(map(str, part["isr"])),
                *(["?"] * 4 if _is_silent(part) else _extent_cells(part)),
            )
            for part in parts
        ],
        right=("partition", "start", "end", count, "size"),
        indent="  ",
    )


def _is_silent(part: dict[str, Any]) -> bool:
    """It has a leader, as far as others know, and that one has not told."""
    return part["leader"] >= 0 and part["offsets"] is None


def _extent_cells(part: dict[str, Any]) -> list[Any]:
    size = None if part["bytes"] is None else size_text(part["bytes"])
    return [part["start"], part["end"], part["offsets"], size]


def _extent(parts: list[dict[str, Any]], counted: bool) -> str:
    """How much there is, as far as anybody can know: nobody knows of partitions without leader."""
    known = [part for part in parts if part["offsets"] is not None]
    silent = sum(map(_is_silent, parts))
    if parts and not known:
        return f"{'' if silent else 'offline: '}how many records it has is unknown"
    records = plural(sum(part["offsets"] for part in known), "record")
    size = size_text(sum(part["bytes"] or 0 for part in known))
    offline = len(parts) - len(known) - silent
    beside = f" beside {plural(offline, 'partition')} that are offline" if offline else ""
    if silent:
        beside += f" beside {plural(silent, 'partition')} whose leader does not tell"
    return f"{'' if counted else 'up to '}{records}, {size}{beside}"
