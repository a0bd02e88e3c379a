"""ListOffsets: from a time to an offset.

Timestamps: -1 latest, -2 earliest, -3 the record with the largest timestamp (v7),
-4 earliest local (v8), -5 latest tiered (v9: nothing is tiered here), -6 earliest
pending upload (v11: likewise); anything else is a time in ms.
Nothing at or past the high watermark is found; with ``read_committed``, at or past the last
stable offset (the start of the oldest open transaction).
A partition that is asked for twice is INVALID_REQUEST, as in Kafka.
Versions: 1 one offset per partition; 2 isolation level; 4 leader epoch; 6 flexible;
10 timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.log import timestamps
from tidelog.partition.offload import Job, Work
from tidelog.partition.partition import Partition
from tidelog.partition.validation import Budget
from tidelog.wire.compression import DecompressedTooLarge
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.primitives import ProtocolError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_READ_COMMITTED = 1
_FIRST_NOT_AVAILABLE = 5
_MOST_DECOMPRESSED = 256 * 1024 * 1024  # of a batch that is searched for a time
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)


@api(ListOffsetsRequest, versions=(1, 11))
def list_offsets(
    broker: Broker, message: ListOffsetsRequest, request: Request
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    """Find offsets: earliest, latest, by time."""
    work = _look_up_all(broker, message, request.version)
    try:
        job = next(work)
    except StopIteration as done:
        answer: ListOffsetsResponse = done.value
        return answer
    return broker.offload.finish(work, job)


def _look_up_all(
    broker: Broker, message: ListOffsetsRequest, version: int
) -> Work[ListOffsetsResponse]:
    """One partition after the other; yields what is too much for the event loop."""
    asked = Counter(
        (topic.name, row.partition_index) for topic in message.topics for row in topic.partitions
    )
    committed = message.isolation_level == _READ_COMMITTED
    follower = message.replica_id >= 0 and broker.member is not None
    budget = Budget()
    answer = ListOffsetsResponse(topics=[])
    for topic in message.topics:
        answer.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=[]))
        for row in topic.partitions:
            if asked[topic.name, row.partition_index] == 1:
                result = yield from _look_up(
                    broker, topic.name, row, committed, follower, version, budget
                )
            else:
                result = ListOffsetsPartitionResponse(
                    partition_index=row.partition_index, error_code=ErrorCode.INVALID_REQUEST
                )
            answer.topics[-1].partitions.append(result)
    return answer


def _look_up(
    broker: Broker,
    topic: str,
    row: ListOffsetsPartition,
    committed: bool,
    follower: bool,
    version: int,
    budget: Budget,
) -> Work[ListOffsetsPartitionResponse]:
    index = row.partition_index
    try:
        partition = broker.replicas.find(topic, index, broker.metadata)
        partition.check_leader(row.current_leader_epoch)
        log = partition.log
        if follower and row.timestamp == LATEST:
            timestamp, offset = -1, log.end_offset
        else:
            timestamp, offset = yield from _find(partition, row.timestamp, committed, budget)
            partition.check_leader(row.current_leader_epoch)  # still, after a long search?
            beyond = row.timestamp == LATEST or (
                offset < 0 and (row.timestamp >= 0 or row.timestamp == MAX_TIMESTAMP)
            )
            if beyond and log.high_watermark < partition.epoch_start:
                # Just elected: the high watermark may be older than what consumers have seen, and
                # a record that is not found may lie above it (KIP-207).
                raise ApiError(
                    ErrorCode.OFFSET_NOT_AVAILABLE
                    if version >= _FIRST_NOT_AVAILABLE
                    else ErrorCode.LEADER_NOT_AVAILABLE
                )
    except ProtocolError:
        code = ErrorCode.CORRUPT_MESSAGE  # a batch whose records cannot be read
        return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
    except ApiError as error:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error.code)
    except OSError:
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
    if offset < 0:
        epoch = -1
    elif offset >= log.end_offset:
        epoch = partition.leader_epoch  # the next record will be of this epoch
    else:
        epoch = log.epochs.epoch_at(offset)
    return ListOffsetsPartitionResponse(
        partition_index=index, error_code=0, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _find(
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
        newest = yield from _run(timestamps.search_newest(log), budget)
        return newest if newest is not None and newest[1] < end else (-1, -1)
    if timestamp < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{timestamp} is not a timestamp")
    found = yield from _run(timestamps.search(log, timestamp, end), budget)
    return found or (-1, -1)


def _run(search: timestamps.Search, budget: Budget) -> Work[timestamps.Found]:
    """Look into the batches that a search asks for: small ones here, others elsewhere."""
    try:
        look = next(search)
        while True:
            found: timestamps.Found = None
            here = budget.allows(look.header)
            if here:
                # Only the times of the records are read: what else is in there costs little.
                try:
                    found = look.function(*look.args, budget.bytes_here)
                except DecompressedTooLarge:
                    here = False
                budget.bytes_here -= look.header.size
            if not here:
                found = yield Job(look.function, (*look.args, _MOST_DECOMPRESSED))
            look = search.send(found)
    except StopIteration as done:
        result: timestamps.Found = done.value
        return result
