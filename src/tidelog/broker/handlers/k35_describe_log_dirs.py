"""DescribeLogDirs: which logs are in which directory, and how large.

Versions: 2 flexible; 3 top-level error; 4 total and usable bytes.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Client, api
from tidelog.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DescribeLogDirsRequest, versions=(1, 4))
def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, client: Client
) -> DescribeLogDirsResponse:
    """Describe the data directories."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    results = []
    for directory in broker.manager.directories:
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for (name, index), partition in sorted(broker.replicas.partitions.items()):
            if os.path.dirname(partition.log.directory) != directory:
                continue
            if wanted is None or (name, index) in wanted:
                topics.setdefault(name, []).append(
                    DescribeLogDirsPartition(
                        partition_index=index,
                        partition_size=partition.log.size,
                        offset_lag=0,
                        is_future_key=False,
                    )
                )
        usage = shutil.disk_usage(directory)
        results.append(
            DescribeLogDirsResult(
                error_code=0,
                log_dir=directory,
                topics=[
                    DescribeLogDirsTopic(name=name, partitions=rows)
                    for name, rows in topics.items()
                ],
                total_bytes=usage.total,
                usable_bytes=usage.free,
            )
        )
    return DescribeLogDirsResponse(error_code=0, results=results)
