"""The same seed gives the same ids, in a whole broker."""

from __future__ import annotations

import re

from support.simulated import World, running, simulate

from tidelog import ids
from tidelog.new_topic import NewTopic
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.uuids import uuid_text


async def drawn(world: World) -> list[object]:
    """What a broker has drawn after its start, a topic that comes and goes, and a client."""
    async with running(world) as (broker, peer):
        found: list[object] = [broker.metadata.cluster_id]
        for name in ("a", "b"):
            await broker.controller.create_topic(NewTopic(name, partitions=3))
            found.append(broker.metadata.topics[name].topic_id)
        await broker.controller.delete_topic("a")
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer = await peer.request(request, InitProducerIdResponse, 3)
        found.append((answer.producer_id, answer.producer_epoch))
        found += [ids.random_name(), ids.number(1, 1 << 30)]
        return found


def test_the_same_seed_gives_the_same_ids() -> None:
    first, again, other = (simulate(drawn, seed) for seed in (1, 1, 2))
    assert first == again
    assert all(a != b for a, b in zip(first[:3], other[:3], strict=True))


def test_without_a_seed_ids_differ_and_are_well_formed() -> None:
    drawn = {ids.random_uuid() for _ in range(2000)}
    assert len(drawn) == 2000
    assert not any(uuid_text(raw).startswith("-") for raw in drawn)
    assert {raw[6] >> 4 for raw in drawn} == {4}
    assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", ids.random_name())
