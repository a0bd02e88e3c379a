"""The controller of a lone broker, on a journal that outlives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tidelog.clock import FakeClock
from tidelog.controller.controller import Controller
from tidelog.errors import ApiError
from tidelog.keeper import paths
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.registry import Registry
from tidelog.metadata import BrokerInfo, ClusterMetadata
from tidelog.new_topic import NewTopic
from tidelog.settings import Settings

T = TypeVar("T")
ME = BrokerInfo(3, None, 9092, None)


def run(work: Awaitable[T]) -> T:
    async def wait() -> T:
        return await work

    return asyncio.run(wait())


class Cluster:
    """One controller on one journal; ``restart`` as often as you like."""

    def __init__(self, path: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.settings = Settings.of({"broker.id": 3, **(settings or {})})
        self.published: list[ClusterMetadata] = []
        self.restart()

    def restart(self) -> None:
        self.keeper = EmbeddedKeeper.open(str(self.path / "journal"))
        self.registry = Registry(self.keeper, FakeClock())
        self.controller = Controller(self.keeper, self.settings, FakeClock(), self.published.append)
        run(self.start())

    async def start(self) -> None:
        await self.registry.make_paths()
        self.cluster_id = await self.registry.find_cluster_id(None)
        await self.registry.register(ME)
        await self.controller.elect(ME.broker_id)
        await self.controller.load(self.cluster_id, ME.broker_id)

    def marks(self) -> list[str]:
        """Topics whose deletion has begun."""
        return run(self.keeper.children(paths.DELETED_TOPICS))

    def create(self, *args: Any, **named: Any) -> Any:
        return run(self.controller.create_topic(NewTopic(*args, **named)))

    def refused(self, work: Awaitable[Any]) -> ApiError:
        before, size = self.controller.metadata, (self.path / "journal").stat().st_size
        with pytest.raises(ApiError) as error:
            run(work)
        assert self.controller.metadata is before
        assert (self.path / "journal").stat().st_size == size
        return error.value

    def json(self, path: str) -> Any:
        return json.loads(run(self.keeper.get(path))[0])

    @property
    def topics(self) -> dict[str, int]:
        return {name: len(t.partitions) for name, t in self.controller.metadata.topics.items()}
