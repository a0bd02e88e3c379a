"""The coordinator of a broker: what it makes of a cluster that it knows only in part."""

import asyncio
from types import SimpleNamespace

from coordinators.consumer_support import cluster

from tidelog.clock import SystemClock
from tidelog.coordinators.service import GroupCoordinator
from tidelog.settings import Settings


def test_a_topic_that_is_not_known_once_is_not_taken_for_deleted():
    broker = SimpleNamespace(
        settings=Settings.of({}),
        clock=SystemClock(),
        spawn=None,
        broker_id=1,
        metadata=cluster(known=1),
        replicas=SimpleNamespace(partitions={}),
    )
    coordinator = GroupCoordinator(broker)
    seen = []

    def expire(retention_ms, log_start):
        seen.append([log_start(topic, 0) for topic in ("known", "late", "gone")])
        if len(seen) == 1:
            broker.metadata = cluster(known=1, late=1)

    async def run():
        coordinator.runtime.machines[0] = SimpleNamespace(expire=expire)
        keeping = asyncio.create_task(coordinator.keep_offsets(interval_ms=1))
        while len(seen) < 2:
            await asyncio.sleep(0)
        keeping.cancel()

    asyncio.run(run())
    assert seen[:2] == [[-1, -1, -1], [-1, -1, None]]
