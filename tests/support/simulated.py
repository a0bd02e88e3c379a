"""A broker in a simulated world: virtual time, disks in memory, nothing but the event loop.

Only its port is real; clients are in the same event loop (``Peer``).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from support.inline_workers import inline_workers
from support.memory_files import MemoryFiles
from support.virtual_time import VirtualClock, run_virtual

from tidelog import ids
from tidelog.broker.broker import Broker
from tidelog.client.peer import Peer
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

T = TypeVar("T")


@dataclass(slots=True)
class World:
    """What a scenario may use and break."""

    clock: VirtualClock
    disk: MemoryFiles
    rng: random.Random


def simulate(scenario: Callable[[World], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    """Run a scenario in a world that depends on nothing but the seed."""

    async def world(clock: VirtualClock) -> T:
        disk = MemoryFiles(lambda: clock.now_ms() * 1_000_000)
        with disk.installed(), inline_workers(), seeded(seed):
            return await scenario(World(clock, disk, random.Random(f"world {seed}")))

    return run_virtual(world)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw ids and random numbers by a seed, meanwhile."""
    before = ids.use(random.Random(seed))
    try:
        yield
    finally:
        ids.use(before)


@asynccontextmanager
async def running(world: World, **settings: str) -> AsyncIterator[tuple[Broker, Peer]]:
    """A broker on the disk /b1, and a connection to it."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    given |= {"log.dirs": "/b1", "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(given, world.clock) as broker:
        peer = Peer("127.0.0.1", broker.server.port, "test", 30_000)
        try:
            yield broker, peer
        finally:
            peer.close()


async def produce(peer: Peer, topic: str, batch: bytes) -> None:
    """Append a batch to the first partition of a topic."""
    data = TopicProduceData(
        name=topic, partition_data=[PartitionProduceData(index=0, records=batch)]
    )
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])
    answer = await peer.request(request, ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
