"""AlterReplicaLogDirs: move replicas of this broker to other ones of its log directories.

The answer says that a move has begun; DescribeLogDirs shows how far it is.  A partition that is
to come to this broker, but is not here yet, will be made in the directory that is named.
Versions: 2 flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.failures import code_of
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


Wanted = dict[tuple[str, int], str]  # topic and partition: the directory


def _failed(
    message: AlterReplicaLogDirsRequest, version: int, code: ErrorCode, text: str | None
) -> AlterReplicaLogDirsResponse:
    return _response(dict.fromkeys(_wanted(message), code))


@api(AlterReplicaLogDirsRequest, versions=(1, 2), needs="ALTER CLUSTER", failed=_failed)
def alter_replica_log_dirs(
    broker: Broker, message: AlterReplicaLogDirsRequest, request: Request
) -> AlterReplicaLogDirsResponse:
    """Move replicas to other log directories of this broker."""
    preferred, known = broker.manager.preferred, broker.metadata.topic_names
    for key in [key for key, (topic_id, _) in preferred.items() if topic_id not in known]:
        del preferred[key]  # the topic was deleted
    codes = {}
    for (name, index), path in _wanted(message).items():
        try:
            _move(broker, name, index, path)
            codes[name, index] = ErrorCode.NONE
        except Exception as error:
            codes[name, index], _ = code_of(error, "AlterReplicaLogDirs")
    return _response(codes)


def _wanted(message: AlterReplicaLogDirsRequest) -> Wanted:
    return {
        (topic.name, index): directory.path
        for directory in message.dirs
        for topic in directory.topics
        for index in topic.partitions
    }


def _response(codes: Mapping[tuple[str, int], ErrorCode]) -> AlterReplicaLogDirsResponse:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (name, index), code in codes.items():
        result = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        topics.setdefault(name, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=results)
            for name, results in topics.items()
        ]
    )


def _move(broker: Broker, topic: str, index: int, path: str) -> None:
    if path not in broker.manager.directories:
        raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND)
    try:
        partition = broker.replicas.find(topic, index)
    except ApiError as error:
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            topic_id = broker.metadata.topics[topic].topic_id
            broker.manager.preferred[topic, index] = topic_id, path
        raise
    broker.log_dir_moves.move(partition, path)
