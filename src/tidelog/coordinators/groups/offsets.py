"""The committed offsets of one group, and when they expire.  No I/O.

An offset lives as long as the data that it points into: it goes with its topic, and, once
the group has no members, when the log begins after it (a consumer that comes back then starts where
``auto.offset.reset`` says, with the offset or without).  With ``offsets.retention.minutes``
it goes after that time, counted from the last commit and from the moment when the group
became empty (KIP-211).  What was removed, when and why is remembered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tidelog.coordinators.groups.records import (
    SERDE,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.coordinators.records import CoordinatorRecord, EncodedRecord

_REMOVALS_KEPT = 1000  # of one group

_VALUE_3 = struct.Struct(">hqih")  # version, offset, leader epoch, length of the metadata

# The first offset of a partition's log; None if the topic is gone, -1 if it is not known.
LogStart = Callable[[str, int], int | None]


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1  # only if the client said so (OffsetCommit before version 5)


class Removal(NamedTuple):
    """A committed offset that is no more."""

    time_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Usage:
    """How a group uses its offsets just now."""

    empty: bool  # no members
    since_ms: int  # in this state
    subscribed: Set[str] | None  # None: not known


class GroupOffsets:
    """See the module."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, Committed]] = {}
        self.removals: dict[tuple[str, int], Removal] = {}

    def __iter__(self) -> Iterator[tuple[str, int, Committed]]:
        for topic, partitions in self.topics.items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def __bool__(self) -> bool:
        return bool(self.topics)

    def get(self, topic: str, partition: int) -> Committed | None:
        return self.topics.get(topic, {}).get(partition)

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, reason: str, time_ms: int
    ) -> None:
        """Apply a record."""
        if value is None:
            partitions = self.topics.get(key.topic, {})
            partitions.pop(key.partition, None)
            if not partitions:
                self.topics.pop(key.topic, None)
            if reason:
                place = key.topic, key.partition
                self.removals.pop(place, None)
                self.removals[place] = Removal(time_ms, reason)
                if len(self.removals) > _REMOVALS_KEPT:
                    del self.removals[next(iter(self.removals))]
            return
        self.set(key.topic, key.partition, committed_of(value))

    def set(self, topic: str, partition: int, committed: Committed) -> None:
        """An offset is committed, and safe."""
        if self.removals:
            self.removals.pop((topic, partition), None)
        self.topics.setdefault(topic, {})[partition] = committed

    def expired(
        self, now_ms: int, retention_ms: int | None, usage: Usage, log_start: LogStart
    ) -> list[tuple[str, int, str]]:
        """Offsets to remove, with the reason."""
        found = []
        for topic, partition, committed in self:
            reason = _why_gone(topic, partition, committed, now_ms, retention_ms, usage, log_start)
            if reason:
                found.append((topic, partition, reason))
        return found


def _why_gone(
    topic: str,
    partition: int,
    committed: Committed,
    now_ms: int,
    retention_ms: int | None,
    usage: Usage,
    log_start: LogStart,
) -> str:
    start = log_start(topic, partition)
    if start is None:
        return "the topic is deleted"
    if not usage.empty and (usage.subscribed is None or topic in usage.subscribed):
        return ""
    if usage.empty and 0 <= committed.offset < start:  # below 0 it points into no data
        return f"its data is deleted: offset {committed.offset}, and the log starts at {start}"
    if committed.expire_ms >= 0:
        over = committed.expire_ms <= now_ms
        return "the retention time that the client gave with its commit is over" if over else ""
    if retention_ms is None:
        return ""
    since = max(committed.commit_ms, usage.since_ms) if usage.empty else committed.commit_ms
    if since + retention_ms <= now_ms:
        return f"offsets.retention.minutes={retention_ms // 60_000} are over"
    return ""


def committed_of(value: OffsetCommitValue) -> Committed:
    """What a record says."""
    return Committed(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
    )


def commit_record(
    group: str, topic: str, partition: int, committed: Committed
) -> CoordinatorRecord:
    """The record that says it."""
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
        expire_timestamp=committed.expire_ms,
    )
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    # Only version 1 has a time to expire (and no leader epoch).
    return CoordinatorRecord(key, value, version=1 if committed.expire_ms >= 0 else None)


@lru_cache(maxsize=10_000)
def _encoded_key(group: str, topic: str, partition: int) -> bytes:
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    return SERDE.encode(CoordinatorRecord(key, None))[0]


def encode_commit(group: str, topic: str, partition: int, committed: Committed) -> EncodedRecord:
    """``commit_record(...)``, encoded, written out: this is the hot path of a group."""
    if committed.expire_ms >= 0:
        return SERDE.encode(commit_record(group, topic, partition, committed))
    metadata = committed.metadata.encode()
    value = _VALUE_3.pack(3, committed.offset, committed.leader_epoch, len(metadata))
    value += metadata + committed.commit_ms.to_bytes(8, "big")
    return _encoded_key(group, topic, partition), value, ()


def removal_record(group: str, topic: str, partition: int, reason: str) -> CoordinatorRecord:
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    return CoordinatorRecord(key, None, reason)
