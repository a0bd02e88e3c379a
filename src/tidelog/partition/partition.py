"""One partition on this broker: the only writer of its log.

Everything that happens to a partition happens here, in one thread: a batch is
checked against the topic's settings, appended, and whoever waits is told.

A partition leads or follows.  The leader appends what producers send and hears from the
followers' fetches how far they are; the high watermark is what all replicas in sync have.
Without followers (a single broker, one replica) it is the end of the log.  A follower appends
what its fetcher brings, as it is, and takes the leader's high watermark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from tidelog.errors import ApiError, ErrorCode
from tidelog.log import descriptors
from tidelog.log.log import Log
from tidelog.log.segment import FileRange
from tidelog.metadata import INTERNAL_TOPICS, PartitionInfo
from tidelog.partition.in_sync import InSync
from tidelog.partition.purgatory import Watchers
from tidelog.partition.sequence_gaps import Gaps
from tidelog.partition.throttle import is_throttled
from tidelog.partition.validation import Budget, Rewritten, Rules, rewrite_here
from tidelog.settings import LogConfig
from tidelog.settings_table import LONG_MAX
from tidelog.wire.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    TRANSACTIONAL,
    check_produced,
    is_valid,
    read_header,
)
from tidelog.wire.compression import Codec

if TYPE_CHECKING:
    from tidelog.partition.replicas import Replicas

log = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # half the time of Appended(...)
_ZSTD = int(Codec.ZSTD)
_NEWEST_ZSTD_BLIND_PRODUCE = 6  # clients before Produce 7 do not know zstd
_ALL_ACKS = -1
_AWAIT_SECONDS = 1.0  # for the next fetch of a follower that may come into sync


class Appended(NamedTuple):
    """Where a batch was written; ``append_time_ms`` is -1 if its records keep their own time."""

    base_offset: int
    last_offset: int
    append_time_ms: int


class Partition:
    """See the module."""

    def __init__(
        self,
        replicas: Replicas,
        topic: str,
        index: int,
        topic_id: bytes,
        log: Log,
        *,
        leads: bool = True,
    ) -> None:
        self.replicas = replicas
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.internal = topic in INTERNAL_TOPICS
        self.leads = leads
        self.leader_epoch = 0
        self.epoch_start = 0  # where the log ended when we began to lead
        self.in_sync = 1
        self.in_sync_state: InSync | None = None  # of the leader, if there are followers
        self.gaps = Gaps()
        self.caught_up = False  # a follower: the controller has it in sync
        self.throttled_leader = self.throttled_follower = False
        self.order = (-1, -1)  # leader epoch and partition epoch of the latest order
        self.deleted = False
        self.watchers = Watchers()
        self._held = False  # the high watermark is more than the end of the log
        self._flushed = False
        self._flushes = False
        self._rules = Rules.of(topic, log.config)
        self._rewrites = False
        self.configure(log.config)

    def configure(self, config: LogConfig) -> None:
        """Take new settings; what they need on the way in is decided here, not per batch."""
        if config != self.log.config:
            self.log.configure(config)
        self._flushed = config.visibility == "flushed"
        self._held = self._flushed or self.in_sync_state is not None
        self._flushes = config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX
        # Batches are looked into, or rewritten, only if a setting asks for it.
        rules = self._rules = Rules.of(self.topic, config)
        self._rewrites = self.internal or rules.append_time or rules.open_all
        me = self.replicas.broker_id
        named = config.leader_replication_throttled_replicas
        self.throttled_leader = is_throttled(named, self.index, me)
        named = config.follower_replication_throttled_replicas
        self.throttled_follower = is_throttled(named, self.index, me)
        self._advance_high_watermark()

    # -- leading and following ----------------------------------------------------

    def lead(self, info: PartitionInfo, broker_id: int, now_ms: int) -> None:
        """The controller says that we lead, or who else has this partition now."""
        began = not self.leads or info.leader_epoch > self.leader_epoch
        self.leads = True
        self.leader_epoch = info.leader_epoch
        if began:
            # Known at once and not with the first record: a follower that has more than we
            # have must hear where the epoch before ours ended.
            self.log.begin_epoch(info.leader_epoch)
            self.epoch_start = self.log.end_offset
            self.gaps.forget()
        state = self.in_sync_state
        if len(info.replicas) == 1:
            self.in_sync_state = None
        elif began or state is None:
            self.in_sync_state = InSync(
                broker_id, info.replicas, info.isr, info.partition_epoch, now_ms
            )
        else:
            state.reassigned(info.replicas, now_ms)
            state.decided(info.isr, info.partition_epoch)
        state = self.in_sync_state
        self.in_sync = len(info.isr if state is None else state.isr)
        self._held = self._flushed or self.in_sync_state is not None
        self._advance_high_watermark()
        self.watchers.wake()

    def follow(self, info: PartitionInfo) -> None:
        """Another broker leads, or nobody: who waits for us is told to look for the leader."""
        self.log.forget_empty_epochs()
        self.leads = False
        self.leader_epoch = info.leader_epoch
        self.in_sync = len(info.isr)
        self.caught_up = self.replicas.broker_id in info.isr
        self.in_sync_state = None
        self._held = True
        self.watchers.wake_all()

    def follower_fetched(
        self,
        follower: int,
        offset: int,
        now_ms: int,
        log_start_offset: int = -1,
        broker_epoch: int = -1,
    ) -> None:
        """A follower asks for ``offset``: it has everything below, from its log start on."""
        state = self.in_sync_state
        if not self.leads or state is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if offset > self.log.end_offset:
            # What it has beyond our end is another leader's: it will be cut back.  Counted, it
            # would be taken to have what we write next.
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        awaited = follower in state.awaited
        if not state.fetched(follower, offset, self.log.end_offset, now_ms, broker_epoch):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if len(state.isr) <= len(state.followers):
            self._may_come_into_sync(follower, state)
        if awaited or follower in state.isr or state.proposed is not None:
            self._advance_high_watermark()
        if state.starts_at(follower, log_start_offset):
            self.watchers.wake()

    def _may_come_into_sync(self, follower: int, state: InSync) -> None:
        isr = state.to_add(follower, self.log.high_watermark, self.epoch_start)
        if isr is not None:
            self.replicas.propose_isr(self, isr)
        elif (end := state.awaited.get(follower)) is not None:
            if self.throttled_leader:
                state.no_longer_await(follower, end)  # it is made to wait itself
                return
            loop = asyncio.get_running_loop()
            loop.call_later(_AWAIT_SECONDS, self._no_longer_await, state, follower, end)

    def _no_longer_await(self, state: InSync, follower: int, end: int) -> None:
        state.no_longer_await(follower, end)
        if self.in_sync_state is state and not self.deleted:
            self._advance_high_watermark()

    def holds_up(self, follower: int) -> bool:
        """May this follower be made to wait, when too much is copied?"""
        state = self.in_sync_state
        return self.throttled_leader and (state is None or follower not in state.isr)

    def check_lag(self, now_ms: int, max_lag_ms: int) -> None:
        """Who has not caught up for too long is no longer in sync."""
        state = self.in_sync_state
        if self.leads and state is not None:
            isr = state.to_drop(self.log.end_offset, now_ms, max_lag_ms)
            if isr is not None:
                self.replicas.propose_isr(self, isr)

    def isr_decided(
        self, asked: tuple[int, ...], isr: tuple[int, ...], partition_epoch: int
    ) -> None:
        """The controller has agreed to a new in-sync set."""
        state = self.in_sync_state
        if state is not None and state.answered(asked, isr, partition_epoch):
            self.in_sync = len(isr)
            self._advance_high_watermark()
            self.watchers.wake()

    def isr_refused(self, asked: tuple[int, ...]) -> None:
        """The controller has not agreed, and will not."""
        if self.in_sync_state is not None:
            self.in_sync_state.refused(asked)
            self._advance_high_watermark()

    def log_end(self) -> tuple[int, int]:
        """For the fetch of a follower: the end of the log and the epoch of its last batch."""
        end = self.log.end_offset
        if end == self.log.log_start_offset:
            return end, -1
        return end, self.log.epochs.epoch_at(end - 1)

    def replicate(
        self, records: memoryview | None, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> None:
        """Append what the leader has sent, and follow its watermarks."""
        writer = self.log
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
        if position and (self._flushes or writer.flush_wanted):
            self._flush_if_due()
        high = min(high_watermark, writer.end_offset)
        if high > writer.high_watermark:
            writer.high_watermark = high
            self.watchers.wake()

    def cut_diverged(self, epoch: int, end_offset: int) -> None:
        """The leader's log has ``epoch`` end at ``end_offset``; ours goes on: cut it back."""
        own_epoch, own_end = self.log.epochs.end_offset(epoch, self.log.end_offset)
        # Where we know that epoch, up to where both have it; where we do not, up to the end of
        # the last one before it, and the next fetch asks about that one.
        cut = min(own_end, end_offset) if own_epoch == epoch else own_end
        if own_epoch < 0 or cut < 0:
            cut = end_offset
        cut = max(min(cut, self.log.end_offset), self.log.log_start_offset)
        log.info(
            "%s-%d: cutting our log from %d back to %d, where the leader's parts from it",
            self.topic,
            self.index,
            self.log.end_offset,
            cut,
        )
        self._truncate(cut)

    def reposition(self, leader_start: int, leader_end: int) -> None:
        """Our end is outside the leader's log."""
        if self.log.end_offset > leader_end:
            self._truncate(leader_end)
        elif self.log.end_offset < leader_start:
            self.log.restart_at(leader_start)

    def _truncate(self, offset: int) -> None:
        if offset < self.log.high_watermark:
            log.warning(
                "%s-%d: cut back to %d, below the high watermark %d",
                self.topic,
                self.index,
                offset,
                self.log.high_watermark,
            )
        self.log.truncate_to(offset)

    # -- writing ----------------------------------------------------------------

    def append(
        self,
        batch: memoryview,
        version: int,
        now_ms: int,
        budget: Budget | None = None,
        rewritten: Rewritten | None = None,
        *,
        acks: int = 1,
        own: bool = False,
    ) -> Appended:
        """Check a produced batch and write it.  Raises the error to answer, or OpenElsewhere;
        then it is called again with what came of that, ``rewritten``.

        ``own``: it is a coordinator's.  Only they write to internal topics.
        """
        if not self.leads:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == _ALL_ACKS and self.in_sync < self.min_in_sync:
            self.gaps.forget()
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        writer = self.log
        config = writer.config
        header = check_produced(batch, config.max_decompressed_bytes)
        if len(batch) > config.max_message_bytes:
            raise self._too_large(len(batch))
        codec = header.attributes & CODEC_MASK
        if codec >= _ZSTD and (codec > _ZSTD or version <= _NEWEST_ZSTD_BLIND_PRODUCE):
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if header.attributes & TRANSACTIONAL:
            message = "this release has no transactions: leave transactional.id unset"
            raise ApiError(ErrorCode.INVALID_TXN_STATE, message)
        append_time = -1
        target: memoryview | bytearray = batch
        if (
            self._rewrites or header.max_timestamp > now_ms + config.message_timestamp_after_max_ms
        ) and not own:
            if self.internal:
                message = f"only the broker writes to {self.topic}"
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
                f"the batch has {len(target)} bytes, segment.bytes of {self.topic} "
                f"is {config.segment_bytes}",
            )
        if writer.flush_failed and (
            writer.lost_records or self._flushed or config.flush_messages != LONG_MAX
        ):
            # It is tried again by the clock.  Until then nothing can be promised.
            message = "the broker cannot flush; it tries again in a second"
            if writer.lost_records:
                message = "the disk has lost records of this partition; restart the broker"
            self.gaps.forget()
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        if (
            self.in_sync_state is not None
            and header.base_sequence > 0
            and header.producer_id not in writer.producers.producers
            and self.gaps.may_close(header)
        ):
            # We know nothing of this producer.  Its history may have expired, or its first
            # batch is still on its way here from the old leader.
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            appended = writer.append(target, header, self.leader_epoch, now_ms)
            # A duplicate too: the flush of the first one may have failed.
            if self._flushes or writer.flush_wanted:
                self._flush_if_due()
        except OSError as error:
            self.replicas.write_failed(writer.directory, error)
            message = f"the broker cannot write: {descriptors.reason(error)}"
            self.gaps.forget()
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        except ApiError as error:
            if (
                error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                and self.in_sync_state is not None
                and self.gaps.may_close(header)
            ):
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER) from error
            raise
        if self.gaps:
            self.gaps.closed(header.producer_id)
        if self.replicas.storage_failing:
            self.replicas.storage_works(writer.directory)
        if self._held:
            if self.in_sync == 1:  # alone: no follower's fetch will tell
                self._advance_high_watermark()
            if self.watchers.log_end:
                self.watchers.wake_log_end()
        elif writer.high_watermark < writer.end_offset:
            writer.high_watermark = writer.end_offset
            if self.watchers.committed:
                self.watchers.wake()
        return _new_tuple(Appended, (appended[0], appended[1], append_time))

    def _too_large(self, size: int) -> ApiError:
        return ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, max.message.bytes of {self.topic} "
            f"is {self.log.config.max_message_bytes}",
        )

    def _flush_if_due(self) -> None:
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

    # -- visibility -------------------------------------------------------------

    @property
    def min_in_sync(self) -> int:
        """How many replicas in sync acks=all needs: as many as ``min.insync.replicas`` says, but
        not more than there are."""
        state = self.in_sync_state
        replicas = 1 if state is None else len(state.followers) + 1
        return min(self.log.config.min_insync_replicas, replicas)

    def _advance_high_watermark(self) -> None:
        if not self.leads:
            return
        end = self.log.recovery_point if self._flushed else self.log.end_offset
        state = self.in_sync_state
        if state is not None:
            if len(state.isr) < self.min_in_sync:
                return  # as in Kafka (KIP-966): what too few have is not committed
            end = state.high_watermark(end)
        if end > self.log.high_watermark:
            self.log.high_watermark = end
            self.watchers.wake()

    def flushed(self) -> None:
        """The log was flushed; with ``visibility=flushed`` there is more to see."""
        if self._flushed:
            self._advance_high_watermark()

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """What ``read_committed`` consumers may read up to."""
        return self.log.last_stable_offset

    # -- reading ----------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        """Does the client think of the same leader as we do?"""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_leader(self, epoch: int) -> None:
        """Is it us whom the client takes for the leader?"""
        self.check_epoch(epoch)
        if not self.leads:
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
        found = source.read(offset, max_bytes, end, at_least_one=at_least_one)
        if found is None:
            return None, []
        aborted = source.aborted_in(offset, found)
        return found, [(row.producer_id, row.first_offset) for row in aborted]

    def _out_of_range(self, offset: int) -> ApiError:
        return ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {self.topic}-{self.index}: there are "
            f"{self.log.log_start_offset} to {self.log.high_watermark}",
        )

    def delete_records(self, offset: int) -> int:
        """Forget everything below ``offset`` (-1: all); returns the offset."""
        if offset == -1:
            offset = self.high_watermark
        if offset < 0:
            message = f"offset {offset} is negative; use -1 for all records"
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        self.log.advance_start(offset)
        self.watchers.wake_all()
        return offset

    def low_watermark(self, live: Collection[int]) -> int:
        """Below here no replica on a live broker has a record any more."""
        start, state = self.log.log_start_offset, self.in_sync_state
        return start if state is None else state.low_watermark(start, live)
