"""DescribeLogDirs: API key 35."""

from __future__ import annotations

from tidelog.wire.schema import Bool, Int16, Int32, Int64, Message, String, Struct, field


class DescribableLogDirTopic(Struct):
    topic: String
    partitions: list[Int32]


class DescribeLogDirsRequest(Message, key=35, versions=(1, 4), flexible=2):
    topics: list[DescribableLogDirTopic] | None


class DescribeLogDirsPartition(Struct):
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


class DescribeLogDirsTopic(Struct):
    name: String
    partitions: list[DescribeLogDirsPartition]


class DescribeLogDirsResult(Struct):
    error_code: Int16
    log_dir: String
    topics: list[DescribeLogDirsTopic]
    total_bytes: Int64 = field(default=-1, since=4)
    usable_bytes: Int64 = field(default=-1, since=4)


class DescribeLogDirsResponse(Message, key=35, versions=(1, 4), flexible=2):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(default=0, since=3)
    results: list[DescribeLogDirsResult]
