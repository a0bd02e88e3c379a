"""Znodes that somebody has spoilt: brokers on a real ZooKeeper go on with the rest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.in_process import knows, settings
from support.waiting import comes_true

from tidelog.broker.broker import Broker
from tidelog.keeper import paths
from tidelog.keeper.keeper import Create, Set
from tidelog.new_topic import NewTopic


async def test_a_topic_and_a_note_that_make_no_sense(
    zookeeper: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(settings(1, tmp_path, zookeeper)) as broker:
        for name in ("spoilt", "good"):
            await broker.controller.create_topic(NewTopic(name, 2, 1))
        await broker.keeper.multi([Set(paths.topic("spoilt"), b"{nonsense")])
    async with Broker(settings(1, tmp_path, zookeeper)) as broker:
        await knows(broker, {"good": 2})
        assert ("spoilt", 0) in broker.manager.logs, "its logs wait until it is put right"
        await broker.keeper.multi([Create(paths.CONFIG_CHANGE, b"nonsense", sequential=True)])
        await broker.keeper.multi([Create(paths.broker_config("1"), b"nonsense")])
        note = paths.to_json({"version": 2, "entity_path": "brokers/1"})
        await broker.keeper.multi([Create(paths.CONFIG_CHANGE, note, sequential=True)])
        config = {"retention.ms": "12345"}
        path = paths.topic_config("good")
        await broker.registry.write_config(path, config)
        async with asyncio.timeout(60):
            while broker.metadata.topics["good"].config != config:
                await broker.next_metadata()
    assert f"{paths.CONFIG_CHANGE}0" in caplog.text
    assert f"{paths.broker_config('1')} makes no sense" in caplog.text
    assert "a background task failed" not in caplog.text
    assert not list((tmp_path / "1").glob("*-stray"))


async def test_brokers_that_make_no_sense(
    zookeeper: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is none is passed over; one that is there registers again."""
    async with Broker(settings(1, tmp_path, zookeeper)) as broker:
        await broker.keeper.multi([Create(paths.broker(7), b"nonsense")])
        await broker.controller.create_topic(NewTopic("t", 1, 1))
        controller = broker.election.controller
        before = controller.metadata.brokers
        await broker.keeper.multi([Set(paths.broker(1), b"nonsense")])
        await comes_true(
            lambda: controller.metadata.brokers not in (before, {}), "it has registered again"
        )
        await broker.controller.create_topic(NewTopic("u", 1, 1))
        await knows(broker, {"t": 1, "u": 1})
        assert broker.metadata.brokers.keys() == {1}
    for number in (1, 7):
        assert f"{paths.broker(number)} makes no sense" in caplog.text
    assert "the controller cannot go on" not in caplog.text
    assert "cannot be controller" not in caplog.text
