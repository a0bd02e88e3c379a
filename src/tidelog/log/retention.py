"""Which old segments may go.  Pure: a policy sees facts about segments and a time.

A policy answers with how many segments, counted from the oldest, it would delete, and
why.  The log asks all of them and deletes the most that any asks for.  The active
segment goes only when all its records do (and is replaced by an empty one).
To add a policy, write a class with this one method and put it into ``POLICIES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog.settings import LogConfig


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What a policy may know about a segment."""

    base_offset: int
    end_offset: int  # one past its last record
    size: int
    newest_ms: int
    active: bool


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a policy may know about a log: all segments, oldest first."""

    segments: Sequence[SegmentFacts]
    log_start_offset: int
    high_watermark: int
    config: LogConfig


class RetentionPolicy(Protocol):
    """One reason to delete."""

    name: str

    def deletable(self, facts: LogFacts, now_ms: int) -> int:
        """How many of the oldest segments may go."""
        ...


class ByTime:
    """Segments whose newest record is older than ``retention.ms``."""

    name = "retention.ms"

    def deletable(self, facts: LogFacts, now_ms: int) -> int:
        limit = facts.config.retention_ms
        if limit < 0 or "delete" not in facts.config.cleanup_policy:
            return 0
        count = 0
        for segment in facts.segments:
            empty = segment.active and segment.size == 0  # compaction may empty a closed one
            if now_ms - segment.newest_ms <= limit or empty:
                break
            count += 1
        return count


class BySize:
    """As many of the oldest as leave at least ``retention.bytes``."""

    name = "retention.bytes"

    def deletable(self, facts: LogFacts, now_ms: int) -> int:  # noqa: ARG002
        limit = facts.config.retention_bytes
        if limit < 0 or "delete" not in facts.config.cleanup_policy:
            return 0
        surplus = sum(segment.size for segment in facts.segments) - limit
        count = 0
        for segment in facts.segments[:-1]:
            surplus -= segment.size
            if surplus < 0:
                break
            count += 1
        return count


class BelowLogStart:
    """Segments that DeleteRecords has passed."""

    name = "log start offset"

    def deletable(self, facts: LogFacts, now_ms: int) -> int:  # noqa: ARG002
        count = 0
        for segment in facts.segments[:-1]:
            if segment.end_offset > facts.log_start_offset:
                break
            count += 1
        return count


POLICIES: tuple[RetentionPolicy, ...] = (BelowLogStart(), ByTime(), BySize())


def decide(
    facts: LogFacts, now_ms: int, policies: Sequence[RetentionPolicy] = POLICIES
) -> tuple[int, str]:
    """How many segments go, and by which policy.  Nothing above the high watermark does."""
    safe = 0
    for segment in facts.segments:
        if segment.end_offset > facts.high_watermark:
            break
        safe += 1
    best, reason = 0, ""
    for policy in policies:
        count = min(policy.deletable(facts, now_ms), safe)
        if count > best:
            best, reason = count, policy.name
    return best, reason
