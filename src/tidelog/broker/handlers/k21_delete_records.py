"""DeleteRecords: move the log start forward; -1 deletes all there is.

Versions: 2 flexible.

The answer waits until the followers on live brokers have deleted the records too
(``partition/record_deletion.py``).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.partition.purgatory import wait_until
from tidelog.partition.record_deletion import RecordDeletion
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

Deletions = list[tuple[str, list[RecordDeletion]]]


@api(DeleteRecordsRequest, versions=(0, 2), needs="DELETE TOPIC")
def delete_records(
    broker: Broker, message: DeleteRecordsRequest, request: Request
) -> DeleteRecordsResponse | Coroutine[Any, Any, DeleteRecordsResponse]:
    """Delete records below an offset."""
    deletions = [
        (
            topic.name,
            [
                RecordDeletion(broker.replicas, topic.name, wanted.partition_index, wanted.offset)
                for wanted in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    broker.replicas.write_checkpoints()  # the new log start survives a crash
    live = broker.metadata.brokers
    open_ones = [one for _, ones in deletions for one in ones if not one.is_over(live)]
    if open_ones:
        return _wait_for_followers(broker, deletions, open_ones, message.timeout_ms)
    return _answer(broker, deletions)


async def _wait_for_followers(
    broker: Broker, deletions: Deletions, open_ones: list[RecordDeletion], timeout_ms: int
) -> DeleteRecordsResponse:
    def done() -> bool:
        return all(one.is_over(broker.metadata.brokers) for one in open_ones)

    partitions = [one.partition for one in open_ones if one.partition is not None]
    await wait_until(done, partitions, timeout_ms)
    return _answer(broker, deletions)


def _answer(broker: Broker, deletions: Deletions) -> DeleteRecordsResponse:
    answer = DeleteRecordsResponse(topics=[])
    for name, ones in deletions:
        answer.topics.append(DeleteRecordsTopicResult(name=name, partitions=[]))
        for one in ones:
            error, low = one.result(broker.metadata.brokers)
            answer.topics[-1].partitions.append(
                DeleteRecordsPartitionResult(
                    partition_index=one.index, low_watermark=low, error_code=error
                )
            )
    return answer
