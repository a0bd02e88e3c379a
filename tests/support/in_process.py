"""Brokers of a cluster in the process of the test, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidelog.broker.broker import Broker


def settings(broker_id: int, data: Path, zookeeper: str) -> dict[str, object]:
    return {
        "broker.id": broker_id,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": data / str(broker_id),
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": 10_000,
    }


async def knows(broker: Broker, topics: dict[str, int]) -> None:
    """Wait until a broker knows exactly these topics, with so many partitions."""
    async with asyncio.timeout(60):
        while {t.name: len(t.partitions) for t in broker.metadata.topics.values()} != topics:
            await broker.next_metadata()
