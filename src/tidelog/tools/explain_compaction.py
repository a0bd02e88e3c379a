"""``tidelog topics explain-compaction``: why older records of a key are still there.

Kafka has no request for this, so it works from outside, with any broker: it reads the records.  A
fetch does not reach past the end of a segment, which shows where segments begin.  How far the
cleaner has come, and so how dirty a log is, only the broker knows.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import click

from tidelog.client import admin
from tidelog.client.admin import ConfigResource
from tidelog.client.cluster import Cluster, TopicView, error_of
from tidelog.client.offsets import Extent
from tidelog.client.partitions import extents
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.settings import LogConfig, Settings
from tidelog.settings_table import LONG_MAX
from tidelog.text import plural
from tidelog.tools.formats import ENCODING_ALIASES
from tidelog.tools.options import Choice, bootstrap_option, connect, json_option
from tidelog.tools.output import Column, paragraph, short_time, show_json, show_rows, size_text
from tidelog.topic_partition import TopicPartition
from tidelog.views.times import time_text
from tidelog.wire.batch import CONTROL, DELETE_HORIZON, BatchHeader, is_valid, read_header
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.records import decode_batch, split_batches

NOT_COMPACTED = "the topic is not compacted (cleanup.policy)"
IN_ACTIVE = "it is in the active segment"
NEWER_IN_ACTIVE = "the newer record is in the active segment"
TOO_YOUNG = "its segment is younger than min.compaction.lag.ms"
NEWER_TOO_YOUNG = "the newer record is younger than min.compaction.lag.ms"
GOES_NEXT = "it goes in the next round"
NEWEST = "it is the newest"

_SETTINGS = (
    "cleanup.policy", "min.cleanable.dirty.ratio", "min.compaction.lag.ms",
    "max.compaction.lag.ms", "delete.retention.ms", "segment.bytes", "segment.ms",
)  # fmt: skip
_NO_LIMIT = (str(LONG_MAX), "-1")
_FETCH_BYTES = 4 * 1024 * 1024
_LAST_WITH_NAMES = 12  # from Fetch 13 on, topics go by their ids


class Version(NamedTuple):
    """One record of a key."""

    offset: int
    timestamp: int
    size: float  # its share of the batch
    segment: int
    tombstone: bool
    horizon: int | None  # when a tombstone may go


@dataclass(slots=True)
class Older:
    """Older records that are there for the same reason."""

    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class CompactionReport:
    """A partition: what it holds, and why it holds more than one record of a key."""

    partition: int
    segments: int
    active_segment: int
    active_bytes: int
    active_closes_after: str | None
    keys: int
    records: int
    without_key: int
    older_records: dict[str, Older] = field(default_factory=dict)


class Survey:
    """The segments and records of one partition, as far as a client sees them."""

    def __init__(self, partition: int, config: LogConfig, now_ms: int) -> None:
        self._partition = partition
        self._config = config
        self._youngest_ms = now_ms - config.min_compaction_lag_ms
        self._segments: list[list[BatchHeader]] = []  # the active one is the last
        self._versions: dict[bytes, list[Version]] = {}
        self._records = self._without_key = 0

    def add(self, batch: memoryview, new_segment: bool) -> None:
        """The next batch; ``new_segment``: it is the first one of its file."""
        header = read_header(batch)
        if new_segment:
            self._segments.append([])
        self._segments[-1].append(header)
        if header.attributes & CONTROL:
            return
        share, segment = len(batch) / max(header.record_count, 1), len(self._segments) - 1
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        for record in decode_batch(batch):
            self._records += 1
            if record.key is None:
                self._without_key += 1
                continue
            tombstone = record.value is None
            self._versions.setdefault(record.key, []).append(
                Version(record.offset, record.timestamp, share, segment, tombstone, horizon)
            )

    def _cleanable(self) -> int:
        """How many segments compaction may clean: closed ones, up to the first too young one."""
        for number, segment in enumerate(self._segments[:-1]):
            if max(header.max_timestamp for header in segment) > self._youngest_ms:
                return number
        return max(0, len(self._segments) - 1)

    def _reasons(self, versions: list[Version]) -> Iterator[str]:
        """Why each record of a key is still there."""
        active, cleanable = len(self._segments) - 1, self._cleanable()
        last = max((row.offset for row in versions if row.segment < cleanable), default=-1)
        for version, newer in pairwise(versions):
            if "compact" not in self._config.cleanup_policy:
                yield NOT_COMPACTED
            elif version.segment >= cleanable:
                yield IN_ACTIVE if version.segment == active else TOO_YOUNG
            elif version.offset < last:
                yield GOES_NEXT
            else:
                yield NEWER_IN_ACTIVE if newer.segment == active else NEWER_TOO_YOUNG
        if not versions[-1].tombstone:
            yield NEWEST
        elif (horizon := versions[-1].horizon) is None:
            yield "a tombstone that no round has met yet; then it stays delete.retention.ms"
        else:
            yield f"a tombstone; a round may remove it from {time_text(horizon)} on"

    def report(self, log: Extent) -> CompactionReport:
        active = self._segments[-1] if self._segments else []
        closes = None
        if active and active[0].max_timestamp >= 0:  # its age is that of its first batch
            age = min(self._config.segment_ms, self._config.max_compaction_lag_ms)
            closes = time_text(active[0].max_timestamp + age)
        report = CompactionReport(
            self._partition,
            len(self._segments),
            active[0].base_offset if active else log.end,
            sum(header.size for header in active),
            closes,
            len(self._versions),
            self._records,
            self._without_key,
        )
        for versions in self._versions.values():
            for version, why in zip(versions[:-1], self._reasons(versions), strict=False):
                older = report.older_records.setdefault(why, Older())
                older.records += 1
                older.bytes += round(version.size)
        return report

    def history(self, key: bytes) -> list[dict[str, Any]]:
        """Every record of a key."""
        versions = self._versions.get(key, [])
        return [
            {
                "partition": self._partition,
                "offset": version.offset,
                "time": time_text(version.timestamp),
                "segment": self._segments[version.segment][0].base_offset,
                "kind": "tombstone" if version.tombstone else "value",
                "why": why,
            }
            for version, why in zip(versions, versions and self._reasons(versions), strict=True)
        ]


_PARTITIONS: list[Column[CompactionReport]] = [
    Column("partition", lambda row: row.partition, right=True),
    Column("segments", lambda row: row.segments, right=True),
    Column("keys", lambda row: row.keys, right=True),
    Column("records", lambda row: row.records, right=True),
    Column("active segment", lambda row: row.active_segment, right=True),
    Column("size", lambda row: size_text(row.active_bytes), right=True),
    Column("closes after", lambda row: row.active_closes_after, short=short_time),
]
_OLDER: list[Column[tuple[int, str, Older]]] = [
    Column("partition", lambda row: row[0], right=True),
    Column("records", lambda row: row[2].records, right=True),
    Column("size", lambda row: size_text(row[2].bytes), right=True),
    Column("why", lambda row: row[1]),
]
_VERSIONS: list[Column[dict[str, Any]]] = [
    Column("partition", lambda row: row["partition"], right=True),
    Column("offset", lambda row: row["offset"], right=True),
    Column("time", lambda row: row["time"], short=short_time),
    Column("segment", lambda row: row["segment"]),
    Column("kind", lambda row: row["kind"]),
    Column("why it is there", lambda row: row["why"]),
]


@click.command("explain-compaction")
@click.argument("topic")
@click.option("-p", "--partition", "only", type=click.IntRange(0), help="Only this partition.")
@click.option("--key", help="Show every record of this key, and why it is still there.")
@click.option(
    "--key-encoding",
    type=Choice(("utf-8", "hex", "base64"), ENCODING_ALIASES),
    default="utf-8",
    show_default=True,
    help="How --key is written, for keys that are not text.",
)
@bootstrap_option
@json_option
def explain_compaction(
    topic: str, only: int | None, key: str | None, key_encoding: str, bootstrap: str, as_json: bool
) -> None:
    """Show why older records of a compacted TOPIC are still there, and what a round of
    compaction would remove.  Reads the whole topic (or partition)."""
    wanted = None if key is None else _key_bytes(key, key_encoding)
    with connect(bootstrap) as cluster:
        view = cluster.topics([topic])[topic]
        if only is not None:
            view.leader_of(only)  # raises if there is no such partition
        described = admin.describe_configs(cluster, ConfigResource.TOPIC, topic)
        settings = {row.name: row.value or "" for row in described if row.name in _SETTINGS}
        config, now_ms = LogConfig.of(Settings.of(), settings), SystemClock().now_ms()
        chosen = [
            TopicPartition(topic, p.index) for p in view.partitions if only in (None, p.index)
        ]
        logs = extents(cluster, chosen)
        surveys = {row: Survey(row.partition, config, now_ms) for row in logs}
        for row, survey in surveys.items():
            _read(cluster, view, row, logs[row], survey)
    reports = [survey.report(logs[row]) for row, survey in surveys.items()]
    versions = None
    if wanted is not None:
        versions = [row for survey in surveys.values() for row in survey.history(wanted)]
    if as_json:
        report = {"name": topic, "config": settings, "partitions": reports}
        show_json([{**report, "key": key, "versions": versions, "error": None}])
        return
    click.secho(topic, bold=True)
    for name in _SETTINGS:
        value = settings.get(name)
        click.echo(f"  {name}={'no limit' if value in _NO_LIMIT else value}")
    _show(reports, config)
    if versions:
        click.echo(f"\nRecords of key {key!r}:")
        show_rows(versions, _VERSIONS)
    elif wanted is not None:
        click.echo(
            f"\nThere is no record of key {key!r}: it was never written, "
            "or it was deleted and its tombstone is gone."
        )


def _key_bytes(text: str, encoding: str) -> bytes:
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not {encoding}", param_hint="--key") from None


def _read(
    cluster: Cluster, view: TopicView, row: TopicPartition, log: Extent, survey: Survey
) -> None:
    """All batches of a partition: a fetch that ends early has met the end of a segment."""
    offset, new_segment = log.start, True
    while offset < log.end:
        wanted = FetchPartition(
            partition=row.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
        )
        topic = FetchTopic(topic=view.name, topic_id=view.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=_FETCH_BYTES, topics=[topic])
        leader = next(iter(cluster.by_leader([row])))
        answer = cluster.ask(request, FetchResponse, broker=leader, at_most=_LAST_WITH_NAMES)
        data = answer.responses[0].partitions[0]
        if answer.error_code or data.error_code:
            raise error_of(answer.error_code or data.error_code, None, f"{row}@{offset}")
        batches = list(split_batches(data.records or b""))
        if not batches:
            return  # the rest is only offsets whose records are gone
        for batch in batches:
            if not is_valid(batch):
                base = read_header(batch).base_offset
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{row}: the batch at {base} is damaged")
            survey.add(batch, new_segment)
            new_segment = False
        offset = read_header(batches[-1]).last_offset + 1
        new_segment = len(data.records or b"") < _FETCH_BYTES and offset < data.high_watermark


def _show(reports: list[CompactionReport], config: LogConfig) -> None:
    show_rows(reports, _PARTITIONS, indent="  ")
    older = [(row.partition, why, o) for row in reports for why, o in row.older_records.items()]
    if older:
        click.echo("\nOlder records of a key, and why they are still there:")
        show_rows(older, _OLDER, indent="  ")
        if any(why == GOES_NEXT for _, why, _ in older):
            paragraph(
                f"A round begins when more than {config.min_cleanable_dirty_ratio:.0%} of the "
                "closed segments has not been cleaned yet, or max.compaction.lag.ms has passed."
            )
    elif any(row.keys for row in reports):
        click.echo("\nEvery key has one record.")
    else:
        click.echo("\nThere are no records with keys.")
    keyless = sum(row.without_key for row in reports)
    if keyless and "compact" in config.cleanup_policy:
        click.echo(f"{plural(keyless, 'record')} without a key: compaction removes them.")
