"""Changes of settings: every broker reads the notifications in ``/config/changes``."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from tidelog.controller.election import Election
from tidelog.controller.host import Requests
from tidelog.controller.watching import keep_watching
from tidelog.errors import ApiError, SettingError
from tidelog.keeper.keeper import Watch
from tidelog.keeper.registry import Registry

log = logging.getLogger(__name__)


class ConfigChanges:
    """See the module."""

    def __init__(self, registry: Registry, requests: Requests, election: Election) -> None:
        self._registry = registry
        self._requests = requests
        self._election = election
        self._last = ""  # the newest notification that we know

    async def prepare(self) -> None:
        """The settings are about to be read: what has been notified by now is in them."""
        self._last = max(await self._registry.config_change_names(), default="")

    async def run(self, connected: asyncio.Event) -> None:
        await keep_watching(self._read, self._apply, connected)

    async def _read(self, watch: Watch) -> dict[str, str]:
        return await self._registry.config_changes(self._last, watch)

    async def _apply(self, changes: dict[str, str]) -> None:
        for name, entity in sorted(changes.items()):
            await self._apply_one(entity)
            self._last = name

    async def _apply_one(self, entity: str) -> None:
        try:
            await self._requests.config_changed(entity)
        except SettingError as error:
            log.error("/config/%s: %s; it has no effect", entity, error)
            return
        controller = self._election.controller
        if controller is not None and entity.startswith("topics/"):
            topic = entity.removeprefix("topics/")
            config = self._requests.topic_configs.get(topic, {})
            with contextlib.suppress(ApiError):  # we have stepped down
                await self._election.decide(controller.topic_config_changed(topic, config))
