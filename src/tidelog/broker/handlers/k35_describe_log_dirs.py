"""DescribeLogDirs: which logs are in which directory, and how large.

Versions: 2 flexible; 3 top-level error; 4 total and usable bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog import files
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ErrorCode
from tidelog.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DescribeLogDirsRequest, versions=(1, 4), needs="DESCRIBE CLUSTER")
def describe_log_dirs(
    broker: Broker, message: DescribeLogDirsRequest, request: Request
) -> DescribeLogDirsResponse:
    """Describe the data directories."""
    partitions = broker.replicas.partitions
    wanted: Iterable[tuple[str, int]] = partitions
    if message.topics is not None:
        named = {(topic.topic, index) for topic in message.topics for index in topic.partitions}
        wanted = (key for key in named if key in partitions)
    found: dict[str, dict[str, list[DescribeLogDirsPartition]]] = {
        directory: {} for directory in broker.manager.directories
    }
    for name, index in sorted(wanted):
        log = partitions[name, index].log
        row = DescribeLogDirsPartition(
            partition_index=index, partition_size=log.size, offset_lag=0, is_future_key=False
        )
        found[os.path.dirname(log.directory)].setdefault(name, []).append(row)
        move = broker.log_dir_moves.moves.get((name, index))
        if move is not None:
            copy = DescribeLogDirsPartition(
                partition_index=index,
                partition_size=move.size,
                offset_lag=move.lag,
                is_future_key=True,
            )
            found[move.parent].setdefault(name, []).append(copy)
    results = [_describe(directory, topics) for directory, topics in found.items()]
    return DescribeLogDirsResponse(error_code=0, results=results)


def _describe(
    directory: str, topics: dict[str, list[DescribeLogDirsPartition]]
) -> DescribeLogDirsResult:
    try:
        usage = files.disk_usage(directory)
    except OSError:  # it is gone: the logs that we have open there will be too
        return DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory, topics=[]
        )
    return DescribeLogDirsResult(
        error_code=0,
        log_dir=directory,
        topics=[DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in topics.items()],
        total_bytes=usage.total,
        usable_bytes=usage.free,
    )
