"""Admin requests of a member: the answer comes when the broker knows what was changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.clock import FakeClock
from tidelog.controller import admin as admin_module
from tidelog.controller.admin import Admin
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.registry import Registry
from tidelog.metadata import ClusterMetadata, TopicInfo
from tidelog.new_topic import NewTopic


@pytest.mark.parametrize("exists", [False, True])
async def test_a_topic_that_is_deleted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """It may never be in this broker's metadata: the request does not wait for it."""
    monkeypatch.setattr(admin_module, "_LOOK_SECONDS", 0.01)
    topic = TopicInfo("t", b"t" * 16, ())

    async def create(*_: object, **__: object) -> TopicInfo:
        if exists:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)
        return topic

    async def never() -> None:
        await asyncio.Event().wait()

    async def decide(work: Any) -> Any:
        return await work

    keeper = EmbeddedKeeper.open(str(tmp_path / "journal"))
    election: Any = SimpleNamespace(controller=SimpleNamespace(create_topic=create), decide=decide)
    requests: Any = None
    broker: Any = SimpleNamespace(
        metadata=ClusterMetadata(), next_metadata=never, clock=FakeClock()
    )
    admin = Admin(broker, Registry(keeper, FakeClock()), requests, election)
    async with asyncio.timeout(20):
        if exists:
            with pytest.raises(ApiError):
                await admin.create_topic(NewTopic("t", 1, 1))
        else:
            assert await admin.create_topic(NewTopic("t", 1, 1)) is topic
    await keeper.close()


async def test_a_broker_that_is_elected_while_it_asks_for_the_controller() -> None:
    """Its metadata names it as controller before it is ready to decide."""
    done = []

    async def delete(name: str) -> None:
        done.append(name)

    election: Any = SimpleNamespace(controller=None)

    async def reachable() -> None:
        election.controller = SimpleNamespace(delete_topic=delete)

    async def decide(work: Any) -> Any:
        return await work

    election.reachable, election.decide = reachable, decide
    unused: Any = None
    broker: Any = SimpleNamespace(broker_id=1, metadata=ClusterMetadata(), clock=FakeClock())
    async with asyncio.timeout(20):
        await Admin(broker, unused, unused, election).delete_topic("t")
    assert done == ["t"]


async def test_a_controller_that_is_replaced_while_it_decides() -> None:
    """What the next one decides counts; the client does not notice."""
    done = []

    async def delete(name: str) -> None:
        if not done:
            done.append("fenced")
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        done.append(name)

    async def decide(work: Any) -> Any:
        return await work

    async def reachable() -> None:
        pass

    controller = SimpleNamespace(delete_topic=delete)
    election: Any = SimpleNamespace(controller=controller, decide=decide, reachable=reachable)
    unused: Any = None
    broker: Any = SimpleNamespace(broker_id=1, metadata=ClusterMetadata(), clock=FakeClock())
    async with asyncio.timeout(20):
        await Admin(broker, unused, unused, election).delete_topic("t")
    assert done == ["fenced", "t"]
