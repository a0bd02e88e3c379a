"""The leader of a partition in one leader epoch: appends, in-sync replicas, high watermark.

The leader appends what producers send, and learns from the followers' fetches how far they are;
the high watermark is what all replicas in sync have.  Without followers (a single broker, one
replica) it is the log end.

A new epoch is a new object.  What waits for a batch to be committed holds the leader that has
written it, and can see whether that one still leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from tidelog.errors import ApiError, ErrorCode
from tidelog.log import descriptors
from tidelog.metadata import PartitionInfo
from tidelog.partition.in_sync import InSync
from tidelog.partition.sequence_gaps import SequenceGaps
from tidelog.partition.validation import Budget, Rules, ValidatedBatch, rewrite_here
from tidelog.settings import LogConfig
from tidelog.settings_table import LONG_MAX
from tidelog.wire.batch import (
    CODEC_MASK,
    TRANSACTIONAL,
    check_produced,
    read_header,
)
from tidelog.wire.compression import Codec

if TYPE_CHECKING:
    from tidelog.partition.partition import Partition

_new_tuple = tuple.__new__  # half the time of Appended(...)
_ZSTD = int(Codec.ZSTD)
_NEWEST_ZSTD_BLIND_PRODUCE = 6  # clients before Produce 7 do not know zstd
ALL_ACKS = -1
_AWAIT_SECONDS = 1.0  # for the next fetch of a follower that may come into sync


class AppendInfo(NamedTuple):
    """Where a batch was written; ``append_time_ms`` is -1 if its records keep their own time."""

    base_offset: int
    last_offset: int
    append_time_ms: int


class Leader:
    """See the module."""

    def __init__(self, partition: Partition, info: PartitionInfo, now_ms: int) -> None:
        self.partition = partition
        self.epoch = info.leader_epoch
        self.in_sync = 0  # how many replicas are in sync
        self.min_in_sync = 1  # how many must be, for acks=all
        self.in_sync_set: InSync | None = None  # if there are followers
        self._log = partition.log
        self._watchers = partition.watchers
        self._replicas = partition.replicas
        # Known at once and not with the first record: a follower that has more than we have must
        # learn where the epoch before ours ended.
        self._log.begin_epoch(info.leader_epoch)
        self.epoch_start = self._log.end_offset
        self._sequence_gaps = SequenceGaps()
        self._held = False  # the high watermark is more than the log end
        self._only_flushed = False  # consumers see what is flushed
        self._rules = Rules.of(partition.topic, self._log.config)
        self._rewrites = False
        self._set_replicas(info, now_ms)
        self.configure(self._log.config)

    def configure(self, config: LogConfig) -> None:
        """New settings; what they ask of a batch is decided here, not for each batch."""
        self._only_flushed = config.visibility == "flushed"
        self._follow_settings(config)
        # Batches are looked into, or rewritten, only if a setting asks for it.
        rules = self._rules = Rules.of(self.partition.topic, config)
        self._rewrites = self.partition.internal or rules.append_time or rules.open_all
        self._advance_high_watermark()

    @property
    def leads(self) -> bool:
        """Does this one still lead?"""
        return self.partition.leader is self and not self.partition.deleted

    def update(self, info: PartitionInfo, now_ms: int) -> None:
        """The same epoch goes on, with other replicas or another in-sync set."""
        self._set_replicas(info, now_ms)
        self._follow_settings(self._log.config)
        self._advance_high_watermark()
        self._watchers.wake()

    def _follow_settings(self, config: LogConfig) -> None:
        """What depends on both the settings and the replicas."""
        state = self.in_sync_set
        self._held = self._only_flushed or state is not None
        # As many as ``min.insync.replicas`` says, but not more than there are.
        replicas = 1 if state is None else len(state.followers) + 1
        self.min_in_sync = min(config.min_insync_replicas, replicas)

    def _set_replicas(self, info: PartitionInfo, now_ms: int) -> None:
        state = self.in_sync_set
        if len(info.replicas) == 1:
            self.in_sync_set = None
            self.in_sync = len(info.isr)
            return
        if state is None:
            state = self.in_sync_set = InSync(
                info.leader, info.replicas, info.isr, info.partition_epoch, now_ms
            )
        else:
            state.reassigned(info.replicas, now_ms)
            state.decided(info.isr, info.partition_epoch)
        self.in_sync = len(state.isr)

    # -- appending --------------------------------------------------------------

    def append(
        self,
        batch: memoryview,
        version: int,
        now_ms: int,
        budget: Budget | None = None,
        rewritten: ValidatedBatch | None = None,
        *,
        acks: int = 1,
        own: bool = False,
    ) -> AppendInfo:
        """Check a produced batch and write it.  Raises the error to answer, or OpenElsewhere;
        then it is called again with what came of that, ``rewritten``.

        ``own``: it is a coordinator's.  Only they write to internal topics.
        """
        if acks == ALL_ACKS and self.in_sync < self.min_in_sync:
            self._sequence_gaps.forget()
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        writer = self._log
        config = writer.config
        header = check_produced(batch, config.max_decompressed_bytes)
        if len(batch) > config.max_message_bytes:
            raise self._too_large(len(batch))
        codec = header.attributes & CODEC_MASK
        if codec >= _ZSTD and (codec > _ZSTD or version <= _NEWEST_ZSTD_BLIND_PRODUCE):
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if header.attributes & TRANSACTIONAL:
            self._check_transaction()
        append_time = -1
        target: memoryview | bytearray = batch
        if (
            self._rewrites or header.max_timestamp > now_ms + config.message_timestamp_after_max_ms
        ) and not own:
            if self.partition.internal:
                message = f"only the broker writes to {self.partition.topic}"
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
            if rewritten is None or rewritten.rules != self._rules:
                rewritten = rewrite_here(batch, header, self._rules, now_ms, budget)
            target, append_time = rewritten.batch, rewritten.append_time
            header = read_header(target)
            if len(target) > config.max_message_bytes:
                raise self._too_large(len(target))
        if len(target) > config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch has {len(target)} bytes, segment.bytes of {self.partition.topic} "
                f"is {config.segment_bytes}",
            )
        if writer.flush_failed and (
            writer.lost_records or self._only_flushed or config.flush_messages != LONG_MAX
        ):
            # It is tried again by the clock.  Until then nothing can be promised.
            message = "the broker cannot flush; it tries again in a second"
            if writer.lost_records:
                message = "the disk has lost records of this partition; restart the broker"
            self._sequence_gaps.forget()
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        if (
            self.in_sync_set is not None
            and header.base_sequence > 0
            and header.producer_id not in writer.producers.producers
            and self._sequence_gaps.may_close(header)
        ):
            # We know nothing of this producer.  Its history may have expired, or its first
            # batch is still on its way here from the old leader.
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            appended = writer.append(target, header, self.epoch, now_ms)
            # A duplicate too: the flush of the first one may have failed.
            if self.partition.flushes or writer.flush_wanted:
                self.partition.flush_if_due()
        except OSError as error:
            self._replicas.write_failed(writer.directory, error)
            message = f"the broker cannot write: {descriptors.reason(error)}"
            self._sequence_gaps.forget()
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        except ApiError as error:
            if (
                error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                and self.in_sync_set is not None
                and self._sequence_gaps.may_close(header)
            ):
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER) from error
            raise
        if self._sequence_gaps:
            self._sequence_gaps.closed(header.producer_id)
        if self._replicas.storage_failing:
            self._replicas.storage_works(writer.directory)
        if self._held:
            if self.in_sync == 1:  # alone: no follower's fetch will do it
                self._advance_high_watermark()
            if self._watchers.log_end:
                self._watchers.wake_log_end()
        elif writer.high_watermark < writer.end_offset:
            writer.high_watermark = writer.end_offset
            if self._watchers.committed:
                self._watchers.wake()
        return _new_tuple(AppendInfo, (appended[0], appended[1], append_time))

    def _check_transaction(self) -> None:
        """May a transactional batch be appended?  (Here KIP-890 verifies its transaction.)"""
        message = "this release has no transactions: leave transactional.id unset"
        raise ApiError(ErrorCode.INVALID_TXN_STATE, message)

    def _too_large(self, size: int) -> ApiError:
        return ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, max.message.bytes of {self.partition.topic} "
            f"is {self._log.config.max_message_bytes}",
        )

    def delete_records(self, offset: int) -> int:
        """Delete everything below ``offset`` (-1: all); returns the offset."""
        if offset == -1:
            offset = self._log.high_watermark
        if offset < 0:
            message = f"offset {offset} is negative; use -1 for all records"
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        self._log.advance_start(offset)
        self._watchers.wake_all()
        return offset

    # -- the high watermark -----------------------------------------------------

    def _advance_high_watermark(self) -> None:
        end = self._log.recovery_point if self._only_flushed else self._log.end_offset
        state = self.in_sync_set
        if state is not None:
            if len(state.isr) < self.min_in_sync:
                return  # as in Kafka (KIP-966): what too few have is not committed
            end = state.high_watermark(end)
        if end > self._log.high_watermark:
            self._log.high_watermark = end
            self._watchers.wake()

    def flushed(self) -> None:
        """The log was flushed; with ``visibility=flushed`` there is more to see."""
        if self._only_flushed:
            self._advance_high_watermark()

    def low_watermark(self, live: Collection[int]) -> int:
        """Below here no replica on a live broker has a record any more."""
        start, state = self._log.log_start_offset, self.in_sync_set
        return start if state is None else state.low_watermark(start, live)

    # -- followers --------------------------------------------------------------

    def follower_fetched(
        self,
        follower: int,
        offset: int,
        now_ms: int,
        log_start_offset: int = -1,
        broker_epoch: int = -1,
    ) -> None:
        """A follower asks for ``offset``: it has everything below, from its log start on."""
        state = self.in_sync_set
        if state is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if offset > self._log.end_offset:
            # What it has beyond our end is another leader's: it will be truncated.  Counted, it
            # would be taken to have what we write next.
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        awaited = follower in state.awaited
        if not state.fetched(follower, offset, self._log.end_offset, now_ms, broker_epoch):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if len(state.isr) <= len(state.followers):
            self._may_come_into_sync(follower, state)
        if awaited or follower in state.isr or state.proposed is not None:
            self._advance_high_watermark()
        if state.starts_at(follower, log_start_offset):
            self._watchers.wake()

    def _may_come_into_sync(self, follower: int, state: InSync) -> None:
        isr = state.to_add(follower, self._log.high_watermark, self.epoch_start)
        if isr is not None:
            self._replicas.propose_isr(self, isr)
        elif (end := state.awaited.get(follower)) is not None:
            if self.partition.throttled_leader:
                state.no_longer_await(follower, end)  # it is made to wait itself
                return
            loop = asyncio.get_running_loop()
            loop.call_later(_AWAIT_SECONDS, self._no_longer_await, state, follower, end)

    def _no_longer_await(self, state: InSync, follower: int, end: int) -> None:
        state.no_longer_await(follower, end)
        if self.in_sync_set is state and self.leads:
            self._advance_high_watermark()

    def holds_up(self, follower: int) -> bool:
        """May this follower be made to wait, when too much is copied?"""
        state = self.in_sync_set
        return self.partition.throttled_leader and (state is None or follower not in state.isr)

    def check_lag(self, now_ms: int, max_lag_ms: int) -> None:
        """A follower that has not caught up for too long is no longer in sync."""
        state = self.in_sync_set
        if state is not None:
            isr = state.to_drop(self._log.end_offset, now_ms, max_lag_ms)
            if isr is not None:
                self._replicas.propose_isr(self, isr)

    def isr_decided(
        self, asked: tuple[int, ...], isr: tuple[int, ...], partition_epoch: int
    ) -> None:
        """The controller has agreed to a new in-sync set."""
        state = self.in_sync_set
        if state is not None and state.answered(asked, isr, partition_epoch):
            self.in_sync = len(isr)
            self._advance_high_watermark()
            self._watchers.wake()

    def isr_refused(self, asked: tuple[int, ...]) -> None:
        """The controller has not agreed, and will not."""
        if self.in_sync_set is not None:
            self.in_sync_set.refused(asked)
            self._advance_high_watermark()
