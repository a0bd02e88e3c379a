"""Three replicas of one partition, with real logs, through random histories.

Everything happens that may: appends, fetches, changes of the in-sync set that are decided
late, never or twice, elections at any moment, restarts, leaders that do not know yet that
they were replaced, records that are deleted.  What was ever below a high watermark stays what
it was, or is deleted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.replica_model import BROKERS, Replica, World, values
from support.waiting import comes_true

from tidelog.log.log import Log
from tidelog.partition.partition import Partition
from tidelog.settings import LogConfig, Settings


@pytest.mark.parametrize("seed", range(100))
async def test_random_histories(quick_path: Path, no_sync: None, seed: int) -> None:
    world = World(quick_path, seed)
    for _ in range(150):
        world.step()
    # In the end all are well: they agree on everything, and nothing committed is missing.
    for broker, replica in world.replicas.items():
        if not replica.up:
            world.come_back(broker)
    for _ in range(40):
        world.notice()
        for broker in BROKERS:
            world.tell(broker)
            world.fetch(broker)
            world.decide(broker)
        world.check()
    logs = [values_of(world.replicas[broker]) for broker in BROKERS]
    # A crash may take back what was deleted, for some of them.
    start = max(log_of(replica).log_start_offset for replica in world.replicas.values())
    logs = [{offset: log[offset] for offset in log if offset >= start} for log in logs]
    assert logs[0] == logs[1] == logs[2], world.history
    for offset, value in world.committed.items():
        assert offset < start or logs[0].get(offset) == value, (offset, world.history)
    assert sorted(world.info.isr) == [1, 2, 3]
    world.close()


def values_of(replica: Replica) -> dict[int, bytes]:
    assert replica.partition is not None
    return values(replica.partition, replica.partition.log.end_offset)


def log_of(replica: Replica) -> Log:
    assert replica.partition is not None
    return replica.partition.log


def alone_in_sync(path: Path, config: dict[str, str] | None = None) -> tuple[World, Partition]:
    """Broker 1 leads, nobody else is in sync, and each fetch is answered with all there is."""
    world = World(path, 0)
    world.info = replace(world.info, isr=(1,), partition_epoch=1)
    leader = world.replicas[1].partition
    assert leader is not None
    for broker in BROKERS:
        world.tell(broker)
    leader.configure(LogConfig.of(Settings.of(), config))  # an answer ends where a segment does
    world.random.choice = max  # type: ignore[assignment]  # of the sizes of an answer
    return world, leader


async def test_under_constant_load_a_follower_comes_back(quick_path: Path, no_sync: None) -> None:
    """Something is appended before each of its fetches, and committed without it at first."""
    world, leader = alone_in_sync(quick_path)
    for _ in range(10):
        world.append()
        assert leader.high_watermark == leader.log.end_offset, "nobody is waited for"
    for _ in range(10):
        world.append()
        world.fetch(2)
        world.append()
        world.decide(1)
        world.check()
    assert world.info.isr == (1, 2)
    world.close()


@pytest.mark.parametrize("throttled", [False, True])
async def test_a_follower_that_was_coming_back_dies(
    quick_path: Path, no_sync: None, monkeypatch: pytest.MonkeyPatch, throttled: bool
) -> None:
    """What is appended meanwhile is committed without it, a little later; at once, if it is the
    leader that makes it wait."""
    monkeypatch.setattr("tidelog.partition.leader._AWAIT_SECONDS", 0.01)
    names = {"leader.replication.throttled.replicas": "*"} if throttled else {}
    world, leader = alone_in_sync(quick_path, names)
    for _ in range(2):
        world.append()
        world.fetch(2)
    before = leader.log.end_offset
    world.append()
    assert leader.high_watermark == (leader.log.end_offset if throttled else before)
    await comes_true(lambda: leader.high_watermark == leader.log.end_offset)
    world.close()
