"""The same seed gives the same run, byte for byte, whatever the order of sets is.

Sets of texts have another order in every process (``PYTHONHASHSEED``).  So the same scenario runs
in a few processes, and all that is on the disk afterwards, and all that clients were answered, must
be the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.log import make_batch
from support.simulated import World, produce, running, simulate

from tidelog import files
from tidelog.client.peer import Peer
from tidelog.new_topic import NewTopic
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

GROUPS = [f"group-{number}" for number in range(8)]
TOPICS = [f"topic-{letter}" for letter in "abcdefgh"]


async def join(peer: Peer, group_id: str, **wanted: Any) -> str:
    """What a new member of a group is answered (KIP-848)."""
    member_id, epoch, answers = "", 0, []
    for _ in range(20):
        request = ConsumerGroupHeartbeatRequest(
            group_id=group_id, member_id=member_id, member_epoch=epoch, **wanted
        )
        answer = await peer.request(request, ConsumerGroupHeartbeatResponse, 0)
        answers.append(repr(answer))
        if not answer.error_code:
            member_id, epoch = answer.member_id or member_id, answer.member_epoch
            wanted = {}
        await asyncio.sleep(1)
    return "\n".join(answers)


async def commit(peer: Peer, group_id: str) -> str:
    row = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    topics = [OffsetCommitRequestTopic(name=name, partitions=[row]) for name in TOPICS]
    request = OffsetCommitRequest(group_id=group_id, member_id="", topics=topics)
    return repr(await peer.request(request, OffsetCommitResponse, 8))


async def scenario(world: World) -> str:
    heard: list[str] = []
    for _ in range(2):
        async with running(world, offsets_topic_num_partitions="1") as (broker, peer):
            for name in TOPICS:
                if name not in broker.metadata.topics:
                    await broker.controller.create_topic(NewTopic(name, partitions=3))
                await produce(peer, name, make_batch([name.encode()], world.clock.now_ms()))
            found = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
            await peer.request(found, FindCoordinatorResponse, 4)
            await asyncio.sleep(10)
            for number in range(3):
                topics = TOPICS[number:]
                heard.append(
                    await join(
                        peer,
                        "g",
                        rebalance_timeout_ms=60_000,
                        subscribed_topic_names=topics,
                        topic_partitions=[],
                    )
                )
            for group_id in GROUPS:
                heard.append(await commit(peer, group_id))
            asked = [DescribableLogDirTopic(topic=name, partitions=[2, 0, 1]) for name in TOPICS]
            request = DescribeLogDirsRequest(topics=asked)
            heard.append(repr(await peer.request(request, DescribeLogDirsResponse, 4)))
            metadata = await peer.request(MetadataRequest(topics=None), MetadataResponse, 9)
            heard.append(repr(metadata).replace(str(broker.server.port), "port"))
            await broker.controller.delete_topic(TOPICS[3])
            await asyncio.sleep(3600)
    return digest("\n".join(heard))


def digest(heard: str) -> str:
    lines = [f"answers {hashlib.sha256(heard.encode()).hexdigest()}"]
    for directory in files.listdir("/b1"):
        path = f"/b1/{directory}"
        names = [f"{path}/{name}" for name in files.listdir(path)] if files.is_dir(path) else [path]
        for name in names:
            if not name.endswith(".lock"):  # a process id
                lines.append(f"{name} {hashlib.sha256(files.read_file(name)).hexdigest()}")
    return "\n".join(lines)


def test_the_order_of_sets_does_not_matter() -> None:
    tests = Path(__file__).parent
    runs = []
    for hash_seed in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(tests)}
        command = [sys.executable, __file__]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        runs.append(done.stdout)
    assert "/b1/topic-a-0/00000000000000000000.log " in runs[0]
    assert runs[0] == runs[1] == runs[2]


if __name__ == "__main__":
    print(simulate(scenario))
