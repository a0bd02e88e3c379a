"""What was deleted is gone on all replicas when the answer comes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.cluster import create_topic, everybody_knows, leaders, move_leaders
from support.raw_client import RawClient, batch_of, now_ms
from support.waiting import comes_true, until

from tidelog.broker.broker import Broker
from tidelog.errors import ErrorCode
from tidelog.metadata import BrokerInfo, PartitionInfo
from tidelog.new_topic import NewTopic
from tidelog.testing.cluster import ClusterBroker
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)


def delete(
    leader: ClusterBroker | Broker, offset: int, timeout_ms: int
) -> DeleteRecordsPartitionResult:
    row = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[row])
    with RawClient(leader.port) as client:
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
        answer = client.call(request, DeleteRecordsResponse, 2)
    result: DeleteRecordsPartitionResult = answer.topics[0].partitions[0]
    return result


def log_start(broker: ClusterBroker) -> int:
    with RawClient(broker.port) as client:
        (part,) = client.fetch(("t", 0, 10))
        start: int = part.log_start_offset
        return start


def test_the_answer_waits_for_the_followers(new_cluster: Any) -> None:
    # Who is frozen for a moment must not be taken for dead.
    settings = {"zookeeper.session.timeout.ms": 60_000, "replica.lag.time.max.ms": 60_000}
    with new_cluster(settings=settings) as cluster:
        create_topic(cluster.brokers[1], "t", 1)
        everybody_knows(cluster, "t")
        (leader_id,) = leaders(cluster.brokers[1], "t").values()
        leader = cluster.brokers[leader_id]
        with RawClient(leader.port) as client:
            batch = batch_of(*[b"x"] * 10)
            assert client.produce("t", batch, timeout_ms=60_000).error_code == 0
        done = delete(leader, 3, timeout_ms=60_000)
        assert (done.error_code, done.low_watermark) == (0, 3)
        assert [log_start(broker) for broker in cluster.brokers.values()] == [3, 3, 3]

        sleeper = cluster.brokers[leader_id % 3 + 1]
        sleeper.freeze()
        try:
            late = delete(leader, 5, timeout_ms=100)
        finally:
            sleeper.thaw()
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert late.low_watermark == 3
        done = delete(leader, 5, timeout_ms=60_000)
        assert (done.error_code, done.low_watermark) == (0, 5)
        assert [log_start(broker) for broker in cluster.brokers.values()] == [5, 5, 5]

        # A new leader waits until it has heard from its followers.
        move_leaders(cluster, "t")
        (leader_id,) = leaders(cluster.brokers[1], "t").values()
        leader = cluster.brokers[leader_id]

        def deleted() -> bool:
            done = delete(leader, -1, timeout_ms=60_000)
            if done.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return False  # it has not heard yet that it leads
            assert (done.error_code, done.low_watermark) == (0, 10)
            return True

        until(deleted, "the new leader deletes")
        assert [log_start(broker) for broker in cluster.brokers.values()] == [10, 10, 10]


async def test_a_follower_dies_meanwhile(tmp_path: Path) -> None:
    """Nobody waits for it any longer, though nothing is heard from any other."""
    async with Broker(
        {"broker.id": 1, "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    ) as leader:
        await leader.controller.create_topic(NewTopic("t"))
        partition = leader.replicas.partitions["t", 0]
        partition.lead(PartitionInfo(1, 0, (1, 2), (1,)), now_ms())
        batch = memoryview(bytearray(batch_of(*[b"x"] * 10)))
        partition.require_leader().append(batch, 9, now_ms())
        alone = leader.metadata
        both = {**alone.brokers, 2: BrokerInfo(2, "localhost", 9092, None)}
        leader.publish(replace(alone, brokers=both))
        answer = asyncio.create_task(asyncio.to_thread(delete, leader, 3, 600_000))
        await comes_true(lambda: partition.watchers.committed, "it waits for the follower")
        leader.publish(alone)
        done = await answer
        assert (done.error_code, done.low_watermark) == (0, 3)
