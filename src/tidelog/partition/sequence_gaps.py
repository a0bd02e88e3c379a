"""Batches of idempotent producers that overtake others while the leader changes.  No I/O.

A producer has up to five requests under way.  When the leader moves, the first of them may have
gone to the old leader, or to us just before we knew that we lead, and was refused; the next one
finds us leading, and its sequence leaves a gap.  That gap will close: the client sends all again,
beginning with what was not acknowledged.

OUT_OF_ORDER_SEQUENCE_NUMBER would be wrong here.  librdkafka takes it for a reason to begin a new
epoch, for all partitions; then what the old leader has written but could not acknowledge any
more (it had to say NOT_LEADER_OR_FOLLOWER) gets new sequences, and is in the log twice.  With
NOT_LEADER_OR_FOLLOWER every client waits for its other requests, and starts in order.

A gap is real if the client starts with the same batch again.  It gets that error then, so that it
does not try for ever.
"""

from __future__ import annotations

from tidelog.wire.batch import BatchHeader

MAX_PRODUCERS = 1000  # more at a time: their gaps count as real, at once


class SequenceGaps:
    """Where the producers of one partition left gaps, since we lead it."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, int]] = {}  # producer id: epoch and sequence

    def may_close(self, header: BatchHeader) -> bool:
        """There is a gap before this batch.  May what belongs there still come?"""
        epoch, sequence = header.producer_epoch, header.base_sequence
        first = self._first.get(header.producer_id)
        if first == (epoch, sequence):
            return False
        # To forget another producer instead would let all of them try again in a circle.
        if first is None and len(self._first) >= MAX_PRODUCERS:
            return False
        # With a new epoch sequences begin at 0: they have nothing to do with the old ones.
        if first is None or epoch != first[0] or sequence < first[1]:
            self._first[header.producer_id] = (epoch, sequence)
        return True

    def closed(self, producer_id: int) -> None:
        """A batch of this producer came in order."""
        self._first.pop(producer_id, None)

    def forget(self) -> None:
        """Something else was refused that the client will send again: it may cause new gaps."""
        self._first.clear()

    def __bool__(self) -> bool:
        return bool(self._first)
