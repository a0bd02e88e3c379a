"""The registration of this broker: an ephemeral znode under its id.

Another znode may stand in its place: of an earlier process of this broker, whose session has not
ended yet, or of another broker with the same id, which is a mistake of the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from tidelog import workers
from tidelog.controller.host import ControllerHost, Requests
from tidelog.errors import SettingError
from tidelog.keeper import paths
from tidelog.keeper.keeper import BadVersion, Keeper, NoNode, Stat
from tidelog.keeper.registry import Registry
from tidelog.keeper.znodes import UnreadableZnode
from tidelog.metadata import BrokerInfo
from tidelog.ports import answers

log = logging.getLogger(__name__)

_END_SECONDS = 2.0  # until a session that is over has no znodes any more


class IdTaken(SettingError):
    """Another broker is registered under our id."""


class Registration:
    """See the module."""

    def __init__(
        self, host: ControllerHost, keeper: Keeper, registry: Registry, requests: Requests
    ) -> None:
        self._host = host
        self._keeper = keeper
        self._registry = registry
        self._requests = requests
        self._timeout = 1.5 * host.settings["zookeeper.session.timeout.ms"] / 1000
        self._joined = False
        self.valid = False  # in this session

    async def ensure(self, changed: Callable[[], None]) -> None:
        """Be registered; ``changed`` is called when that may have ended."""
        info = self._host.own_info()
        while True:
            gone = asyncio.Event()

            def notify(gone: asyncio.Event = gone) -> None:
                gone.set()
                changed()

            try:
                found = await self._registry.registration(info.broker_id, notify)
            except UnreadableZnode as error:
                await self._repair(info.broker_id, error)
                continue
            if found is None:
                # Another may be faster, and is looked at next; or it is gone again.
                with contextlib.suppress(SettingError, NoNode):
                    self._is(await self._registry.register(info))
                continue  # once more, for the watch
            other, stat = found
            if stat.own:
                self._is(stat.czxid)
                self._joined = True
                return
            await self._replace(info, other, stat, gone)

    def _is(self, epoch: int) -> None:
        self._requests.registered(epoch)
        self.valid = True

    async def _repair(self, broker_id: int, error: UnreadableZnode) -> None:
        """What stands in place of our registration cannot be read."""
        stat = await self._keeper.exists(paths.broker(broker_id))
        if stat is None:
            return
        if not stat.own:
            raise SettingError(
                f"broker.id={broker_id}: {error}; if no such broker is running, delete this znode"
            )
        log.warning("%s; it was ours: registering again", error)
        with contextlib.suppress(NoNode, BadVersion):
            await self._registry.forget(broker_id, stat)

    async def _replace(
        self, info: BrokerInfo, other: BrokerInfo, stat: Stat, gone: asyncio.Event
    ) -> None:
        """Another session has our id: an earlier one of this broker, or another broker?"""
        refusal = (
            f"broker.id={info.broker_id}: a broker with this id is running already, on "
            f"{other.host}:{other.port}; give this one another broker.id"
        )
        same_address = (other.host, other.port) == (info.host, info.port)
        if self._joined and same_address:
            # Of our session that has ended, and about to go; or of another process that took our
            # place, at the address that we advertise.
            await self._keeper.sync()
            try:
                await asyncio.wait_for(gone.wait(), _END_SECONDS)
            except TimeoutError:
                if stat.czxid != self._requests.broker_epoch:
                    raise IdTaken(refusal) from None
            return
        if same_address:
            # The port is ours now, so the process that had it is dead; its session is not over yet.
            with contextlib.suppress(NoNode, BadVersion):
                await self._registry.forget(info.broker_id, stat)
            await self._registry.forget_controller(info.broker_id)
            return
        # If we were registered ourselves, it has taken our id since; what we led it leads.
        if self._joined or await workers.run(answers, other.host or "localhost", other.port):
            raise IdTaken(refusal)
        log.info("waiting for the session of an earlier broker %d to end", info.broker_id)
        try:
            await asyncio.wait_for(gone.wait(), self._timeout)
        except TimeoutError:
            raise IdTaken(refusal) from None
