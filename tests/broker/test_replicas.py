"""Partitions that go while something is still to be done for them."""

import asyncio

from raw_client import batch_of, now_ms

from tidelog.broker.broker import Broker


def test_retention_never_touches_a_topic_that_was_made_again(tmp_path):
    """The old partition's log works by path, and the path has a new owner."""

    async def scenario():
        settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
        async with Broker(settings) as broker:
            config = {"retention.ms": "1000"}
            await broker.controller.create_topic("t", config=config)
            old = broker.replicas.partitions["t", 0]
            batch = memoryview(bytearray(batch_of(b"old", timestamp=now_ms() - 60_000)))
            old.append(batch, 9, now_ms())
            await broker.controller.delete_topic("t")
            await broker.controller.create_topic("t")
            new = broker.replicas.partitions["t", 0]
            new.append(memoryview(bytearray(batch_of(b"new"))), 9, now_ms())
            before = sorted(path.name for path in (tmp_path / "t-0").iterdir())
            broker.replicas.apply_retention(old)
            assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == before

    asyncio.run(scenario())
