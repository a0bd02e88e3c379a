"""What compaction would do to a partition, told from its records alone.

Pure.  ``Survey`` takes the batches of a partition, segment by segment; ``explain`` says how
dirty the log is, what a round would remove, and why each older record is still there.

A client does not see the cleaner's checkpoint.  What earlier rounds have gone through is
told from the traces that they leave: missing offsets, delete horizons, empty batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tidelog.log.compaction import Cleanable, SegmentFacts, assess
from tidelog.settings import LogConfig
from tidelog.wire.batch import CONTROL, DELETE_HORIZON, read_header
from tidelog.wire.records import decode_batch

NOT_COMPACTED = "the topic is not compacted (cleanup.policy)"
IN_ACTIVE = "it is in the active segment"
NEWER_IN_ACTIVE = "the newer record is in the active segment"
TOO_YOUNG = "its segment is younger than min.compaction.lag.ms"
NEWER_TOO_YOUNG = "the newer record is younger than min.compaction.lag.ms"
NOT_DIRTY = "the dirty ratio is not above min.cleanable.dirty.ratio"
GOES_NEXT = "it goes in the next round"


class Version(NamedTuple):
    """One record of a key."""

    offset: int
    timestamp: int
    size: float  # its share of the batch
    segment: int
    tombstone: bool
    horizon: int | None


@dataclass(slots=True)
class SegmentSeen:
    """A segment as far as a client can see it."""

    base_offset: int
    end_offset: int
    size: int = 0
    oldest_ms: int = -1
    newest_ms: int = -1


@dataclass(slots=True)
class Reason:
    """Older records that are there for the same reason."""

    records: int = 0
    size: float = 0
    example: bytes = b""


@dataclass(slots=True)
class Explanation:
    """The answer for one partition."""

    cleanable: Cleanable
    segments: int
    active_base: int
    cleaned_to: int | None
    due: bool
    keys: int
    records: int
    tombstones: int
    keyless: int
    goes_records: int
    goes_bytes: float
    active_bytes: int  # of the active segment
    active_until_ms: int | None  # the first record after this closes it
    reasons: dict[str, Reason] = field(default_factory=dict)


class Survey:
    """Collects what ``explain`` needs."""

    def __init__(self, start: int) -> None:
        self.segments: list[SegmentSeen] = []
        self.versions: dict[bytes, list[Version]] = {}
        self.keyless = 0
        self.keyless_bytes = 0.0
        self.records = 0
        self._expected = start
        self._traces_to: int | None = None  # compaction has been here

    def add(self, batch: memoryview, *, new_segment: bool) -> None:
        """The next batch; ``new_segment``: it is the first one of its file."""
        header = read_header(batch)
        if new_segment or not self.segments:
            if self.segments:
                self.segments[-1].end_offset = header.base_offset
            self.segments.append(SegmentSeen(header.base_offset, header.last_offset + 1))
        segment = self.segments[-1]
        segment.end_offset = header.last_offset + 1
        if not segment.size:
            segment.oldest_ms = header.max_timestamp
        segment.size += len(batch)
        segment.newest_ms = max(segment.newest_ms, header.max_timestamp)
        if (
            header.base_offset > self._expected
            or header.record_count <= header.last_offset_delta
            or header.attributes & DELETE_HORIZON
        ):
            self._traces_to = header.last_offset + 1
        self._expected = header.last_offset + 1
        if header.attributes & CONTROL:
            return
        share = len(batch) / max(header.record_count, 1)
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        at = len(self.segments) - 1
        for record in decode_batch(batch):
            self.records += 1
            if record.key is None:
                self.keyless += 1
                self.keyless_bytes += share
                continue
            self.versions.setdefault(record.key, []).append(
                Version(record.offset, record.timestamp, share, at, record.value is None, horizon)
            )

    @property
    def cleaned_to(self) -> int | None:
        """The end of the last segment with a trace of compaction; None if there is none."""
        if self._traces_to is None:
            return None
        return next(s.end_offset for s in self.segments if s.end_offset >= self._traces_to)


def explain(survey: Survey, start: int, end: int, config: LogConfig, now_ms: int) -> Explanation:
    """What a round of compaction would do now, and why the rest stays."""
    closed = [
        SegmentFacts(s.base_offset, s.end_offset, s.size, s.oldest_ms, s.newest_ms)
        for s in survey.segments[:-1]
    ]
    cleaned_to = survey.cleaned_to
    found = assess(closed, cleaned_to, start, end, end, config, now_ms)
    compacted = "compact" in config.cleanup_policy
    result = Explanation(
        found,
        len(survey.segments),
        survey.segments[-1].base_offset if survey.segments else end,
        cleaned_to,
        compacted and found.due(config),
        len(survey.versions),
        survey.records,
        sum(rows[-1].tombstone for rows in survey.versions.values()),
        survey.keyless,
        0,
        0.0,
        survey.segments[-1].size if survey.segments else 0,
        _active_until(survey, config) if compacted else None,
    )
    cleanable = sum(segment.end_offset <= found.end for segment in closed)
    for key, rows in survey.versions.items():
        for version, why in why_there(rows, cleanable, len(closed), result.due, compacted):
            reason = result.reasons.setdefault(why, Reason(example=key))
            reason.records += 1
            reason.size += version.size
        newest = rows[-1]
        if newest.tombstone and newest.segment < cleanable and newest.horizon is not None:
            expired = newest.horizon <= now_ms
            result.goes_records += expired
            result.goes_bytes += newest.size * expired
    for why in (NOT_DIRTY, GOES_NEXT):
        if why in result.reasons:
            result.goes_records += result.reasons[why].records
            result.goes_bytes += result.reasons[why].size
    return result


def _active_until(survey: Survey, config: LogConfig) -> int | None:
    """Until when the active segment is written to; its age counts from its first batch."""
    if not survey.segments or survey.segments[-1].oldest_ms < 0:
        return None
    age = min(config.segment_ms, config.max_compaction_lag_ms)
    return survey.segments[-1].oldest_ms + age


def why_there(
    rows: list[Version], cleanable: int, closed: int, due: bool, compacted: bool
) -> list[tuple[Version, str]]:
    """Each older version of a key, and why it is still there.

    The first ``cleanable`` segments can be cleaned, the first ``closed`` are closed.
    """
    found = []
    newest_cleanable = max((row.offset for row in rows if row.segment < cleanable), default=-1)
    for row, newer in pairwise(rows):
        if not compacted:
            why = NOT_COMPACTED
        elif row.segment >= closed:
            why = IN_ACTIVE
        elif row.segment >= cleanable:
            why = TOO_YOUNG
        elif newest_cleanable > row.offset:
            why = GOES_NEXT if due else NOT_DIRTY
        else:
            why = NEWER_IN_ACTIVE if newer.segment >= closed else NEWER_TOO_YOUNG
        found.append((row, why))
    return found
