"""The slow way in, for topics whose settings ask for more than a batch's header.  Pure.

Most batches are written as they came.  They are looked into, or written anew, if the topic is
compacted (each record needs a key), has a codec of its own, the broker's time, or a limit for
old timestamps.
"""

from __future__ import annotations

from tidelog.errors import ApiError, ErrorCode
from tidelog.settings import LogConfig
from tidelog.settings_table import LONG_MAX
from tidelog.wire.batch import CODEC_MASK, BatchHeader, read_header, stamp_append_time
from tidelog.wire.compression import Codec
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.records import decode_batch, recompress


def rewrite(
    batch: memoryview, header: BatchHeader, topic: str, config: LogConfig, now_ms: int
) -> tuple[bytearray, BatchHeader, int]:
    """What to append instead, its header, and the time of the append if that is the records'."""
    append_time = -1
    wanted = config.compression_type
    codec = header.attributes & CODEC_MASK
    if wanted != "producer":
        target = Codec.NONE if wanted == "uncompressed" else Codec[wanted.upper()]
        level = config.compression_level
        rewritten = bytearray(recompress(batch, target, level) if target != codec else batch)
    else:
        rewritten = bytearray(batch)
    compacted = "compact" in config.cleanup_policy
    create_time = config.message_timestamp_type == "CreateTime"
    if compacted or (create_time and config.message_timestamp_before_max_ms != LONG_MAX):
        oldest = now_ms - config.message_timestamp_before_max_ms if create_time else 0
        _check_records(rewritten, topic, compacted, oldest, now_ms)
    if create_time:
        if header.max_timestamp > now_ms + config.message_timestamp_after_max_ms:
            raise too_new(header.max_timestamp, now_ms)
    else:
        append_time = now_ms
        stamp_append_time(rewritten, now_ms)
    return rewritten, read_header(rewritten), append_time


def _check_records(batch: bytearray, topic: str, compacted: bool, oldest: int, now_ms: int) -> None:
    try:
        for record in decode_batch(batch):
            if compacted and record.key is None:
                message = f"topic {topic} is compacted: every record needs a key"
                raise ApiError(ErrorCode.INVALID_RECORD, message)
            if 0 <= record.timestamp < oldest:
                raise ApiError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"timestamp {record.timestamp} is more than "
                    f"message.timestamp.before.max.ms before now ({now_ms})",
                )
    except ProtocolError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, error.message) from error


def too_new(timestamp: int, now_ms: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp {timestamp} is more than message.timestamp.after.max.ms after now ({now_ms})",
    )
