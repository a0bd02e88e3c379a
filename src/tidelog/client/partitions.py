"""Questions about partitions, each to the broker that leads: offsets, deletion, sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from tidelog.client.cluster import LEADER_MOVED, NO_LEADER, Cluster, error_of
from tidelog.client.offsets import Extent, Position, resolve
from tidelog.errors import ApiError, ErrorCode
from tidelog.topic_partition import TopicPartition
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

EARLIEST, LATEST = -2, -1
EARLIEST_LOCAL = -4  # what is older is in remote storage (KIP-405); Kafka 3.4 or newer knows it
_CONSUMER = -1  # the replica id of one who is no replica
_TIMEOUT_MS = 30_000
_IN_A_REQUEST = 2000  # with names of 249 letters that is half a mebibyte

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LogSize:
    """The log of one replica on one broker's disk."""

    partition: TopicPartition
    broker_id: int
    size: int
    directory: str


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    known_only: bool = False,
) -> dict[TopicPartition, int | None]:
    """Offsets by time (ms), or EARLIEST or LATEST; None if no record is that new.

    With ``read_committed`` the end is where the first open transaction begins.  With
    ``known_only`` partitions are left out whose new leader cannot say yet what is committed.
    """
    found: dict[TopicPartition, int | None] = {}
    for rows in in_requests(wanted):
        found.update(_list_offsets(cluster, wanted, rows, read_committed, known_only))
    return found


def _list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    left: list[TopicPartition],
    read_committed: bool,
    known_only: bool,
) -> dict[TopicPartition, int | None]:
    found: dict[TopicPartition, int | None] = {}
    problem: ApiError | None = None
    for _ in cluster.attempts():
        for leader, rows in cluster.by_leader(left).items():
            if leader == NO_LEADER:
                problem = error_of(ErrorCode.LEADER_NOT_AVAILABLE, None, str(rows[0]))
                continue
            request = ListOffsetsRequest(
                replica_id=_CONSUMER,
                isolation_level=int(read_committed),
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=row.partition, timestamp=wanted[row]
                            )
                            for row in group
                        ],
                    )
                    for topic, group in _by_topic(rows)
                ],
                timeout_ms=_TIMEOUT_MS,
            )
            response = cluster.ask(request, ListOffsetsResponse, broker=leader)
            for topic in response.topics:
                for part in topic.partitions:
                    key = TopicPartition(topic.name, part.partition_index)
                    if known_only and part.error_code == ErrorCode.OFFSET_NOT_AVAILABLE:
                        left.remove(key)
                    elif part.error_code in LEADER_MOVED:
                        problem = error_of(part.error_code, None, str(key))
                    elif part.error_code:
                        raise error_of(part.error_code, None, str(key))
                    else:
                        found[key] = part.offset if part.offset >= 0 else None
        left = [row for row in left if row not in found]
        if not left:  # another attempt would begin with a pause
            return found
    if problem is not None:
        raise problem
    return found


def extents(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    *,
    read_committed: bool = False,
    known_only: bool = False,
) -> dict[TopicPartition, Extent]:
    """Where the logs start and end now; for the options see :func:`list_offsets`."""
    rows = list(partitions)
    starts = list_offsets(cluster, dict.fromkeys(rows, EARLIEST))  # first: none is after its end
    latest = dict.fromkeys(rows, LATEST)
    ends = list_offsets(cluster, latest, read_committed=read_committed, known_only=known_only)
    return {row: Extent(starts[row] or 0, end or 0) for row, end in ends.items()}


def resolve_all(
    cluster: Cluster, position: Position, logs: Mapping[TopicPartition, Extent], now_ms: int
) -> dict[TopicPartition, int]:
    """Where a position is in each of these logs; one question to each leader, if it is a time."""
    times: Mapping[TopicPartition, int | None] = {}
    time_ms = position.time_ms(now_ms)
    if time_ms is not None:
        times = list_offsets(cluster, dict.fromkeys(logs, time_ms))
    return {row: resolve(position, log, times.get(row)) for row, log in logs.items()}


def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | ApiError]:
    """Forget the records below an offset; the new start of each log, or an error."""
    result: dict[TopicPartition, int | ApiError] = {}
    for leader, rows in cluster.by_leader(before).items():
        if leader == NO_LEADER:
            error = ErrorCode.LEADER_NOT_AVAILABLE
            result.update({row: error_of(error, None, str(row)) for row in rows})
            continue
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=row.partition, offset=before[row])
                        for row in group
                    ],
                )
                for topic, group in _by_topic(rows)
            ],
            timeout_ms=_TIMEOUT_MS,
        )
        response = cluster.ask(request, DeleteRecordsResponse, broker=leader)
        for topic in response.topics:
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                result[key] = (
                    error_of(part.error_code, None, str(key))
                    if part.error_code
                    else part.low_watermark
                )
    return result


def log_sizes(
    cluster: Cluster,
    partitions: Iterable[TopicPartition] | None = None,
    brokers: Iterable[int] | None = None,
) -> list[LogSize]:
    """What is on the brokers' disks, of these partitions or of all, on these brokers or all."""
    requests = [DescribeLogDirsRequest(topics=None)]
    if partitions is not None:
        requests = [
            DescribeLogDirsRequest(
                topics=[
                    DescribableLogDirTopic(topic=topic, partitions=[row.partition for row in group])
                    for topic, group in _by_topic(rows)
                ]
            )
            for rows in in_requests(partitions)
        ]
    result = []
    for broker_id in sorted(cluster.metadata([]).brokers if brokers is None else brokers):
        for request in requests:
            response = cluster.ask(request, DescribeLogDirsResponse, broker=broker_id)
            if response.error_code:
                raise error_of(response.error_code, None, f"broker {broker_id}")
            result += [
                LogSize(
                    TopicPartition(topic.name, part.partition_index),
                    broker_id,
                    part.partition_size,
                    directory.log_dir,
                )
                for directory in response.results
                for topic in directory.topics
                for part in topic.partitions
                if not part.is_future_key
            ]
    return result


def in_requests(rows: Iterable[R], count: int = _IN_A_REQUEST) -> Iterator[list[R]]:
    """What may be asked at once: a broker takes no request of any size, and serves no one else
    while it reads one."""
    left = iter(rows)
    while some := list(islice(left, count)):
        yield some


def _by_topic(rows: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    groups: dict[str, list[TopicPartition]] = {}
    for row in rows:
        groups.setdefault(row.topic, []).append(row)
    return list(groups.items())
