"""A leader asks for another in-sync set, and the answer does not come as it should."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.log import make_batch
from support.replica_model import World
from support.waiting import comes_true

from tidelog.client.connection import BrokerUnreachable
from tidelog.errors import ErrorCode
from tidelog.partition.isr_changes import IsrChanges
from tidelog.partition.partition import Partition
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ChangedPartition,
    ChangedTopic,
)


class Network:
    """What is between the leader and a controller that goes by partition epochs."""

    def __init__(self, world: World) -> None:
        self.broker_id, self.broker_epoch = 1, 1
        self.world = world
        self.registered = {1: 1, 2: -1, 3: -1}  # broker epochs, as the controller knows them
        self.lose_answers = 0
        self.asked = 0

    async def ask_controller(
        self, request: AlterPartitionRequest, _answer: Any, _version: int
    ) -> AlterPartitionResponse:
        self.asked += 1
        await asyncio.sleep(0)
        (topic,) = request.topics
        (row,) = topic.partitions
        code, info = ErrorCode.INVALID_UPDATE_VERSION, self.world.info
        states = row.new_isr_with_epochs
        if any(state.broker_epoch != self.registered[state.broker_id] for state in states):
            code = ErrorCode.INELIGIBLE_REPLICA
        elif row.partition_epoch == info.partition_epoch:
            isr = tuple(state.broker_id for state in states)
            info = replace(info, isr=isr, partition_epoch=info.partition_epoch + 1)
            code, self.world.info = ErrorCode.NONE, info
        if self.lose_answers:
            self.lose_answers -= 1
            raise BrokerUnreachable("the connection broke")
        changed = ChangedPartition(
            partition_index=0,
            error_code=code,
            leader_id=info.leader,
            leader_epoch=info.leader_epoch,
            isr=list(info.isr),
            partition_epoch=info.partition_epoch,
        )
        return AlterPartitionResponse(
            error_code=0, topics=[ChangedTopic(topic_id=topic.topic_id, partitions=[changed])]
        )


def append(partition: Partition, now_ms: int) -> int:
    batch = memoryview(bytearray(make_batch([b"x"])))
    return partition.require_leader().append(batch, 9, now_ms).last_offset + 1


async def refused(network: Network, leader: Partition) -> None:
    """The first answer is lost, the second is a refusal, and what follows has followed."""
    state = leader.require_leader().in_sync_set
    await comes_true(lambda: state is None or state.proposed is None or network.asked >= 4)


async def test_an_answer_is_lost(quick_path: Path, no_sync: None) -> None:
    """The controller has taken 3 into the in-sync set, and the leader has not heard of it:
    nothing is committed that 3 does not have, until an order says how things are."""
    world = World(quick_path, 0)
    world.info = replace(world.info, isr=(1, 2), partition_epoch=1)
    world.tell(1)
    network = Network(world)
    network.lose_answers = 1
    changes = IsrChanges(network)  # type: ignore[arg-type]
    world.replicas[1].replicas.propose_isr = changes.propose
    leader = world.replicas[1].partition
    assert leader is not None
    task = asyncio.create_task(changes.run())
    now = world.clock.now_ms()
    leader.require_leader().follower_fetched(2, 0, now)
    leader.require_leader().follower_fetched(3, 0, now)
    await refused(network, leader)
    assert world.info.isr == (1, 2, 3)
    end = append(leader, now)
    leader.require_leader().follower_fetched(2, end, now)
    assert leader.high_watermark == 0, "3 may be elected, and does not have it"
    world.tell(1)
    leader.require_leader().follower_fetched(3, end, now)
    assert leader.high_watermark == end
    assert leader.require_leader().in_sync == 3
    task.cancel()
    world.close()


async def test_a_follower_is_restarted_while_its_proposal_stands(
    quick_path: Path, no_sync: None
) -> None:
    """3 had everything when it was proposed.  When the controller can be asked at last, 3 has
    lost power and is back with less: it comes into sync when it has everything again."""
    world = World(quick_path, 0)
    world.info = replace(world.info, isr=(1, 2), partition_epoch=1)
    world.tell(1)
    network = Network(world)
    changes = IsrChanges(network)  # type: ignore[arg-type]
    world.replicas[1].replicas.propose_isr = changes.propose
    leader = world.replicas[1].partition
    assert leader is not None
    now = world.clock.now_ms()
    end = append(leader, now)
    leader.require_leader().follower_fetched(2, end, now, broker_epoch=20)
    leader.require_leader().follower_fetched(3, end, now, broker_epoch=30)
    assert leader.high_watermark == end
    network.registered = {1: 1, 2: 20, 3: 31}
    leader.require_leader().follower_fetched(3, 0, now, broker_epoch=31)
    task = asyncio.create_task(changes.run())
    state = leader.require_leader().in_sync_set
    assert state is not None
    await comes_true(lambda: state.proposed is None)
    assert network.asked == 1
    assert state.isr == world.info.isr == (1, 2)
    leader.require_leader().follower_fetched(3, end, now + 5000, broker_epoch=31)
    await comes_true(lambda: state.proposed is None)
    assert state.isr == world.info.isr == (1, 2, 3)
    task.cancel()
    world.close()


async def test_alone_in_sync(quick_path: Path, no_sync: None) -> None:
    """No follower is there to tell how far it is: what the leader has is committed."""
    world = World(quick_path, 0)
    world.info = replace(world.info, isr=(1,), partition_epoch=1)
    world.tell(1)
    leader = world.replicas[1].partition
    assert leader is not None
    end = append(leader, world.clock.now_ms())
    assert leader.high_watermark == end == 1
    world.close()


async def test_too_few_in_sync_commit_nothing(quick_path: Path, no_sync: None) -> None:
    """KIP-966: a record that fewer have than min.insync.replicas asks for is not shown."""
    world = World(quick_path, 0)
    world.info = replace(world.info, isr=(1,), partition_epoch=1)
    world.tell(1)
    leader = world.replicas[1].partition
    assert leader is not None
    leader.configure(replace(leader.log.config, min_insync_replicas=2))
    assert (leader.require_leader().in_sync, leader.require_leader().min_in_sync) == (1, 2)
    now = world.clock.now_ms()
    end = append(leader, now)
    assert leader.high_watermark == 0
    leader.require_leader().follower_fetched(2, end, now)
    assert leader.high_watermark == 0, "2 has it, and is not in sync yet"
    world.info = replace(world.info, isr=(1, 2), partition_epoch=2)
    world.tell(1)
    assert leader.high_watermark == end == 1
    world.info = replace(world.info, isr=(1,), partition_epoch=3)
    world.tell(1)
    end = append(leader, now)
    assert leader.high_watermark == 1
    leader.configure(replace(leader.log.config, min_insync_replicas=1))
    assert leader.high_watermark == end == 2
    # More than there are replicas cannot be asked for.
    world.info = replace(world.info, isr=(1, 2), replicas=(1, 2), partition_epoch=4)
    world.tell(1)
    leader.configure(replace(leader.log.config, min_insync_replicas=3))
    assert leader.require_leader().min_in_sync == 2
    end = append(leader, now)
    leader.require_leader().follower_fetched(2, end, now)
    assert leader.high_watermark == end == 3
    world.close()


async def test_an_order_that_is_older_than_an_answer(quick_path: Path, no_sync: None) -> None:
    """The leader knows already that it is alone: it does not count 2 as in sync again."""
    world = World(quick_path, 0)
    leader = world.replicas[1].partition
    assert leader is not None
    older = replace(world.info, isr=(1, 2), partition_epoch=1)
    leader.require_leader().isr_decided((1,), (1,), 2)
    assert leader.require_leader().in_sync == 1
    world.info = older
    world.tell(1)
    assert leader.require_leader().in_sync == 1
    world.close()
