"""Whole brokers in virtual time, on disks in memory: days of timers within seconds."""

from __future__ import annotations

import asyncio
import socket

import pytest
from support.log import make_batch
from support.simulated import World, produce, running, simulate
from support.virtual_time import Deadlock, VirtualClock, run_virtual

from tidelog import files
from tidelog.controller.failure_detector import until_dead
from tidelog.errors import ErrorCode
from tidelog.metadata import BrokerInfo
from tidelog.new_topic import NewTopic
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)

HOUR = 3600


def test_sleeps_take_no_time_and_end_in_order() -> None:
    async def scenario(clock: VirtualClock) -> list[tuple[str, float]]:
        ended: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            ended.append((name, clock.monotonic()))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sleeper("a week", 168 * HOUR))
            tasks.create_task(sleeper("an hour", HOUR))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await asyncio.Event().wait()
            ended.append(("a timeout", clock.monotonic()))
            await asyncio.to_thread(ended.append, ("a thread", clock.monotonic()))
        return ended

    assert run_virtual(scenario) == [
        ("a timeout", 60),
        ("a thread", 60),
        ("an hour", HOUR),
        ("a week", 168 * HOUR),
    ]


def test_a_deadlock_is_found() -> None:
    async def scenario(_: VirtualClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(scenario)


def test_retention_after_hours() -> None:
    """The broker's own loop deletes, by the broker's own clock, and removes the files later."""

    async def scenario(world: World) -> None:
        clock = world.clock
        settings = {"log_retention_check_interval_ms": "60000"}
        async with running(world, **settings) as (broker, peer):
            topic = NewTopic("t", config={"retention.ms": str(2 * HOUR * 1000)})
            await broker.controller.create_topic(topic)
            await produce(peer, "t", make_batch([b"x"], clock.now_ms()))
            log = broker.replicas.partitions["t", 0].log
            await asyncio.sleep(1.9 * HOUR)
            assert (log.log_start_offset, log.end_offset) == (0, 1)
            await asyncio.sleep(0.2 * HOUR)
            assert log.log_start_offset == 1
            assert [n for n in files.listdir("/b1/t-0") if n.endswith(".log")] == [f"{1:020d}.log"]

    simulate(scenario)


def test_a_member_that_is_silent_for_its_session_timeout() -> None:
    async def scenario(world: World) -> None:
        clock = world.clock
        async with running(world) as (_, peer):
            found = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
            await peer.request(found, FindCoordinatorResponse, 4)
            protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
            member_id = ""
            while True:
                join = JoinGroupRequest(
                    group_id="g",
                    session_timeout_ms=1_800_000,
                    rebalance_timeout_ms=1_800_000,
                    member_id=member_id,
                    protocol_type="consumer",
                    protocols=protocols,
                )
                joined = await peer.request(join, JoinGroupResponse, 9, extra_ms=60_000)
                if not joined.error_code:
                    break
                if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                    member_id = joined.member_id
                await asyncio.sleep(0.1)
            before = clock.monotonic()

            async def members() -> int:
                described = await peer.request(
                    DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse, 5
                )
                return len(described.groups[0].members)

            while await members():
                await asyncio.sleep(10)
            assert 1795 < clock.monotonic() - before < 1815

    simulate(scenario)


def test_the_failure_detector_waits_in_virtual_time() -> None:
    async def scenario(clock: VirtualClock) -> float:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))  # it refuses connections until it listens
        port = sock.getsockname()[1]
        died = asyncio.Event()

        async def note(_: BrokerInfo) -> None:
            died.set()

        task = asyncio.create_task(until_dead(BrokerInfo(1, "127.0.0.1", port, None), note))
        await asyncio.sleep(HOUR / 6)  # a port that never answered is not a broker that died
        assert not died.is_set()

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, sock=sock)
        await asyncio.sleep(5)
        server.close()
        begun = clock.monotonic()
        await died.wait()
        await task
        return clock.monotonic() - begun

    assert run_virtual(scenario) < 2
