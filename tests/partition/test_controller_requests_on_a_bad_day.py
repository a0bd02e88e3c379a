"""Leading and following with a full disk, and partitions that are gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.log import make_batch
from support.log_faults import FaultyDisk
from support.replica_model import KEY, TOPIC, World

from tidelog.broker.handlers import k02_list_offsets
from tidelog.broker.registry import REGISTRY
from tidelog.broker.request import Request
from tidelog.broker.request_stats import ApiStats
from tidelog.clock import SystemClock
from tidelog.errors import ErrorCode
from tidelog.log.leader_epochs import LeaderEpochs
from tidelog.metadata import ClusterMetadata
from tidelog.partition.acknowledgement import Unacknowledged
from tidelog.partition.appending import Appender
from tidelog.partition.offload import Offload
from tidelog.partition.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP
from tidelog.partition.partition import Partition
from tidelog.settings import LogConfig, Settings
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)


def append(partition: Partition, now_ms: int) -> None:
    partition.require_leader().append(memoryview(bytearray(make_batch([b"x"]))), 9, now_ms)


async def test_the_disk_is_full_when_a_leader_begins(
    quick_path: Path, no_sync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leads all the same, so that what it has can be read; when there is room it goes on."""
    world = World(quick_path, 0)
    disk = FaultyDisk(monkeypatch)
    disk.fails = lambda *_: True
    world.info = replace(world.info, leader=2, leader_epoch=1, partition_epoch=1)
    world.tell(2)
    leader = world.replicas[2].partition
    assert leader is not None
    assert leader.leads
    assert leader.log.epochs.latest == 1
    leader.require_leader().follower_fetched(1, 0, world.clock.now_ms())
    disk.fails = lambda *_: False
    append(leader, world.clock.now_ms())
    leader.require_leader().follower_fetched(1, 1, world.clock.now_ms())
    leader.require_leader().follower_fetched(3, 1, world.clock.now_ms())
    assert leader.high_watermark == 1
    leader.log.flush()
    saved = LeaderEpochs.load(leader.log.directory)
    assert saved is not None
    assert saved.latest == 1
    world.close()


async def test_the_disk_is_full_when_a_leader_is_replaced(
    quick_path: Path, no_sync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows all the same: two leaders would be worse than a file that is not up to date."""
    world = World(quick_path, 0)
    old = world.replicas[1].partition
    assert old is not None
    assert old.log.epochs.entries == [(0, 0)], "an epoch that has written nothing"
    disk = FaultyDisk(monkeypatch)
    disk.fails = lambda *_: True
    world.info = replace(world.info, leader=2, leader_epoch=1, partition_epoch=1)
    world.tell(1)
    assert not old.leads
    assert old.leader_epoch == 1
    assert old.log.epochs.entries == []
    disk.fails = lambda *_: False
    world.close()


async def test_a_producer_asks_a_follower(quick_path: Path, no_sync: None) -> None:
    """It hears that another leads, not that there are too few replicas: else it would go on
    asking here instead of looking for the leader."""
    world = World(quick_path, 0)
    world.info = replace(world.info, isr=(1,), partition_epoch=1)
    world.tell(2)
    replicas = world.replicas[2].replicas
    careful = LogConfig.of(Settings.of(), {"min.insync.replicas": "2"})
    replicas.partitions[KEY].configure(careful)
    appender = Appender(replicas, world.clock, Offload())
    batch = memoryview(bytearray(make_batch([b"x"])))
    result = appender.append("t", 0, batch, -1, 9, world.clock.now_ms(), {})
    assert result.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.close()


async def test_an_order_that_comes_late_is_ignored(quick_path: Path, no_sync: None) -> None:
    """Requests of the controller may overtake each other when a connection breaks."""
    world = World(quick_path, 0)
    replicas, before = world.replicas[2].replicas, world.info
    partition = replicas.partitions[KEY]
    world.info = replace(before, leader=2, leader_epoch=1, partition_epoch=1)
    world.tell(2)
    smaller = replace(world.info, isr=(2, 3), partition_epoch=2)
    assert replicas.take(TOPIC, 0, smaller) is partition
    for late in (before, world.info, smaller):
        assert replicas.take(TOPIC, 0, late) is None
        assert (partition.leader_epoch, partition.require_leader().in_sync) == (1, 2)
    world.close()


async def test_the_log_of_an_older_topic_of_that_name_is_set_aside(
    quick_path: Path, no_sync: None
) -> None:
    """The topic was deleted and created again while this broker was down."""
    world = World(quick_path, 0)
    append(world.replicas[1].replicas.partitions[KEY], world.clock.now_ms())
    replica = world.replicas[1]
    replica.crash()
    replica.start()
    created = replace(TOPIC, topic_id=b"\2" * 16)
    partition = replica.replicas.take(created, 0, world.info)
    assert partition is not None
    assert partition.log.end_offset == 0
    assert len(list(Path(replica.path).glob("t-0.*-stray"))) == 1
    world.close()


async def test_who_no_longer_leads_acknowledges_nothing(quick_path: Path, no_sync: None) -> None:
    """The next leader may not have it, though the old one's high watermark moves on."""
    world = World(quick_path, 0)
    partition = world.replicas[1].partition
    assert partition is not None
    append(partition, world.clock.now_ms())
    waiting = Unacknowledged(partition.require_leader(), 0)
    assert waiting.error() == ErrorCode.REQUEST_TIMED_OUT, "if time were up now"
    partition.require_leader().follower_fetched(2, 1, world.clock.now_ms())
    partition.require_leader().follower_fetched(3, 1, world.clock.now_ms())
    assert waiting.error() == ErrorCode.NONE
    for epoch, leader in ((1, 2), (2, 1)):  # also if it leads again
        world.info = replace(world.info, leader=leader, leader_epoch=epoch, partition_epoch=epoch)
        world.tell(1)
        assert waiting.error() == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.close()


@pytest.mark.parametrize("how", ["made again", "of no known topic"])
async def test_who_fetches_hears_that_a_partition_is_gone(
    quick_path: Path, no_sync: None, how: str
) -> None:
    """The leader knows no such topic and answers at once: it would be asked without end."""
    world = World(quick_path, 0)
    replicas = world.replicas[2].replicas
    followed = replicas.partitions[KEY]
    gone: list[Partition] = []
    replicas.let_go = gone.append
    if how == "made again":
        replicas.take(replace(TOPIC, topic_id=b"\2" * 16), 0, world.info)
        assert replicas.partitions[KEY] is not followed
    else:
        replicas.keep_only(set())
    assert gone == [followed]
    world.close()


async def test_offsets_of_a_leader_that_was_just_elected(quick_path: Path, no_sync: None) -> None:
    """KIP-207: its high watermark is old, so what is not below it may have been seen already."""
    world = World(quick_path, 0)
    first = world.replicas[1].partition
    assert first is not None
    append(first, world.clock.now_ms())
    world.fetch(2)
    world.info = replace(world.info, leader=2, leader_epoch=1, partition_epoch=1)
    for broker in (2, 3):
        world.tell(broker)
    leader = world.replicas[2].partition
    assert leader is not None
    assert (leader.high_watermark, leader.log.end_offset) == (0, 1)
    served: Any = SimpleNamespace(
        replicas=world.replicas[2].replicas, metadata=ClusterMetadata(), member=None
    )

    def ask(timestamp: int, version: int = 7) -> tuple[int, int]:
        row = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsTopic(name="t", partitions=[row])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
        stats = ApiStats(SystemClock())
        local = Request.local(REGISTRY[request.api_key], version, stats, 0.0)
        answer: Any = k02_list_offsets.list_offsets(served, request, local)
        found = answer.topics[0].partitions[0]
        return found.error_code, found.offset

    unknown = (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    for timestamp in (LATEST, MAX_TIMESTAMP, 0):
        assert ask(timestamp) == unknown
    assert ask(LATEST, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert ask(EARLIEST) == (0, 0)
    for follower in (1, 3):
        leader.require_leader().follower_fetched(follower, 1, world.clock.now_ms())
    assert ask(LATEST) == (0, 1)
    assert ask(0) == (0, 0)
    world.close()
