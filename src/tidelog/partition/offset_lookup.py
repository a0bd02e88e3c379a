"""Look up offsets: the first, the next, and by time (ListOffsets).

An answer lies below the high watermark; with ``read_committed`` below the last stable offset.
The batch that a time leads to may take long to open, so a lookup is a generator that yields what
is too much for the event loop (``offload.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import ApiError, ErrorCode
from tidelog.log import timestamps
from tidelog.partition.offload import Job, Work
from tidelog.partition.partition import Partition
from tidelog.partition.replicas import Replicas
from tidelog.partition.validation import Budget
from tidelog.wire.compression import DecompressedTooLarge
from tidelog.wire.primitives import ProtocolError

_MOST_DECOMPRESSED = 256 * 1024 * 1024  # of a batch that is searched for a time
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)


class Offset(NamedTuple):
    """The answer for one partition."""

    error: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


def look_up(
    replicas: Replicas,
    topic: str,
    index: int,
    leader_epoch: int,
    timestamp: int,
    budget: Budget,
    *,
    committed: bool,
    follower: bool,
) -> Work[Offset]:
    """The offset for a timestamp, or for one of the names above.

    ``committed``: as a ``read_committed`` consumer sees it; ``follower``: as a follower does, for
    which LATEST is the log end.
    """
    try:
        partition = replicas.find(topic, index)
        partition.check_leader(leader_epoch)
        log = partition.log
        if follower and timestamp == LATEST:
            time, offset = -1, log.end_offset
        else:
            time, offset = yield from _search(partition, timestamp, committed, budget)
            partition.check_leader(leader_epoch)  # still, after a long search?
            leader = partition.require_leader()
            missing = timestamp == LATEST or (
                offset < 0 and (timestamp >= 0 or timestamp == MAX_TIMESTAMP)
            )
            if missing and log.high_watermark < leader.epoch_start:
                # Just elected: the high watermark may be older than what consumers have seen, and
                # a record that is not found may lie above it (KIP-207).
                raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
    except ProtocolError:
        return Offset(ErrorCode.CORRUPT_MESSAGE)  # a batch whose records cannot be read
    except ApiError as error:
        return Offset(error.code)
    except OSError:
        return Offset(ErrorCode.KAFKA_STORAGE_ERROR)
    if offset < 0:
        epoch = -1
    elif offset >= log.end_offset:
        epoch = partition.leader_epoch  # the next record will be of this epoch
    else:
        epoch = log.epochs.epoch_at(offset)
    return Offset(0, time, offset, epoch)


def _search(
    partition: Partition, timestamp: int, committed: bool, budget: Budget
) -> Work[tuple[int, int]]:
    log = partition.log
    end = log.last_stable_offset if committed else log.high_watermark
    if timestamp == LATEST:
        return -1, end
    if timestamp in (EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING):
        return -1, log.log_start_offset
    if timestamp == LATEST_TIERED:
        return -1, -1
    if timestamp == MAX_TIMESTAMP:
        newest = yield from run_search(timestamps.search_newest(log), budget)
        return newest if newest is not None and newest[1] < end else (-1, -1)
    if timestamp < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{timestamp} is not a timestamp")
    first = yield from run_search(timestamps.search(log, timestamp, end), budget)
    return first or (-1, -1)


def run_search(search: timestamps.Search, budget: Budget) -> Work[timestamps.Found]:
    """Look into the batches that a search asks for: small ones here, others in the worker."""
    try:
        look = next(search)
        while True:
            record: timestamps.Found = None
            here = budget.allows(look.header)
            if here:
                # Only the times of the records are read: what else is in there costs little.
                try:
                    record = look.function(*look.args, budget.bytes_here)
                except DecompressedTooLarge:
                    here = False
                budget.bytes_here -= look.header.size
            if not here:
                record = yield Job(look.function, (*look.args, _MOST_DECOMPRESSED))
            look = search.send(record)
    except StopIteration as done:
        result: timestamps.Found = done.value
        return result
