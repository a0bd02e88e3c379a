"""When a batch may be acknowledged: acks=all, and what coordinators write.

Before the append enough replicas must be in sync (``min.insync.replicas``, checked by
``Leader.append``); after it the high watermark must pass the batch, while the same leader leads
in the same epoch, and then enough replicas must still be in sync.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import ErrorCode
from tidelog.partition.leader import Leader

_OPEN, _NONE = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE


class Unacknowledged(NamedTuple):
    """A batch that is written, but was not committed when it was written."""

    leader: Leader  # that has written it
    last_offset: int

    def error(self) -> ErrorCode:
        """What to answer if it were now; REQUEST_TIMED_OUT as long as it may be committed."""
        leader = self.leader
        partition = leader.partition
        if partition.deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition.leader is not leader:
            # What lies at its offset now, or soon, may be another leader's.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.log.high_watermark <= self.last_offset:
            return _OPEN
        if leader.in_sync < leader.min_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return _NONE

    @property
    def undecided(self) -> bool:
        return self.error() is _OPEN
