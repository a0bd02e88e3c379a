"""What compaction must know of transactions while it reads a log from its start.

Pure.  The records of an aborted transaction go.  A marker goes after
``delete.retention.ms`` once nothing of its transaction is left: a consumer that has
seen the beginning of the transaction then had the time to see its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.log.transaction_index import Aborted
from tidelog.wire.batch import TRANSACTIONAL, BatchHeader
from tidelog.wire.markers import Marker


class Transactions:
    """Batches go in, in order; says which may be discarded."""

    def __init__(self, aborted: Iterable[Aborted], start: int) -> None:
        known = [entry for entry in aborted if entry.marker_offset >= start]
        self._waiting = sorted(known, key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, Aborted] = {}
        self._seen: set[int] = set()  # of those that abort: there was a batch of it
        self._committing: set[int] = set()
        self.left: list[Aborted] = []  # aborted transactions of which something is in the log

    def _move_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborting.setdefault(entry.producer_id, entry)

    def discards_data(self, header: BatchHeader) -> bool:
        """Is this batch of an aborted transaction?"""
        if not header.attributes & TRANSACTIONAL:
            return False
        self._move_to(header.last_offset)
        if header.producer_id in self._aborting:
            self._seen.add(header.producer_id)
            return True
        self._committing.add(header.producer_id)
        return False

    def discards_marker(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Is nothing left that needs this control batch?  ``marker``: what it says."""
        self._move_to(header.last_offset)
        if header.record_count == 0:
            return True  # its record is gone already
        if marker is None:
            return False  # of a kind that is not about transactions
        producer_id = header.producer_id
        if marker.committed:
            found = producer_id in self._committing
            self._committing.discard(producer_id)
            return not found
        entry = self._aborting.pop(producer_id, None)
        if entry is None or producer_id not in self._seen:
            return True
        self._seen.discard(producer_id)
        self.left.append(entry)
        return False
