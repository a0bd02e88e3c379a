"""DeleteRecords: move the log start forward; -1 deletes all there is.

Versions: 2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Client, api
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DeleteRecordsRequest, versions=(0, 2))
def delete_records(
    broker: Broker, request: DeleteRecordsRequest, client: Client
) -> DeleteRecordsResponse:
    """Delete records below an offset."""
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _delete(broker, topic.name, row.partition_index, row.offset)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    broker.replicas.write_checkpoints()  # the new log start survives a crash
    return response


def _delete(broker: Broker, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    try:
        partition = broker.replicas.find(topic, index, broker.metadata)
        if partition.internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition.check_leader(-1)
        if "delete" not in partition.log.config.cleanup_policy:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        partition.delete_records(offset)
        broker.replicas.apply_retention(partition)
        low = partition.log.log_start_offset
    except ApiError as error:
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=error.code
        )
    except OSError as error:
        broker.replicas.storage_failed(topic, error)
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=code
        )
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low, error_code=0)
