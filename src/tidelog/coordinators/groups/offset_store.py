"""The committed offsets of the groups of one shard, and the pending ones.  No I/O.

``replay`` is the way in for plain records, ``replay_transactional`` and ``end_transaction`` for
those of transactions, and ``commit`` for what the shard has just written itself.  All are called
in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.coordinators.groups.offsets import Committed, GroupOffsets, committed_of
from tidelog.coordinators.groups.pending_offsets import PendingOffsets, Place
from tidelog.coordinators.groups.records import (
    OffsetCommitKey,
    OffsetCommitValue,
)


class OffsetStore:
    """See the module."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupOffsets] = {}
        self.pending = PendingOffsets()

    def _of(self, group_id: str) -> GroupOffsets:
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = GroupOffsets()
        return found

    # -- changes ------------------------------------------------------------------

    def commit(self, group_id: str, rows: Iterable[tuple[str, int, Committed]]) -> None:
        """Offsets are committed, and safe."""
        offsets = self._of(group_id)
        for row in rows:
            offsets.set(*row)
            if self.pending:
                self.pending.supersede(group_id, row[:2])

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, reason: str, time_ms: int
    ) -> None:
        """Apply a record that is in no transaction."""
        self._of(key.group).replay(key, value, reason, time_ms)
        if self.pending:
            place = key.topic, key.partition
            if value is None:
                self.pending.remove(key.group, place)
            else:
                self.pending.supersede(key.group, place)

    def replay_transactional(
        self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue, log_offset: int
    ) -> None:
        """Remember a record, at this offset of the log, until its transaction has ended."""
        place = key.topic, key.partition
        self.pending.add(producer_id, key.group, place, committed_of(value), log_offset)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """A marker: what the transaction has committed counts, or is dropped."""
        for group_id, place, log_offset, found in self.pending.end(producer_id, committed):
            self._of(group_id).set(*place, found)
            self.pending.supersede(group_id, place, log_offset)

    # -- looking ------------------------------------------------------------------

    def places(self, group_id: str) -> list[Place]:
        """Partitions for which a group has an offset, or a pending one."""
        counted = {(topic, index) for topic, index, _ in self.groups.get(group_id, ())}
        return sorted(counted | self.pending.places(group_id))

    def uses(self, group_id: str) -> bool:
        """Has the group an offset, or a pending one?"""
        return bool(self.groups.get(group_id)) or bool(self.pending.places(group_id))

    def users(self) -> set[str]:
        """All such groups."""
        counted = {group_id for group_id, offsets in self.groups.items() if offsets}
        return counted | self.pending.groups()
