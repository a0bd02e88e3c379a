"""The coordinator of a broker: what it makes of a cluster that it knows only in part."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.consumer_group import cluster

from tidelog.clock import SystemClock
from tidelog.coordinators.groups.service import GroupCoordinator
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import Create
from tidelog.keeper.registry import Registry
from tidelog.metadata import ClusterMetadata
from tidelog.settings import Settings


def broker_with(metadata):
    return SimpleNamespace(
        settings=Settings.of({}),
        clock=SystemClock(),
        spawn=None,
        broker_id=1,
        metadata=metadata,
        replicas=SimpleNamespace(partitions={}),
    )


def test_what_became_of_topics():
    coordinator = GroupCoordinator(broker_with(ClusterMetadata()))
    told = []
    coordinator.runtime.shards[0] = SimpleNamespace(
        topics_deleted=lambda names: told.append(("deleted", names)),
        manager=SimpleNamespace(topics_changed=lambda names: told.append(("changed", names))),
    )

    def apply(metadata):
        told.clear()
        coordinator.apply(metadata)
        return dict(told)

    metadata = cluster(a=1, b=2)
    assert apply(metadata) == {"changed": {"a", "b"}}
    assert apply(metadata) == {}
    a, b = metadata.topics["a"], metadata.topics["b"]
    assert apply(metadata.with_topic(replace(a, config={"retention.ms": "1"}))) == {}
    grown = metadata.with_topic(replace(b, partitions=b.partitions * 2))
    assert apply(grown) == {"changed": {"b"}}
    # Deleted and recreated before we heard of it: the offsets are not those of the new one.
    renewed = grown.with_topic(replace(a, topic_id=b"x" * 16))
    assert apply(renewed) == {"deleted": {"a"}, "changed": {"a"}}
    assert apply(renewed.without_topics({"b"})) == {"deleted": {"b"}, "changed": {"b"}}


async def test_offsets_go_only_with_a_topic_that_is_gone(tmp_path):
    """Not with one that we have not heard of yet, nor with one whose znode cannot be read."""
    broker = broker_with(cluster(known=1))
    broker.keeper = EmbeddedKeeper.open(str(tmp_path / "journal"))
    coordinator = GroupCoordinator(broker)
    topics = ("known", "late", "spoilt", "gone")
    seen = []

    def expire(retention_ms, log_start):
        seen.append([log_start(topic, 0) for topic in topics])
        if len(seen) == 1:
            broker.metadata = cluster(known=1, late=1)

    await Registry(broker.keeper, broker.clock).make_paths()
    await broker.keeper.multi([Create(paths.topic("spoilt"), b"{")])
    coordinator.runtime.shards[0] = SimpleNamespace(expire=expire)
    keeping = asyncio.create_task(coordinator.keep_offsets(interval_ms=1))
    while len(seen) < 3:
        await asyncio.sleep(0)
    keeping.cancel()
    await broker.keeper.close()
    assert seen[:3] == [[-1, -1, -1, -1], [-1, -1, -1, None], [-1, -1, -1, None]]


async def test_a_topic_of_offsets_that_is_deleted_at_once(monkeypatch):
    """The client asks again, and it is made again."""
    coordinator = GroupCoordinator(broker_with(ClusterMetadata()))

    async def create():
        pass

    monkeypatch.setattr(coordinator, "create_topic", create)
    with pytest.raises(ApiError) as refused:
        await coordinator.find("group")
    assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
