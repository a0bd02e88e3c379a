"""One partition on this broker: a replica, with its log.

Everything that happens to a partition happens in one thread: it is the only writer of its log,
and what is not awaited is atomic.  A replica leads or follows (:class:`Leader`, :class:`Follower`);
any replica can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import ApiError, ErrorCode
from tidelog.log.log import Log
from tidelog.log.segment import FileRange
from tidelog.metadata import INTERNAL_TOPICS, PartitionInfo
from tidelog.partition.follower import Follower
from tidelog.partition.leader import Leader
from tidelog.partition.purgatory import Watchers
from tidelog.partition.throttle import is_throttled
from tidelog.settings import LogConfig
from tidelog.settings_table import LONG_MAX

if TYPE_CHECKING:
    from tidelog.partition.replicas import Replicas


class Partition:
    """See the module."""

    def __init__(
        self, replicas: Replicas, topic: str, index: int, topic_id: bytes, log: Log
    ) -> None:
        self.replicas = replicas
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.internal = topic in INTERNAL_TOPICS
        # One of the two, as soon as the controller has said which.
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.leader_epoch = 0
        self.throttled_leader = self.throttled_follower = False
        self.order = (-1, -1)  # leader epoch and partition epoch, as last sent by the controller
        self.deleted = False
        self.watchers = Watchers()
        self.flushes = False  # do the settings ask for flushes?
        self.configure(log.config)

    def configure(self, config: LogConfig) -> None:
        """Go by new settings."""
        if config != self.log.config:
            self.log.configure(config)
        self.flushes = config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX
        broker = self.replicas.broker_id
        named = config.leader_replication_throttled_replicas
        self.throttled_leader = is_throttled(named, self.index, broker)
        named = config.follower_replication_throttled_replicas
        self.throttled_follower = is_throttled(named, self.index, broker)
        if self.leader is not None:
            self.leader.configure(config)

    # -- leading and following ----------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.leader is not None

    def require_leader(self) -> Leader:
        if self.leader is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader

    def lead(self, info: PartitionInfo, now_ms: int) -> None:
        """The controller says that we lead, or which other replicas there are now."""
        if self.leader is None or info.leader_epoch > self.leader_epoch:
            self.leader_epoch = info.leader_epoch
            self.leader, self.follower = Leader(self, info, now_ms), None
            self.watchers.wake()
        else:
            self.leader.update(info, now_ms)

    def follow(self, info: PartitionInfo) -> None:
        """Another broker leads, or none: clients that wait here have to look for the leader."""
        self.leader_epoch = info.leader_epoch
        self.leader, self.follower = None, Follower(self, info)
        self.watchers.wake_all()

    def close(self) -> None:
        """This broker has the partition no longer."""
        self.deleted = True
        # No cycle may be left: the log's files are closed when its last reference goes.
        self.leader = self.follower = None
        self.watchers.wake_all()

    # -- flushing ---------------------------------------------------------------

    def flush_if_due(self) -> None:
        """Something was appended: flush it now, soon or later, as the settings say."""
        writer, config = self.log, self.log.config
        if (
            config.flush_messages != LONG_MAX
            and writer.end_offset - writer.recovery_point >= config.flush_messages
        ):
            self.replicas.flushes.now(self)
        elif writer.flush_wanted:
            self.replicas.flushes.later(self, 0)
        elif config.flush_ms != LONG_MAX:
            self.replicas.flushes.later(self, config.flush_ms)

    def flushed(self) -> None:
        """The log was flushed."""
        if self.leader is not None:
            self.leader.flushed()

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    # -- reading ----------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        """Does the client know the same leader epoch as we do?"""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_leader(self, epoch: int) -> None:
        """Do we lead, in the epoch that the client knows?"""
        self.check_epoch(epoch)
        if self.leader is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def diverging(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """If the log of a reader at ``offset``, whose last batch is of ``last_epoch``, is not a
        beginning of ours: the epoch up to which it may be, and where that ends here."""
        epoch, end = self.log.epochs.end_offset(last_epoch, self.log.end_offset)
        if epoch < 0 or (end >= offset and epoch == last_epoch):
            return None
        return epoch, end

    def read_as_follower(
        self, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> FileRange | None:
        """Records up to the end of the log, committed or not."""
        source = self.log
        if offset < source.log_start_offset or offset > source.end_offset:
            raise self._out_of_range(offset)
        return source.read(offset, max_bytes, source.end_offset, at_least_one=at_least_one)

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> FileRange | None:
        """Visible records from ``offset`` on."""
        source = self.log
        if offset < source.log_start_offset or offset > source.end_offset:
            raise self._out_of_range(offset)
        if offset >= source.high_watermark:
            return None
        return source.read(offset, max_bytes, source.high_watermark, at_least_one=at_least_one)

    def read_committed(
        self, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> tuple[FileRange | None, list[tuple[int, int]]]:
        """Records below the last stable offset, and the aborted transactions among them
        (producer id, first offset), for the reader to leave out."""
        source = self.log
        if offset < source.log_start_offset or offset > source.end_offset:
            raise self._out_of_range(offset)
        end = source.last_stable_offset
        records = source.read(offset, max_bytes, end, at_least_one=at_least_one)
        if records is None:
            return None, []
        aborted = source.aborted_in(offset, records)
        return records, [(entry.producer_id, entry.first_offset) for entry in aborted]

    def _out_of_range(self, offset: int) -> ApiError:
        return ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {self.topic}-{self.index}: there are "
            f"{self.log.log_start_offset} to {self.log.high_watermark}",
        )
