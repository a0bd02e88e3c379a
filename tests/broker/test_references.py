"""What a request leaves behind: nothing that only the garbage collector would find.

Logs are closed when the last reference goes, and a broker collects rarely: a cycle would keep the
files of a deleted topic open, and their space on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import comes_true

from tidelog.broker.broker import Broker
from tidelog.client.peer import Peer
from tidelog.controller.controller import Controller
from tidelog.ids import random_uuid
from tidelog.new_topic import NewTopic
from tidelog.partition.appending import DelayedProduce
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.records import encode_batch

ABSENT = 7  # a follower that never fetches by itself


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def settings(path: Path) -> dict[str, Any]:
    return {"log.dirs": [str(path)], "listeners": ["PLAINTEXT://127.0.0.1:0"]}


@contextlib.asynccontextmanager
async def client_of(broker: Broker) -> AsyncIterator[Peer]:
    peer = Peer("127.0.0.1", broker.port, "c", 60_000)
    yield peer
    peer.close()


def batch(broker: Broker, **producer: int) -> bytearray:
    return bytearray(encode_batch([(broker.clock.now_ms(), b"k", b"v", ())], **producer))


async def lead_with_a_follower(broker: Broker) -> Any:
    """A partition whose records wait for a replica on another broker."""
    own = broker.broker_id
    state = LeaderAndIsrPartitionState(
        partition_index=0,
        controller_epoch=1,
        leader=own,
        leader_epoch=0,
        isr=[own, ABSENT],
        partition_epoch=0,
        replicas=[own, ABSENT],
        adding_replicas=[],
        removing_replicas=[],
    )
    topic = LeaderAndIsrTopicState(topic_name="t", topic_id=random_uuid(), partition_states=[state])
    request = LeaderAndIsrRequest(
        controller_id=own,
        controller_epoch=broker.controller_requests.controller_epoch,
        broker_epoch=broker.broker_epoch,
        type=1,
        topic_states=[topic],
        live_leaders=[],
    )
    await broker.controller_requests.apply(request)
    return broker.replicas.partitions["t", 0].leader


async def test_a_client_that_leaves_during_a_long_poll(tmp_path: Path, no_gc: None) -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    request = FetchRequest(
        max_wait_ms=600_000,
        min_bytes=1,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    async with Broker(settings(tmp_path)) as broker:
        await broker.controller.create_topic(NewTopic("t", 1, 1))
        replica = weakref.ref(broker.replicas.partitions["t", 0])
        async with client_of(broker) as peer:
            poll = asyncio.create_task(peer.request(request, FetchResponse, 11))
            await comes_true(lambda: bool(replica().watchers.committed))  # type: ignore[union-attr]
        poll.cancel()
        await comes_true(lambda: not broker.server.connections)
        await broker.controller.delete_topic("t")
        await comes_true(lambda: replica() is None)


async def test_a_produce_that_has_waited(tmp_path: Path, no_gc: None) -> None:
    async with Broker(settings(tmp_path)) as broker:
        leader = await lead_with_a_follower(broker)
        replica = weakref.ref(leader.partition)
        data = PartitionProduceData(index=0, records=batch(broker))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=600_000,
            topic_data=[TopicProduceData(name="t", partition_data=[data])],
        )
        async with client_of(broker) as peer:
            sent = asyncio.create_task(peer.request(request, ProduceResponse, 9))
            await comes_true(lambda: bool(replica().watchers.committed))  # type: ignore[union-attr]
            leader.follower_fetched(ABSENT, 1, broker.clock.now_ms())
            answer = (await sent).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 0)
        del leader, sent
        broker.replicas.drop(("t", 0))
        await comes_true(lambda: replica() is None)


async def test_a_partition_that_is_named_twice_waits_for_its_newest_batch(tmp_path: Path) -> None:
    async with Broker(settings(tmp_path)) as broker:
        leader = await lead_with_a_follower(broker)

        def records(sequence: int) -> memoryview:
            producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
            return memoryview(batch(broker, **producer))

        broker.appender.append("t", 0, records(0), -1, 9, broker.clock.now_ms(), {})
        waiting: Any = {}
        work = broker.appender.append_all(
            [("t", [(0, records(1)), (0, records(0))])], -1, 9, waiting
        )
        with pytest.raises(StopIteration) as done:
            next(work)
        answers: list[Any] = []
        DelayedProduce(done.value.value, waiting, 600_000, answers.append)
        leader.follower_fetched(ABSENT, 1, broker.clock.now_ms())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not answers
        leader.follower_fetched(ABSENT, 2, broker.clock.now_ms())
        await comes_true(lambda: bool(answers))


async def test_a_controller_that_cannot_load_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Controller, "load", load)
    broker = Broker(settings(tmp_path))
    async with asyncio.timeout(60):
        with pytest.raises(ZeroDivisionError):
            await broker.start()
        await broker.stop()
