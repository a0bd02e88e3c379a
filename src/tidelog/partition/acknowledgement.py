"""When a batch may be acknowledged: acks=all, and what coordinators write.

Before the append enough replicas must be in sync (``min.insync.replicas``, checked by
``Partition.append``); after it the high watermark must pass the batch, while the same leader
leads in the same epoch, and then enough replicas must still be in sync.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import ErrorCode
from tidelog.partition.partition import Partition


class Unacknowledged(NamedTuple):
    """A batch that is written, but was not committed when it was written."""

    partition: Partition
    last_offset: int
    leader_epoch: int

    def error(self) -> ErrorCode:
        """What to answer if it were now; REQUEST_TIMED_OUT as long as it may be committed."""
        partition = self.partition
        if partition.deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not partition.leads or partition.leader_epoch != self.leader_epoch:
            # What lies at its offset now, or soon, may be another leader's.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.high_watermark <= self.last_offset:
            return ErrorCode.REQUEST_TIMED_OUT
        if partition.in_sync < partition.min_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    @property
    def undecided(self) -> bool:
        return self.error() == ErrorCode.REQUEST_TIMED_OUT
