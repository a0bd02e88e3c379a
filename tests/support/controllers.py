"""Controllers on the embedded keeper, and brokers that are only registered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tidelog.clock import FakeClock
from tidelog.controller.controller import Controller
from tidelog.controller.in_sync_changes import IsrChange
from tidelog.errors import ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import Delete
from tidelog.keeper.registry import Registry
from tidelog.metadata import BrokerInfo, ClusterMetadata, PartitionInfo
from tidelog.settings import Settings


class Cluster:
    """A keeper with brokers, and the elected controller."""

    def __init__(self, path: Path, settings: dict[str, Any] | None = None) -> None:
        self.keeper = EmbeddedKeeper.open(str(path / "journal"))
        self.registry = Registry(self.keeper, FakeClock())
        self.settings = Settings.of(settings or {})
        self.published: list[ClusterMetadata] = []
        self.controller: Controller

    async def open(self, brokers: int = 3) -> None:
        await self.registry.make_paths()
        for broker_id in range(1, brokers + 1):
            await self.join(broker_id)
        await self.elect()

    async def elect(self) -> None:
        if await self.keeper.exists(paths.CONTROLLER):
            await self.keeper.multi([Delete(paths.CONTROLLER)])
        self.controller = Controller(self.keeper, self.settings, FakeClock(), self.published.append)
        await self.controller.elect(1)
        await self.controller.load("cluster", 1)

    async def join(self, broker_id: int) -> None:
        await self.registry.register(BrokerInfo(broker_id, "host", 9090 + broker_id, None))

    async def leave(self, broker_id: int) -> None:
        await self.keeper.multi([Delete(paths.broker(broker_id))])

    async def look(self) -> None:
        brokers = await self.controller.live_brokers(lambda: None)
        await self.controller.brokers_changed(brokers)

    def row(self, name: str = "t", index: int = 0) -> PartitionInfo:
        return self.controller.metadata.topics[name].partitions[index]

    async def on_disk(self, name: str = "t", index: int = 0) -> PartitionInfo:
        topic = await self.registry.topic(name)
        assert topic is not None
        return topic.partitions[index]

    async def ask(
        self,
        broker_id: int,
        isr: tuple[int, ...],
        epochs: dict[int, int] | None = None,
        **other: int,
    ) -> ErrorCode:
        topic, row = self.controller.metadata.topics["t"], self.row()
        live = {b: info.epoch for b, info in self.controller.metadata.brokers.items()}
        change = IsrChange(
            topic.topic_id,
            0,
            other.get("leader_epoch", row.leader_epoch),
            isr,
            other.get("partition_epoch", row.partition_epoch),
            live if epochs is None else epochs,
        )
        epoch = self.controller.metadata.brokers[broker_id].epoch
        answers = await self.controller.alter_partitions(broker_id, epoch, [change])
        return answers[0][0]


@asynccontextmanager
async def with_controller(
    path: Path, brokers: int = 3, settings: dict[str, Any] | None = None
) -> AsyncIterator[Cluster]:
    cluster = Cluster(path, settings)
    await cluster.open(brokers)
    yield cluster
