"""What the controller's channel to a broker sends, when things change faster than it can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.waiting import comes_true

from tidelog.client.connection import BrokerUnreachable
from tidelog.controller import broker_channel as channel
from tidelog.controller.propagation import Propagation
from tidelog.errors import ErrorCode
from tidelog.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from tidelog.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tidelog.wire.schema import Message

OLD, NEW = b"a" * 16, b"b" * 16
ALONE = ClusterMetadata(controller_id=1, brokers={1: BrokerInfo(1, "localhost", 9092, None)})


def topic(topic_id: bytes, replicas: tuple[int, ...] = (1,)) -> TopicInfo:
    return TopicInfo("t", topic_id, (PartitionInfo(replicas[0], 0, replicas, replicas),))


class Listener:
    """The broker at the other end, which hears the orders as the controller's own one does."""

    broker_id = 1

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.fail: type[Message] | None = None
        self.full_disk = False
        self.refuses = ErrorCode.NONE
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def peer(self, _info: BrokerInfo) -> Any:
        class Unused:
            def close(self) -> None: ...

        return Unused()

    async def hear(self, request: Message) -> Message:
        await asyncio.sleep(0)
        if self.fail is type(request):
            self.fail = None
            raise BrokerUnreachable("the connection broke")
        self.heard.append(request)
        if self.refuses:
            return LeaderAndIsrResponse(error_code=self.refuses, topics=[])
        if isinstance(request, StopReplicaRequest):
            return StopReplicaResponse(error_code=0, partition_errors=[])
        if isinstance(request, UpdateMetadataRequest):
            return UpdateMetadataResponse(error_code=0)
        assert isinstance(request, LeaderAndIsrRequest)
        code = ErrorCode.KAFKA_STORAGE_ERROR if self.full_disk else ErrorCode.NONE
        errors = [LeaderAndIsrPartitionError(partition_index=0, error_code=code)]
        rows = [
            LeaderAndIsrTopicError(topic_id=state.topic_id, partition_errors=errors)
            for state in request.topic_states
        ]
        return LeaderAndIsrResponse(error_code=0, topics=rows)

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(request, kind) for request in self.heard)

    def leaders_of(self, topic_id: bytes) -> int:
        """How often it was told who leads this topic."""
        return sum(
            isinstance(request, LeaderAndIsrRequest)
            and topic_id in {state.topic_id for state in request.topic_states}
            for request in self.heard
        )


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Propagation, Listener]]:
    listener = Listener()
    controller = Propagation(listener, listener.hear)  # type: ignore[arg-type]
    controller.publish(ALONE.with_topic(topic(OLD)))
    await comes_true(lambda: listener.count(UpdateMetadataRequest) == 1)
    yield controller, listener
    controller.close()
    for task in listener.tasks:
        assert task.cancel(), task.exception()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(channel, "_AGAIN_SECONDS", 0.01)


async def test_a_broker_that_misses_the_first_requests_hears_everything() -> None:
    """The first of each kind names all there is; what a broker has besides is quarantined."""
    for fail in (LeaderAndIsrRequest, UpdateMetadataRequest):
        listener = Listener()
        listener.fail = fail
        controller = Propagation(listener, listener.hear)  # type: ignore[arg-type]
        controller.publish(ALONE.with_topic(topic(OLD)))
        await controller.sent()
        kinds = {type(request): request.type for request in listener.heard}  # type: ignore[attr-defined]
        full = channel.FULL
        assert kinds == {LeaderAndIsrRequest: full, UpdateMetadataRequest: full}
        controller.close()


async def test_a_topic_is_deleted() -> None:
    """StopReplica is sent, and again if nobody knows whether it has arrived."""
    async with connected() as (controller, listener):
        listener.fail = StopReplicaRequest
        controller.publish(ALONE)
        await comes_true(lambda: listener.count(UpdateMetadataRequest) == 2)
        assert listener.count(StopReplicaRequest) == 1
        assert listener.fail is None


@pytest.mark.parametrize("fail", [None, LeaderAndIsrRequest, UpdateMetadataRequest])
async def test_a_topic_is_deleted_and_made_again(fail: type[Message] | None) -> None:
    """The files of the new one are never deleted, whatever has to be sent twice."""
    async with connected() as (controller, listener):
        listener.fail = fail
        controller.publish(ALONE)
        controller.publish(ALONE.with_topic(topic(NEW)))
        await comes_true(lambda: listener.count(UpdateMetadataRequest) == 2)
        assert listener.leaders_of(NEW) >= 1
        assert listener.count(StopReplicaRequest) == 0


async def test_a_replica_comes_back_before_it_was_told_to_go() -> None:
    async with connected() as (controller, listener):
        controller.publish(ALONE.with_topic(topic(OLD, (2,))))
        back = topic(OLD, (2, 1))
        rows = (replace(back.partitions[0], partition_epoch=2),)
        controller.publish(ALONE.with_topic(replace(back, partitions=rows)))
        await comes_true(lambda: listener.count(UpdateMetadataRequest) == 2)
        assert listener.leaders_of(OLD) == 2
        assert listener.count(StopReplicaRequest) == 0


async def test_everybody_is_told() -> None:
    async with connected() as (controller, listener):
        listener.fail = UpdateMetadataRequest
        controller.publish(ALONE.with_topic(topic(NEW)))
        await controller.sent()
        assert listener.count(UpdateMetadataRequest) == 2


async def test_nobody_waits_for_a_broker_that_refuses() -> None:
    """It knows a later controller, and hears from that one; we may be about to stop."""
    async with connected() as (controller, listener):
        listener.refuses = ErrorCode.STALE_CONTROLLER_EPOCH
        controller.publish(ALONE.with_topic(topic(NEW)))
        await comes_true(listener.tasks[0].done)
        controller.publish(ALONE)
        async with asyncio.timeout(60):
            await controller.sent()
        listener.tasks.clear()


async def test_a_broker_that_cannot_ask_zookeeper_about_us() -> None:
    """It cannot tell us from a stranger now, and hears the same again when it can."""
    async with connected() as (controller, listener):
        listener.refuses = ErrorCode.REQUEST_TIMED_OUT
        controller.publish(ALONE.with_topic(topic(NEW)))
        await comes_true(lambda: listener.leaders_of(NEW) > 1)
        listener.refuses = ErrorCode.NONE
        async with asyncio.timeout(60):
            await controller.sent()
        assert listener.count(UpdateMetadataRequest) == 2


async def test_a_decision_that_is_written_after_the_office_was_lost() -> None:
    async with connected() as (controller, listener):
        controller.close()
        tasks = len(listener.tasks)
        controller.publish(ALONE)
        assert len(listener.tasks) == tasks, "nobody is told in the name of the old office"
        listener.tasks.clear()


async def test_a_broker_whose_disk_is_full() -> None:
    """It cannot take a partition; when there is room, it hears of it again."""
    async with connected() as (controller, listener):
        listener.full_disk = True
        controller.publish(ALONE.with_topic(topic(NEW)))
        await comes_true(lambda: listener.leaders_of(NEW) >= 3)
        listener.full_disk = False
        before = listener.leaders_of(NEW)
        await comes_true(lambda: listener.leaders_of(NEW) > before)
