"""``tidelog topics explain-compaction``: how dirty a topic is, what would go, and why not yet.

Works with any Kafka broker: it reads the records, the settings and the sizes, and tells
the rest from them.  A fetch does not reach past the end of a segment, so the answers
show where segments begin.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import click

from tidelog.client import admin
from tidelog.client.admin import Resource
from tidelog.client.cluster import Cluster, TopicView, error_of
from tidelog.client.offsets import Extent
from tidelog.client.partitions import extents
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.settings import LogConfig, Settings
from tidelog.settings_table import LONG_MAX
from tidelog.text import plural
from tidelog.tools.compaction_view import (
    IN_ACTIVE,
    NEWER_IN_ACTIVE,
    Explanation,
    Survey,
    explain,
    why_there,
)
from tidelog.tools.formats import ENCODING_ALIASES
from tidelog.tools.options import Choice, bootstrap_option, connect, json_option
from tidelog.tools.output import paragraph, short_time, show_json, show_table, size_text, time_text
from tidelog.topic_partition import TopicPartition
from tidelog.wire.batch import MAGIC, is_valid, read_header
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.records import split_batches

SETTINGS = (
    "cleanup.policy",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
    "segment.bytes",
    "segment.ms",
)
RETENTION = ("retention.ms", "retention.bytes")  # of compact,delete
KEY_ENCODINGS = ("utf-8", "hex", "base64")
ESTIMATED = (
    "Estimated from the records: where segments begin (a fetch ends there), how far the log "
    "is clean (the last trace of compaction), and a record's size (its share of a batch)."
)
_FETCH_BYTES = 4 * 1024 * 1024
_LAST_WITH_NAMES = 12  # from Fetch 13 on, topics go by their ids


@click.command("explain-compaction")
@click.argument("topic")
@click.option("-p", "--partition", "only", type=click.IntRange(0), help="Only this partition.")
@click.option("--key", help="Show every record of this key, and why it is still there.")
@click.option(
    "--key-encoding",
    type=Choice(KEY_ENCODINGS, ENCODING_ALIASES),
    default="utf-8",
    show_default=True,
    help="How --key is written, for keys that are no text.",
)
@bootstrap_option
@json_option
def explain_compaction(
    topic: str,
    only: int | None,
    key: str | None,
    key_encoding: str,
    bootstrap: str,
    as_json: bool,
) -> None:
    """How dirty a compacted topic is, what the next round would remove, and why older records
    are still there.  Reads the whole topic (or partition)."""
    wanted = None if key is None else _key_bytes(key, key_encoding)
    with connect(bootstrap) as cluster:
        view = cluster.topics([topic])[topic]
        rows = _partitions(view, only)
        config = _config(cluster, topic)
        now_ms = SystemClock().now_ms()
        logs = extents(cluster, rows)
        surveys = {row: _survey(cluster, view, row, logs[row]) for row in rows}
    found = {
        row.partition: explain(survey, logs[row].start, logs[row].end, config, now_ms)
        for row, survey in surveys.items()
    }
    shown: list[dict[str, Any]] | None = None
    if wanted is not None:
        shown = [
            entry
            for row, survey in surveys.items()
            for entry in _versions(row.partition, survey, found[row.partition], config, wanted)
        ]
    if as_json:
        show_json([{**_report(topic, config, found), "key": key, "versions": shown, "error": None}])
        return
    _show(topic, config, found)
    if shown is not None and not shown:
        click.echo(
            f"\nThere is no record of key {key!r}: it was never written, "
            "or it was deleted and its tombstone is gone."
        )
    elif shown is not None:
        click.echo(f"\nRecords of key {key!r}:")
        columns = ("partition", "offset", "time", "segment", "kind", "why it is there")
        show_table(
            columns,
            [list(row.values()) for row in shown],
            right=("partition", "offset"),
            short={"time": short_time},
        )
    click.echo()
    paragraph(ESTIMATED)


def _partitions(view: TopicView, only: int | None) -> list[TopicPartition]:
    indexes = [part.index for part in view.partitions]
    if only is not None and only not in indexes:
        numbers = "partition 0 only" if len(indexes) == 1 else f"partitions 0 to {len(indexes) - 1}"
        raise click.BadParameter(f"{view.name} has {numbers}", param_hint="--partition")
    return [TopicPartition(view.name, i) for i in indexes if only in (None, i)]


def _config(cluster: Cluster, topic: str) -> LogConfig:
    described = admin.describe_configs(cluster, Resource.TOPIC, topic)
    names = (*SETTINGS, *RETENTION)
    known = {row.name: row.value for row in described if row.name in names and row.value}
    return LogConfig.of(Settings.of(), {name: str(value) for name, value in known.items()})


def _key_bytes(text: str, encoding: str) -> bytes:
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise click.BadParameter(f"{text!r} is not {encoding}", param_hint="--key") from None
    return text.encode()


def _shown_settings(config: LogConfig) -> tuple[str, ...]:
    """Those that decide what goes."""
    return SETTINGS + (RETENTION if "delete" in config.cleanup_policy else ())


# -- reading --------------------------------------------------------------------


def _survey(cluster: Cluster, view: TopicView, row: TopicPartition, log: Extent) -> Survey:
    survey = Survey(log.start)
    for batch, new_segment in _batches(cluster, view, row, log):
        if len(batch) <= 16 or batch[16] != MAGIC or not is_valid(batch):
            offset = read_header(batch).base_offset if len(batch) >= 61 else log.start
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{row}: the batch at {offset} is damaged")
        survey.add(batch, new_segment=new_segment)
    return survey


def _batches(
    cluster: Cluster, view: TopicView, row: TopicPartition, log: Extent
) -> Iterator[tuple[memoryview, bool]]:
    """Every batch, and whether it is the first one of a segment."""
    offset, limit, new_segment = log.start, _FETCH_BYTES, True
    while offset < log.end:
        leader = next(iter(cluster.by_leader([row])))
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=limit,
            topics=[
                FetchTopic(
                    topic=view.name,
                    topic_id=view.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=row.partition, fetch_offset=offset, partition_max_bytes=limit
                        )
                    ],
                )
            ],
        )
        answer = cluster.ask(request, FetchResponse, broker=leader, at_most=_LAST_WITH_NAMES)
        data = answer.responses[0].partitions[0]
        if answer.error_code or data.error_code:
            raise error_of(answer.error_code or data.error_code, None, f"{row}@{offset}")
        batches = list(split_batches(data.records or b""))
        if not batches:
            return  # the rest is only offsets whose records are gone
        for batch in batches:
            yield batch, new_segment
            new_segment = False
        offset = read_header(batches[-1]).last_offset + 1
        new_segment = len(data.records or b"") < limit and offset < data.high_watermark


# -- telling --------------------------------------------------------------------


def _report(topic: str, config: LogConfig, found: dict[int, Explanation]) -> dict[str, Any]:
    return {
        "name": topic,
        "config": {name: _value(config, name) for name in _shown_settings(config)},
        "partitions": [
            {
                "partition": index,
                "segments": row.segments,
                "active_segment": row.active_base,
                "active_bytes": row.active_bytes,
                "active_closes_after": None
                if row.active_until_ms is None
                else time_text(row.active_until_ms),
                "cleaned_to": row.cleaned_to,
                "first_uncleanable": row.cleanable.end,
                "clean_bytes": row.cleanable.clean_bytes,
                "dirty_bytes": row.cleanable.dirty_bytes,
                "dirty_ratio": round(row.cleanable.dirty_ratio, 4),
                "overdue": row.cleanable.overdue,
                "due": row.due,
                "keys": row.keys,
                "records": row.records,
                "tombstones": row.tombstones,
                "without_key": row.keyless,
                "would_go": {"records": row.goes_records, "bytes": round(row.goes_bytes)},
                "older_records": {
                    why: {"records": reason.records, "bytes": round(reason.size)}
                    for why, reason in row.reasons.items()
                },
            }
            for index, row in found.items()
        ],
        "estimated": ["segments", "active_segment", "cleaned_to", "bytes of records"],
    }


def _value(config: LogConfig, name: str) -> Any:
    value = getattr(config, name.replace(".", "_"))
    return ",".join(value) if isinstance(value, tuple) else value


def _show(topic: str, config: LogConfig, found: dict[int, Explanation]) -> None:
    click.secho(topic, bold=True)
    for name in _shown_settings(config):
        value = _value(config, name)
        click.echo(f"  {name}={'no limit' if value in (LONG_MAX, -1) else value}")
    show_table(
        ("partition", "segments", "keys", "records", "clean to", "dirty", "would go", "next round"),
        [
            (
                index,
                row.segments,
                row.keys,
                row.records,
                "-" if row.cleaned_to is None else row.cleaned_to,
                f"{row.cleanable.dirty_ratio:.0%}",
                f"{row.goes_records:,} ({size_text(row.goes_bytes)})",
                _next_round(row, config),
            )
            for index, row in found.items()
        ],
        right=("partition", "segments", "keys", "records", "clean to", "dirty", "would go"),
        indent="  ",
    )
    reasons = [
        (index, reason.records, size_text(reason.size), why, _text(reason.example))
        for index, row in found.items()
        for why, reason in row.reasons.items()
    ]
    if reasons:
        click.echo("\nOlder records of a key, and why they are still there:")
        columns = ("partition", "records", "size", "why", "for example")
        show_table(columns, reasons, right=("partition", "records", "size"), indent="  ")
    elif any(row.keys for row in found.values()):
        click.echo("\nEvery key has one record.")
    else:
        click.echo("\nThere are no records with keys.")
    for line in _active_segments(config, found):
        paragraph(line)
    keyless = sum(row.keyless for row in found.values())
    if keyless and "compact" in config.cleanup_policy:
        click.echo(f"{plural(keyless, 'record')} without a key: compaction removes them.")


def _active_segments(config: LogConfig, found: dict[int, Explanation]) -> Iterator[str]:
    """When what is in the active segments can be cleaned; of those that matter."""
    for index, row in found.items():
        if row.active_until_ms is not None and {IN_ACTIVE, NEWER_IN_ACTIVE} & row.reasons.keys():
            yield (
                f"Partition {index}: the active segment is closed by the first record after "
                f"{time_text(row.active_until_ms)}, or when it would be larger than "
                f"{size_text(config.segment_bytes)} (it has {size_text(row.active_bytes)})."
            )


def _next_round(row: Explanation, config: LogConfig) -> str:
    found = row.cleanable
    if "compact" not in config.cleanup_policy:
        return f"never: cleanup.policy={','.join(config.cleanup_policy)}"
    if row.due:
        return "due" if not found.overdue else "due: max.compaction.lag.ms"
    if not found.dirty_bytes:
        return f"nothing closed to clean{': ' + found.held_back if found.held_back else ''}"
    return f"when more than {config.min_cleanable_dirty_ratio:.0%} is dirty"


def _versions(
    partition: int, survey: Survey, found: Explanation, config: LogConfig, key: bytes
) -> list[dict[str, Any]]:
    rows = survey.versions.get(key, [])
    closed = len(survey.segments) - 1
    cleanable = sum(s.end_offset <= found.cleanable.end for s in survey.segments[:closed])
    compacted = "compact" in config.cleanup_policy
    why = dict(why_there(rows, cleanable, closed, found.due, compacted))
    return [
        {
            "partition": partition,
            "offset": row.offset,
            "time": time_text(row.timestamp),
            "segment": survey.segments[row.segment].base_offset,
            "kind": "tombstone" if row.tombstone else "value",
            "why": why.get(row) or _why_newest(row.tombstone, row.horizon),
        }
        for row in rows
    ]


def _why_newest(tombstone: bool, horizon: int | None) -> str:
    if not tombstone:
        return "it is the newest"
    if horizon is None:
        return "a tombstone that no round has met yet; then it stays delete.retention.ms"
    return f"a tombstone; a round may remove it from {time_text(horizon)} on"


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
