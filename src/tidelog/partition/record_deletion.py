"""Delete records below an offset, on the leader and then on its followers (DeleteRecords).

A deletion is over when the followers on live brokers have deleted the records too, so that they
are gone for good: no new leader has them.  A follower that is too slow for the request's timeout
makes it REQUEST_TIMED_OUT; it deletes them with its next fetch all the same.
"""

from __future__ import annotations

from collections.abc import Collection

from tidelog.errors import ApiError, ErrorCode
from tidelog.partition.partition import Partition
from tidelog.partition.replicas import Replicas


class RecordDeletion:
    """One partition of a request: what was deleted here, and what to answer."""

    def __init__(self, replicas: Replicas, topic: str, index: int, offset: int) -> None:
        self.index = index
        self.partition: Partition | None = None  # where followers may have to follow
        self._offset = offset
        self._error = 0
        try:
            partition = replicas.find(topic, index)
            if partition.internal:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            leader = partition.require_leader()
            policy = partition.log.config.cleanup_policy
            if policy and "delete" not in policy:
                raise ApiError(ErrorCode.POLICY_VIOLATION)
            self._offset = leader.delete_records(offset)
            replicas.apply_retention(partition)
            self.partition = partition
        except ApiError as error:
            self._error = error.code
        except OSError as error:
            replicas.storage_failed(topic, error)
            self._error = ErrorCode.KAFKA_STORAGE_ERROR

    def result(self, live: Collection[int]) -> tuple[int, int]:
        """The error and the low watermark to answer if it were now; ``live``: the brokers."""
        partition = self.partition
        if partition is None:
            return self._error, -1
        if partition.leader is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        low = partition.leader.low_watermark(live)
        return (0 if low >= self._offset else ErrorCode.REQUEST_TIMED_OUT), low

    def is_over(self, live: Collection[int]) -> bool:
        return self.result(live)[0] != ErrorCode.REQUEST_TIMED_OUT
