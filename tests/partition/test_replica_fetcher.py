"""A follower's fetcher, when what the leader answers is not what it should be."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.log import make_batch
from support.replica_model import TOPIC, World
from support.waiting import comes_true

from tidelog.client.connection import BrokerUnreachable
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import BrokerInfo, ClusterMetadata
from tidelog.partition import replica_fetcher as fetcher
from tidelog.partition.fetcher_manager import Fetchers
from tidelog.partition.replica_fetcher import LeaderFetcher
from tidelog.partition.throttle import Throttle
from tidelog.settings import Settings
from tidelog.wire.batch import read_header
from tidelog.wire.messages.fetch import FetchableTopicResponse as TopicData
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)


class Follower:
    """Broker 2, whose peer (the leader) answers as a test says."""

    broker_id, broker_epoch = 2, 1

    def __init__(self, world: World) -> None:
        self.settings = Settings.of()
        self.clock = world.clock
        self.follower_throttle = Throttle(world.clock)
        self.replicas = world.replicas[2].replicas
        self.metadata = ClusterMetadata(brokers={1: BrokerInfo(1, "localhost", 9092, None)})
        self.known_brokers: dict[int, BrokerInfo] = {}
        self.asked = 0
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def peer(self, _info: BrokerInfo) -> Follower:
        return self

    def close(self) -> None: ...

    async def request(self, request: Any, _answer: Any, _version: int, _extra: int = 0) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        return await self.answer(request)

    async def answer(self, _request: Any) -> Any:
        raise NotImplementedError


def row(code: ErrorCode) -> FetchResponse:
    data = PartitionData(
        partition_index=0,
        error_code=code,
        high_watermark=-1,
        aborted_transactions=None,
        records=None,
    )
    topic = TopicData(topic_id=TOPIC.topic_id, partitions=[data])
    return FetchResponse(error_code=0, session_id=0, responses=[topic])


async def test_an_answer_without_sense(
    quick_path: Path, no_sync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said loudly, and the fetcher goes on."""
    monkeypatch.setattr(fetcher, "_AFTER_BUG_SECONDS", 0.001)
    world = World(quick_path, 0)
    broker = Follower(world)
    partition = world.replicas[2].partition
    assert partition is not None

    async def answer(_request: Any) -> Any:
        if broker.asked == 1:
            return row(ErrorCode.NONE).responses  # a list is no answer
        raise BrokerUnreachable("it has died")

    broker.answer = answer  # type: ignore[method-assign]
    fetching = LeaderFetcher(broker, 1)  # type: ignore[arg-type]
    fetching.add(partition)
    task = asyncio.create_task(fetching.run())
    await comes_true(lambda: broker.asked >= 2)
    task.cancel()
    world.close()


async def test_another_leads_while_we_look_for_our_place(quick_path: Path, no_sync: None) -> None:
    """What the old leader has says nothing about where the new one's log ends."""
    world = World(quick_path, 0)
    broker = Follower(world)
    partition = world.replicas[2].partition
    assert partition is not None
    batch = bytearray(make_batch([b"1", b"2"]))
    partition.log.append(batch, read_header(memoryview(batch)), 0, 0)

    async def answer(request: Any) -> Any:
        if isinstance(request, FetchRequest):
            return row(ErrorCode.OFFSET_OUT_OF_RANGE)
        assert isinstance(request, ListOffsetsRequest)
        if partition.leader_epoch == 0:
            world.info = replace(world.info, leader=3, leader_epoch=1, partition_epoch=1)
            world.tell(2)
        part = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=0)
        topic = ListOffsetsTopicResponse(name="t", partitions=[part])
        return ListOffsetsResponse(topics=[topic])

    broker.answer = answer  # type: ignore[method-assign]
    fetching = LeaderFetcher(broker, 1)  # type: ignore[arg-type]
    fetching.add(partition)
    await fetching._round(fetching._ready())
    assert partition.leader_epoch == 1
    assert partition.log.end_offset == 2, "nothing was cut"
    world.close()


async def test_a_batch_that_fails_its_crc_is_not_appended(quick_path: Path, no_sync: None) -> None:
    """The network or the leader's disk has damaged it; the next fetch may bring it whole."""
    world = World(quick_path, 0)
    broker = Follower(world)
    partition = world.replicas[2].partition
    assert partition is not None
    whole = make_batch([b"1", b"2"])
    sent = bytearray(whole)
    sent[-1] ^= 1
    answer_of = row(ErrorCode.NONE)
    (data,) = answer_of.responses[0].partitions
    data.high_watermark, data.records = 0, sent

    async def answer(_request: Any) -> Any:
        return answer_of

    broker.answer = answer  # type: ignore[method-assign]
    fetching = LeaderFetcher(broker, 1)  # type: ignore[arg-type]
    fetching.add(partition)
    await fetching._round(fetching._ready())
    assert partition.log.end_offset == 0
    assert fetching._ready() == [], "it is tried again a little later"
    world.clock.advance(1000)
    data.records = bytearray(whole)
    await fetching._round(fetching._ready())
    assert partition.log.end_offset == 2
    world.close()


async def test_an_answer_from_before_another_leads_is_ignored(
    quick_path: Path, no_sync: None
) -> None:
    """What the old leader has may not be what the new one has."""
    world = World(quick_path, 0)
    broker = Follower(world)
    partition = world.replicas[2].partition
    assert partition is not None

    async def answer(_request: Any) -> Any:
        world.info = replace(world.info, leader=3, leader_epoch=1, partition_epoch=1)
        world.tell(2)
        found = row(ErrorCode.NONE)
        found.responses[0].partitions[0].records = bytearray(make_batch([b"old"]))
        return found

    broker.answer = answer  # type: ignore[method-assign]
    fetching = LeaderFetcher(broker, 1)  # type: ignore[arg-type]
    fetching.add(partition)
    await fetching._round(fetching._ready())
    assert partition.leader_epoch == 1
    assert partition.log.end_offset == 0
    world.close()


@pytest.mark.parametrize(
    ("leaders_log", "then"),
    [((0, 1), (0, 1)), ((0, 0), (0, 0)), ((5, 9), (5, 5)), ((1, 2), (0, 2))],
    ids=["longer", "of an empty log", "too old", "as long"],
)
async def test_a_follower_whose_end_is_not_in_the_leaders_log(
    quick_path: Path, no_sync: None, leaders_log: tuple[int, int], then: tuple[int, int]
) -> None:
    """It is cut back to the leader's end, or begins again where the leader's log begins."""
    world = World(quick_path, 0)
    broker = Follower(world)
    partition = world.replicas[2].partition
    assert partition is not None
    for value in (b"1", b"2"):
        batch = bytearray(make_batch([value]))
        partition.log.append(batch, read_header(memoryview(batch)), 0, 0)

    async def answer(request: Any) -> Any:
        if isinstance(request, FetchRequest):
            return row(ErrorCode.OFFSET_OUT_OF_RANGE)
        asked = request.topics[0].partitions[0].timestamp
        offset = leaders_log[0] if asked == -2 else leaders_log[1]
        part = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=offset)
        topic = ListOffsetsTopicResponse(name="t", partitions=[part])
        return ListOffsetsResponse(topics=[topic])

    broker.answer = answer  # type: ignore[method-assign]
    fetching = LeaderFetcher(broker, 1)  # type: ignore[arg-type]
    fetching.add(partition)
    await fetching._round(fetching._ready())
    assert (partition.log.log_start_offset, partition.log.end_offset) == then
    world.close()


async def test_a_leader_does_not_count_what_a_longer_follower_has(
    quick_path: Path, no_sync: None
) -> None:
    """It is another leader's, and not what is written there next."""
    world = World(quick_path, 0)
    leader = world.replicas[1].partition
    assert leader is not None

    def write() -> None:
        batch = memoryview(bytearray(make_batch([b"x"])))
        leader.require_leader().append(batch, 9, world.clock.now_ms())

    write()
    with pytest.raises(ApiError) as refused:
        leader.require_leader().follower_fetched(2, 5, world.clock.now_ms())
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    write()
    leader.require_leader().follower_fetched(3, 2, world.clock.now_ms())
    assert leader.high_watermark == 0
    leader.require_leader().follower_fetched(2, 1, world.clock.now_ms())
    assert leader.high_watermark == 1
    world.close()


async def test_a_session_that_ends_is_closed(quick_path: Path, no_sync: None) -> None:
    """The leader keeps it for two minutes otherwise, and has room for a thousand."""
    world = World(quick_path, 0)
    broker = Follower(world)
    partition = world.replicas[2].partition
    assert partition is not None
    asked: list[tuple[int, int]] = []

    async def answer(request: Any) -> Any:
        asked.append((request.session_id, request.session_epoch))
        if len(asked) == 4:  # another one, in its place
            broker.metadata = ClusterMetadata(brokers={1: BrokerInfo(1, "there", 9092, None)})
        if len(asked) in (2, 4):
            raise BrokerUnreachable("the connection is closed")
        return FetchResponse(error_code=0, session_id=70 + len(asked), responses=[])

    broker.answer = answer  # type: ignore[method-assign]
    fetching = LeaderFetcher(broker, 1)  # type: ignore[arg-type]
    fetching.add(partition)
    task = asyncio.create_task(fetching.run())
    await comes_true(lambda: len(asked) >= 5)
    assert asked[:5] == [(0, 0), (71, 1), (71, 0), (73, 1), (0, 0)]
    task.cancel()
    world.close()


@pytest.mark.parametrize("steps", range(8))
async def test_closed_while_the_connection_breaks(
    quick_path: Path, no_sync: None, steps: int
) -> None:
    """The answer that fails in the same moment is nobody's any more; nothing is reported."""
    world = World(quick_path, 0)
    broker = Follower(world)
    partition = world.replicas[2].partition
    assert partition is not None
    broken = asyncio.Event()

    async def answer(_request: Any) -> Any:
        await broken.wait()
        raise BrokerUnreachable("the connection is closed")

    broker.answer = answer  # type: ignore[method-assign]
    broker.close = broken.set  # type: ignore[method-assign]
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, c: reported.append(c))
    fetching = LeaderFetcher(broker, 1)  # type: ignore[arg-type]
    fetching.add(partition)
    fetching.task = asyncio.create_task(fetching.run())
    await comes_true(lambda: broker.asked == 1)
    broken.set()
    for _ in range(steps):
        await asyncio.sleep(0)  # at some point the answer has failed and nobody has heard
    fetching.close()
    await asyncio.wait({fetching.task})
    fetching.task = None
    gc.collect()
    assert not reported
    world.close()


async def test_an_order_that_comes_while_the_broker_stops(quick_path: Path, no_sync: None) -> None:
    """Its logs are about to be closed: nothing is fetched any more."""
    world = World(quick_path, 0)
    broker = Follower(world)
    partition = world.replicas[2].partition
    assert partition is not None
    fetchers = Fetchers(broker)  # type: ignore[arg-type]
    fetchers.follow(partition, 1)
    fetchers.close()
    fetchers.hold()
    fetchers.follow(partition, 1)
    fetchers.release()
    (task,) = broker.tasks
    await asyncio.wait({task})
    assert task.cancelled()
    fetchers.forget(partition)  # and is not missed
    world.close()
