"""What this package needs of the broker that it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from tidelog.client.peer import Peer
from tidelog.clock import Clock
from tidelog.metadata import BrokerInfo, ClusterMetadata
from tidelog.settings import Settings
from tidelog.wire.schema import Message


class ControllerHost(Protocol):
    """The broker."""

    @property
    def broker_id(self) -> int: ...

    @property
    def standalone(self) -> bool:
        """Is it the only broker, without ZooKeeper?"""

    @property
    def clock(self) -> Clock: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def metadata(self) -> ClusterMetadata: ...

    def own_info(self) -> BrokerInfo:
        """How this broker registers."""

    def peer(self, info: BrokerInfo) -> Peer:
        """A new connection to another broker."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something in the background, as long as the broker runs."""

    def fail(self, error: Exception) -> None:
        """Serve no more."""

    async def stopped(self) -> None:
        """Wait until the broker is stopped; raises why, if it failed."""

    async def next_metadata(self) -> None:
        """Wait until the metadata has changed."""


class Requests(Protocol):
    """How this broker handles what the controller sends it."""

    topic_configs: dict[str, dict[str, str]]
    informed: asyncio.Event  # there has been metadata of a controller
    broker_epoch: int

    def registered(self, broker_epoch: int) -> None:
        """This broker is registered under this epoch."""

    async def apply(self, request: Message) -> Message:
        """A request of the controller on this very broker."""

    async def config_changed(self, entity: str) -> None:
        """The settings of ``topics/name``, ``brokers/id`` or ``groups/id`` have changed."""
