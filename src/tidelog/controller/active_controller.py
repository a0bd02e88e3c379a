"""What an elected controller does beside deciding: it watches, and it sends requests to brokers.

It watches the registrations of brokers and their notifications of log directories, keeps leaders
balanced, and removes old notifications of changed settings.  If it cannot go on, it steps down: the
next controller, which may be on the same broker, reads everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from tidelog.controller.controller import Controller
from tidelog.controller.failure_detector import FailureDetector
from tidelog.controller.host import ControllerHost
from tidelog.controller.propagation import Propagation
from tidelog.controller.store import Key
from tidelog.errors import ApiError
from tidelog.keeper.keeper import KeeperError, Unreachable, Watch
from tidelog.keeper.registry import CHANGE_LIVES_MS, Registry
from tidelog.metadata import BrokerInfo

log = logging.getLogger(__name__)

T = TypeVar("T")


class Elected(Protocol):
    """The election that this controller has won."""

    async def decide(self, work: Coroutine[Any, Any, T]) -> T: ...

    def step_down(self) -> None: ...


class ActiveController:
    """See the module."""

    def __init__(
        self,
        host: ControllerHost,
        registry: Registry,
        controller: Controller,
        propagation: Propagation,
        detector: FailureDetector,
        election: Elected,
        connected: asyncio.Event,
    ) -> None:
        self.controller = controller
        self._propagation = propagation
        self._host = host
        self._registry = registry
        self._detector = detector
        self._election = election
        self._connected = connected
        propagation.storage_answered = self._storage_answered
        propagation.publish(controller.metadata)
        self._tasks = [
            host.spawn(self._watch(controller.live_brokers, self._brokers_changed)),
            host.spawn(self._watch(registry.log_dir_events, self._log_dirs_changed)),
            host.spawn(self._balance_leaders()),
            host.spawn(self._remove_config_changes()),
        ]

    async def sent(self) -> None:
        """Wait until every broker has what was decided."""
        await self._propagation.sent()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._detector.watch({})
        self._propagation.close()

    async def _watch(
        self, read: Callable[[Watch], Awaitable[T]], act: Callable[[T], Awaitable[None]]
    ) -> None:
        """Read with a watch, act, wait for the watch; step down if that fails."""
        while True:
            changed = asyncio.Event()
            try:
                try:
                    found = await read(changed.set)
                except Unreachable:  # what we know is still right
                    await self._connected.wait()
                    continue
                await act(found)
            except KeeperError as error:
                log.warning("the controller cannot go on: %s (%s)", error, type(error).__name__)
                self._election.step_down()
                return
            except Exception:
                log.exception("the controller cannot go on")
                self._election.step_down()
                return
            await changed.wait()

    async def _brokers_changed(self, brokers: dict[int, BrokerInfo]) -> None:
        await self.controller.brokers_changed(brokers)
        self._detector.watch(brokers)

    async def _log_dirs_changed(self, found: tuple[set[int], list[str]]) -> None:
        brokers, nodes = found
        for broker_id in sorted(brokers):
            self._propagation.ask_again(broker_id)
        await self.controller.remove_log_dir_events(nodes)

    def _storage_answered(self, info: BrokerInfo, failed: set[Key], works: set[Key]) -> None:
        if self.controller.is_storage_news(info, failed, works):
            self._host.spawn(self._storage_changed(info, failed, works))

    async def _storage_changed(self, info: BrokerInfo, failed: set[Key], works: set[Key]) -> None:
        with contextlib.suppress(ApiError):  # we have stepped down
            await self._election.decide(self.controller.storage_changed(info, failed, works))

    async def _balance_leaders(self) -> None:
        settings = self._host.settings
        interval = settings["leader.imbalance.check.interval.seconds"]
        percentage = settings["leader.imbalance.per.broker.percentage"]
        while settings["auto.leader.rebalance.enable"]:
            await asyncio.sleep(interval)
            with contextlib.suppress(ApiError):
                await self._election.decide(self.controller.balance_leaders(percentage))

    async def _remove_config_changes(self) -> None:
        """Notifications of changed settings that every broker has read."""
        while True:
            await asyncio.sleep(CHANGE_LIVES_MS / 1000)
            with contextlib.suppress(KeeperError):
                names = await self._registry.config_change_names()
                await asyncio.sleep(CHANGE_LIVES_MS / 1000)
                await self._registry.remove_config_changes(names)
