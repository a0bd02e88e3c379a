"""What is too much for one request comes to a broker in parts, and still counts as the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.in_process import knows, settings

from tidelog.broker.broker import Broker
from tidelog.controller import broker_channel as channel
from tidelog.new_topic import NewTopic


async def test_a_broker_that_comes_back(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of topics that have come, grown and gone, a few partitions at a time."""
    monkeypatch.setattr(channel, "AT_ONCE", 3)
    async with Broker(settings(1, tmp_path, zookeeper)) as first:
        async with Broker(settings(2, tmp_path, zookeeper)) as second:
            while len(first.metadata.brokers) < 2:
                await first.next_metadata()
            await first.controller.create_topic(NewTopic("gone", 7, 2))
            await first.controller.create_topic(NewTopic("grown", 2, 2))
            await first.controller.create_topic(NewTopic("stays", 10, 2))
            await knows(second, {"gone": 7, "grown": 2, "stays": 10})
        await first.controller.delete_topic("gone")
        await first.controller.create_partitions("grown", 8, [[1]] * 6)
        await first.controller.create_topic(NewTopic("new", 4, 1))
        expected = {"grown": 8, "stays": 10, "new": 4}
        async with Broker(settings(2, tmp_path, zookeeper)) as second:
            await knows(second, expected)
            assert second.metadata.topics.keys() == first.metadata.topics.keys()
            for name, topic in second.metadata.topics.items():
                assert topic.topic_id == first.metadata.topics[name].topic_id
                replicas = [row.replicas for row in topic.partitions]
                others = [row.replicas for row in first.metadata.topics[name].partitions]
                assert replicas == others
            mine = {("stays", i) for i in range(10)} | {("grown", 0), ("grown", 1)}
            assert second.replicas.partitions.keys() == mine
    folders = sorted(p.name for p in (tmp_path / "2").iterdir() if p.is_dir())
    assert sum(name.endswith("-stray") for name in folders) == 7, folders
