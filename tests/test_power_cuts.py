"""A whole broker loses power again and again: what it acknowledged as flushed is still there."""

from __future__ import annotations

import asyncio

import pytest
from support.log import contents, make_batch
from support.simulated import World, produce, running, simulate

from tidelog.new_topic import NewTopic

CUTS = 6


async def scenario(world: World) -> int:
    acknowledged: dict[str, list[bytes]] = {}
    rng = world.rng
    for cut in range(CUTS):
        async with running(world, log_retention_check_interval_ms="60000") as (broker, peer):
            assert set(broker.metadata.topics) == set(acknowledged)
            for name, values in acknowledged.items():
                log = broker.replicas.partitions[name, 0].log
                found = [record.value for record in contents(log)]
                assert found[: len(values)] == values, f"{name} after {cut} power cuts"
                values[:] = [value for value in found if value is not None]
            for step in range(rng.randrange(40)):
                if not acknowledged or rng.random() < 0.1:
                    name = f"t{cut}-{step}"
                    config = {"flush.messages": "1", "segment.bytes": "1000"}
                    await broker.controller.create_topic(NewTopic(name, config=config))
                    acknowledged[name] = []
                elif rng.random() < 0.03:
                    name = rng.choice(sorted(acknowledged))
                    await broker.controller.delete_topic(name)
                    del acknowledged[name]
                elif rng.random() < 0.1:
                    await asyncio.sleep(rng.choice((0.5, 70)))
                else:
                    name = rng.choice(sorted(acknowledged))
                    value = b"%s %d %d" % (name.encode(), cut, step)
                    value += bytes(rng.randrange(300))
                    await produce(peer, name, make_batch([value], world.clock.now_ms()))
                    acknowledged[name].append(value)
            world.disk.cut_power("/b1", rng)
        world.disk.come_back("/b1")
    return sum(map(len, acknowledged.values()))


@pytest.mark.parametrize("seed", range(4))
def test_power_cuts(seed: int) -> None:
    assert simulate(scenario, seed) > 0
