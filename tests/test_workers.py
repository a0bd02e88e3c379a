"""Compaction and large batches without a thread or a process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NoReturn

import pytest
from support.log import contents, make_batch
from support.simulated import World, produce, running, simulate

from tidelog import files
from tidelog.new_topic import NewTopic
from tidelog.wire.compression import Codec
from tidelog.wire.records import encode_batch


async def scenario(world: World) -> None:
    clock = world.clock
    async with running(world, log_cleaner_backoff_ms="1000") as (broker, peer):
        config = {"cleanup.policy": "compact", "segment.bytes": "2000", "flush.ms": "100"}
        config |= {"min.cleanable.dirty.ratio": "0.1"}
        await broker.controller.create_topic(NewTopic("compacted", config=config))
        for i in range(200):
            record = (clock.now_ms(), b"k%d" % (i % 3), b"%d" % i * 20, ())
            await produce(peer, "compacted", encode_batch([record]))
        await asyncio.sleep(600)
        assert 3 <= len(contents(broker.replicas.partitions["compacted", 0].log)) < 60
        assert not [name for name in files.listdir("/b1/compacted-0") if "cleaned" in name]
        await broker.controller.create_topic(NewTopic("large"))
        await produce(peer, "large", make_batch([b"x"] * 50_000, clock.now_ms(), codec=Codec.LZ4))
        assert broker.replicas.partitions["large", 0].log.end_offset == 50_000


def test_a_broker_without_threads_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("something was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    simulate(scenario)
