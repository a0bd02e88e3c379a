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
from tidelog.errors import ErrorCode
from tidelog.partition.offload import Work
from tidelog.partition.offset_lookup import Offset, look_up
from tidelog.partition.validation import Budget
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_READ_COMMITTED = 1
_FIRST_NOT_AVAILABLE = 5


@api(ListOffsetsRequest, versions=(1, 11), needs="DESCRIBE TOPIC")
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
        (topic.name, wanted.partition_index)
        for topic in message.topics
        for wanted in topic.partitions
    )
    budget = Budget()
    answer = ListOffsetsResponse(topics=[])
    for topic in message.topics:
        answer.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=[]))
        for wanted in topic.partitions:
            index = wanted.partition_index
            if asked[topic.name, index] == 1:
                result = yield from look_up(
                    broker.replicas,
                    topic.name,
                    index,
                    wanted.current_leader_epoch,
                    wanted.timestamp,
                    budget,
                    committed=message.isolation_level == _READ_COMMITTED,
                    follower=message.replica_id >= 0 and not broker.standalone,
                )
            else:
                result = Offset(ErrorCode.INVALID_REQUEST)
            code, timestamp, offset, leader_epoch = result
            if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < _FIRST_NOT_AVAILABLE:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            answer.topics[-1].partitions.append(
                ListOffsetsPartitionResponse(
                    partition_index=index,
                    error_code=code,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=leader_epoch,
                )
            )
    return answer
