"""A follower of a partition: appends what its fetcher brings, as it is, and truncates its log
where it diverges from the leader's.  Its watermarks are the leader's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import PartitionInfo
from tidelog.wire.batch import HEADER_SIZE, is_valid, read_header

if TYPE_CHECKING:
    from tidelog.partition.partition import Partition

log = logging.getLogger(__name__)


class Follower:
    """See the module."""

    def __init__(self, partition: Partition, info: PartitionInfo) -> None:
        self.partition = partition
        self.in_sync = partition.replicas.broker_id in info.isr
        self._log = partition.log
        self._log.forget_empty_epochs()

    def append(
        self, records: memoryview | None, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> None:
        """Append what the leader has sent, and follow its watermarks."""
        writer, partition = self._log, self.partition
        if log_start_offset > writer.log_start_offset:
            # First of all: where that is the end of what we have, the next batch may begin before
            # it.  Up to there nothing is compared, so what we have may be another leader's.
            if log_start_offset > writer.high_watermark:
                writer.high_watermark = min(log_start_offset, writer.end_offset)
            if log_start_offset <= writer.high_watermark:
                writer.advance_start(log_start_offset)
        position, size = 0, len(records) if records is not None else 0
        while size - position >= HEADER_SIZE:
            assert records is not None
            header = read_header(records, position)
            end = position + header.size
            if header.size < HEADER_SIZE or end > size:
                break  # the tail may be cut inside a batch
            batch = records[position:end]
            if not is_valid(batch):
                message = f"a batch from the leader at {header.base_offset} fails its CRC"
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, message)
            writer.append_replicated(batch, header, now_ms)
            position = end
        if position and (partition.flushes or writer.flush_wanted):
            partition.flush_if_due()
        high = min(high_watermark, writer.end_offset)
        if high > writer.high_watermark:
            writer.high_watermark = high
            partition.watchers.wake()

    def truncate_diverged(self, epoch: int, end_offset: int) -> None:
        """The leader's log has ``epoch`` end at ``end_offset``; ours goes on: truncate it."""
        own_epoch, own_end = self._log.epochs.end_offset(epoch, self._log.end_offset)
        # Where we know that epoch, up to where both have it; where we do not, up to the end of
        # the last one before it, and the next fetch asks about that one.
        cut = min(own_end, end_offset) if own_epoch == epoch else own_end
        if own_epoch < 0 or cut < 0:
            cut = end_offset
        cut = max(min(cut, self._log.end_offset), self._log.log_start_offset)
        log.info(
            "%s-%d: truncating our log from %d to %d, where it diverges from the leader's",
            self.partition.topic,
            self.partition.index,
            self._log.end_offset,
            cut,
        )
        self._truncate(cut)

    def reposition(self, leader_start: int, leader_end: int) -> None:
        """Our log end is outside the leader's log."""
        if self._log.end_offset > leader_end:
            self._truncate(leader_end)
        elif self._log.end_offset < leader_start:
            self._log.restart_at(leader_start)

    def _truncate(self, offset: int) -> None:
        if offset < self._log.high_watermark:
            log.warning(
                "%s-%d: truncated to %d, below the high watermark %d",
                self.partition.topic,
                self.partition.index,
                offset,
                self._log.high_watermark,
            )
        self._log.truncate_to(offset)
