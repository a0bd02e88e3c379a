"""Offsets committed inside transactions that have not ended yet, of one shard.  No I/O.

A record of a transactional batch counts only when a marker in the same partition commits the
transaction of its producer; one that aborts drops it.  Until then the old offset stays what it
was, and a reader that wants stable offsets must wait.

Which record wins is decided by the order of the log, not by the order of the markers: a commit
that was written later than a pending one makes it void (as in Kafka; otherwise compaction, which
keeps the last record of each key, would change what a group has committed).  A void one still
counts as pending, as its transaction is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.coordinators.groups.offsets import Committed

Place = tuple[str, int]  # topic, partition


class PendingOffset(NamedTuple):
    """A commit that waits for the end of its transaction."""

    log_offset: int  # of its record, in the partition of the shard
    committed: Committed | None  # None: void, a later commit has counted already


class PendingOffsets:
    """By producer id, then group, then partition; the last commit of a transaction counts."""

    def __init__(self) -> None:
        self._transactions: dict[int, dict[str, dict[Place, PendingOffset]]] = {}

    def __bool__(self) -> bool:
        return bool(self._transactions)

    def add(
        self, producer_id: int, group: str, place: Place, committed: Committed, log_offset: int
    ) -> None:
        """A record of a transactional batch."""
        groups = self._transactions.setdefault(producer_id, {})
        groups.setdefault(group, {})[place] = PendingOffset(log_offset, committed)

    def end(self, producer_id: int, committed: bool) -> list[tuple[str, Place, int, Committed]]:
        """A marker: the transaction is over.  Returns what counts from now on.

        Each with the offset of its record in the log; void what is older with ``supersede``.
        """
        groups = self._transactions.pop(producer_id, {})
        if not committed:
            return []
        return [
            (group, place, pending.log_offset, pending.committed)
            for group, places in groups.items()
            for place, pending in places.items()
            if pending.committed is not None
        ]

    def supersede(self, group: str, place: Place, log_offset: int | None = None) -> None:
        """A commit has counted whose record is at ``log_offset`` (None: after all of these)."""
        for places in self._of(group):
            pending = places.get(place)
            if pending is not None and (log_offset is None or pending.log_offset < log_offset):
                places[place] = pending._replace(committed=None)

    def remove(self, group: str, place: Place) -> None:
        """A tombstone: the offset is deleted, the pending ones with it."""
        for producer_id, groups in list(self._transactions.items()):
            places = groups.get(group, {})
            if places.pop(place, None) is not None and not places:
                del groups[group]
            if not groups:
                del self._transactions[producer_id]

    def places(self, group: str) -> set[Place]:
        """Where a group has commits that are pending."""
        return {place for places in self._of(group) for place in places}

    def groups(self) -> set[str]:
        return {group for groups in self._transactions.values() for group in groups}

    def producers(self, group: str) -> list[int]:
        """The producers whose open transactions hold commits of a group."""
        return sorted(p for p, groups in self._transactions.items() if group in groups)

    def _of(self, group: str) -> Iterator[dict[Place, PendingOffset]]:
        for groups in self._transactions.values():
            if group in groups:
                yield groups[group]
