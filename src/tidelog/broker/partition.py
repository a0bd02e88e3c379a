"""One partition on this broker: the only writer of its log.

Everything that happens to a partition happens here, in one thread: a batch is
checked against the topic's settings, appended, and whoever waits is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.coordination.metadata import INTERNAL_TOPICS
from tidelog.errors import ApiError, ErrorCode
from tidelog.log.log import Log
from tidelog.log.segment import FileRange
from tidelog.settings import LogConfig
from tidelog.settings_table import LONG_MAX
from tidelog.wire.batch import (
    CODEC_MASK,
    TRANSACTIONAL,
    BatchHeader,
    check_produced,
    read_header,
    stamp_append_time,
)
from tidelog.wire.compression import Codec
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.records import decode_batch, recompress

if TYPE_CHECKING:
    from tidelog.broker.replicas import Replicas

log = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # half the time of Acknowledged(...)
_ZSTD = int(Codec.ZSTD)
_NEWEST_ZSTD_BLIND_PRODUCE = 6  # clients before Produce 7 do not know zstd


class Acknowledged(NamedTuple):
    """What the producer is told, once ``last_offset`` is below the high watermark."""

    base_offset: int
    last_offset: int
    append_time_ms: int


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
        self.leader_epoch = 0
        self.in_sync = 1
        self.deleted = False
        self._waiting: set[Callable[[], None]] = set()  # parked fetches and acks
        self._flushed = False
        self._flushes = False
        self._rewrites = False
        self.configure(log.config)

    def configure(self, config: LogConfig) -> None:
        """Take new settings; what they need on the way in is decided here, not per batch."""
        if config != self.log.config:
            self.log.configure(config)
        self._flushed = config.visibility == "flushed"
        self._flushes = config.flush_messages != LONG_MAX or config.flush_ms != LONG_MAX
        # Batches are looked into, or rewritten, only if a setting asks for it.
        self._rewrites = (
            self.internal
            or config.message_timestamp_type == "LogAppendTime"
            or config.compression_type != "producer"
            or "compact" in config.cleanup_policy
            or config.message_timestamp_before_max_ms != LONG_MAX
        )
        self._advance_high_watermark()

    # -- writing ----------------------------------------------------------------

    def append(
        self, batch: memoryview, version: int, now_ms: int, *, own: bool = False
    ) -> Acknowledged:
        """Check a produced batch and write it.  Raises the error to answer.

        ``own``: it is a coordinator's.  Nobody else writes to internal topics.
        """
        header = check_produced(batch)
        writer = self.log
        config = writer.config
        if len(batch) > config.max_message_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {len(batch)} bytes, max.message.bytes of {self.topic} "
                f"is {config.max_message_bytes}",
            )
        codec = header.attributes & CODEC_MASK
        if codec >= _ZSTD and (codec > _ZSTD or version <= _NEWEST_ZSTD_BLIND_PRODUCE):
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if header.attributes & TRANSACTIONAL:
            message = "this release has no transactions: leave transactional.id unset"
            raise ApiError(ErrorCode.INVALID_TXN_STATE, message)
        append_time = -1
        target: memoryview | bytearray = batch
        if self._rewrites and not own:
            target, header, append_time = self._rewrite(batch, header, now_ms)
        elif header.max_timestamp > now_ms + config.message_timestamp_after_max_ms:
            raise self._too_new(header.max_timestamp, now_ms)
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
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        try:
            appended = writer.append(target, header, self.leader_epoch, now_ms)
            # A duplicate too: the flush of the first one may have failed.
            if self._flushes or writer.flush_wanted:
                self._flush_if_due()
        except OSError as error:
            self.replicas.storage_failed(writer.directory, error)
            message = f"the broker cannot write: {error.strerror}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        if self.replicas.storage_failing:
            self.replicas.storage_works(writer.directory)
        if not self._flushed and writer.high_watermark < writer.end_offset:
            writer.high_watermark = writer.end_offset
            if self._waiting:
                self.wake()
        return _new_tuple(Acknowledged, (appended[0], appended[1], append_time))

    def _flush_if_due(self) -> None:
        writer, config = self.log, self.log.config
        if (
            config.flush_messages != LONG_MAX
            and writer.end_offset - writer.recovery_point >= config.flush_messages
        ):
            self.replicas.flush_now(self)
        elif writer.flush_wanted:
            self.replicas.flush_later(self, 0)
        elif config.flush_ms != LONG_MAX:
            self.replicas.flush_later(self, config.flush_ms)

    def _rewrite(
        self, batch: memoryview, header: BatchHeader, now_ms: int
    ) -> tuple[bytearray, BatchHeader, int]:
        """The slow way in, for topics whose settings ask for more than a header."""
        if self.internal:
            message = f"only the broker writes to {self.topic}"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        config = self.log.config
        append_time = -1
        wanted = config.compression_type
        codec = header.attributes & CODEC_MASK
        if wanted != "producer":
            target = Codec.NONE if wanted == "uncompressed" else Codec[wanted.upper()]
            rewritten = bytearray(recompress(batch, target) if target != codec else batch)
        else:
            rewritten = bytearray(batch)
        compacted = "compact" in config.cleanup_policy
        create_time = config.message_timestamp_type == "CreateTime"
        if compacted or (create_time and config.message_timestamp_before_max_ms != LONG_MAX):
            self._check_records(rewritten, now_ms, compacted, create_time)
        if create_time:
            if header.max_timestamp > now_ms + config.message_timestamp_after_max_ms:
                raise self._too_new(header.max_timestamp, now_ms)
        else:
            append_time = now_ms
            stamp_append_time(rewritten, now_ms)
        return rewritten, read_header(rewritten), append_time

    def _check_records(
        self, batch: bytearray, now_ms: int, compacted: bool, create_time: bool
    ) -> None:
        oldest = now_ms - self.log.config.message_timestamp_before_max_ms
        try:
            for record in decode_batch(batch):
                if compacted and record.key is None:
                    message = f"topic {self.topic} is compacted: every record needs a key"
                    raise ApiError(ErrorCode.INVALID_RECORD, message)
                if create_time and 0 <= record.timestamp < oldest:
                    raise ApiError(
                        ErrorCode.INVALID_TIMESTAMP,
                        f"timestamp {record.timestamp} is more than "
                        f"message.timestamp.before.max.ms before now ({now_ms})",
                    )
        except ProtocolError as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, error.message) from error

    def _too_new(self, timestamp: int, now_ms: int) -> ApiError:
        return ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {timestamp} is more than message.timestamp.after.max.ms "
            f"after now ({now_ms})",
        )

    # -- visibility -------------------------------------------------------------

    def _advance_high_watermark(self) -> None:
        end = self.log.recovery_point if self._flushed else self.log.end_offset
        if end > self.log.high_watermark:
            self.log.high_watermark = end
            self.wake()

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

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back whenever there is something new to see."""
        self._waiting.add(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._waiting.discard(callback)

    def wake(self) -> None:
        if self._waiting:
            for callback in tuple(self._waiting):
                callback()

    # -- reading ----------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        """Does the client think of the same leader as we do?"""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

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

    def delete_records(self, offset: int) -> None:
        """Forget everything below ``offset`` (-1: all)."""
        if offset == -1:
            offset = self.high_watermark
        if offset < 0:
            message = f"offset {offset} is negative; use -1 for all records"
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        self.log.advance_start(offset)
        self.wake()
