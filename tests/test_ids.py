"""The same seed gives the same ids, in a whole broker."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager

from support.memory_files import MemoryFiles
from support.virtual_time import VirtualClock, run_virtual

from tidelog import files, ids
from tidelog.broker.broker import Broker
from tidelog.client.peer import Peer
from tidelog.new_topic import NewTopic
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.uuids import uuid_text


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    before = ids.use(random.Random(seed))
    try:
        yield
    finally:
        ids.use(before)


async def drawn(clock: VirtualClock) -> list[object]:
    """What a broker has drawn after its start, a topic that comes and goes, and a few clients."""
    settings = {"log.dirs": "/b1", "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings, clock) as broker:
        found: list[object] = [broker.metadata.cluster_id]
        for name in ("a", "b"):
            await broker.controller.create_topic(NewTopic(name, partitions=3))
            found.append(broker.metadata.topics[name].topic_id)
        await broker.controller.delete_topic("a")
        found.append(sorted(n for n in files.listdir("/b1") if n.endswith("-delete")))
        peer = Peer("127.0.0.1", broker.server.port, "test", 30_000)
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer = await peer.request(request, InitProducerIdResponse, 3)
        found.append((answer.producer_id, answer.producer_epoch))
        peer.close()
        found += [ids.random_name(), ids.number(1, 1 << 30)]
        return found


def test_the_same_seed_gives_the_same_ids() -> None:
    runs = []
    for seed in (1, 1, 2):
        with seeded(seed), MemoryFiles().installed():
            runs.append(run_virtual(drawn))
    assert runs[0] == runs[1]
    assert all(a != b for a, b in zip(runs[0][:3], runs[2][:3], strict=True))


def test_without_a_seed_ids_differ_and_are_well_formed() -> None:
    drawn = {ids.random_uuid() for _ in range(2000)}
    assert len(drawn) == 2000
    assert not any(uuid_text(raw).startswith("-") for raw in drawn)
    assert {raw[6] >> 4 for raw in drawn} == {4}
    assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", ids.random_name())
