"""DeleteRecords: move the log start forward; -1 deletes all there is.

Versions: 2 flexible.

The answer waits until the followers on live brokers have deleted the records too, so that they
are gone for good: no new leader has them.  Who is too slow for the request's timeout makes it
REQUEST_TIMED_OUT; it deletes them with its next fetch all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.partition.partition import Partition
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


class _Deletion:
    """One partition of a request: what was deleted here, and what to answer."""

    def __init__(self, broker: Broker, topic: str, index: int, offset: int) -> None:
        self._broker = broker
        self.index = index
        self.partition: Partition | None = None  # where followers may have to follow
        self._offset = offset
        self._error = 0
        try:
            partition = broker.replicas.find(topic, index, broker.metadata)
            if partition.internal:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            partition.check_leader(-1)
            policy = partition.log.config.cleanup_policy
            if policy and "delete" not in policy:
                raise ApiError(ErrorCode.POLICY_VIOLATION)
            self._offset = partition.delete_records(offset)
            broker.replicas.apply_retention(partition)
            self.partition = partition
        except ApiError as error:
            self._error = error.code
        except OSError as error:
            broker.replicas.storage_failed(topic, error)
            self._error = ErrorCode.KAFKA_STORAGE_ERROR

    def result(self) -> DeleteRecordsPartitionResult:
        """What to answer if it were now."""
        code, low, partition = self._error, -1, self.partition
        if partition is not None and (partition.deleted or not partition.leads):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif partition is not None:
            low = partition.low_watermark(self._broker.metadata.brokers)
            code = 0 if low >= self._offset else ErrorCode.REQUEST_TIMED_OUT
        return DeleteRecordsPartitionResult(
            partition_index=self.index, low_watermark=low, error_code=code
        )

    def waits(self) -> bool:
        return self.result().error_code == ErrorCode.REQUEST_TIMED_OUT


@api(DeleteRecordsRequest, versions=(0, 2))
def delete_records(
    broker: Broker, message: DeleteRecordsRequest, request: Request
) -> DeleteRecordsResponse | Coroutine[Any, Any, DeleteRecordsResponse]:
    """Delete records below an offset."""
    rows = [
        (
            topic.name,
            [
                _Deletion(broker, topic.name, row.partition_index, row.offset)
                for row in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    broker.replicas.write_checkpoints()  # the new log start survives a crash
    waiting = [deletion for _, deletions in rows for deletion in deletions if deletion.waits()]
    if waiting:
        return _wait_for_followers(rows, waiting, message.timeout_ms, request)
    return _answer(rows)


def _answer(rows: list[tuple[str, list[_Deletion]]]) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(name=name, partitions=[row.result() for row in deletions])
            for name, deletions in rows
        ]
    )


async def _wait_for_followers(
    rows: list[tuple[str, list[_Deletion]]],
    waiting: list[_Deletion],
    timeout_ms: int,
    request: Request,
) -> DeleteRecordsResponse:
    news = asyncio.Event()
    partitions = [row.partition for row in waiting if row.partition is not None]
    for partition in partitions:
        partition.watch(news.set)
    try:
        async with asyncio.timeout(max(0, timeout_ms) / 1000):
            while any(row.waits() for row in waiting) and not request.connection.closed:
                await news.wait()
                news.clear()
    except TimeoutError:
        pass  # the answer says who was too slow
    finally:
        for partition in partitions:
            partition.unwatch(news.set)
    return _answer(rows)
