"""This broker as a member of a cluster, on ZooKeeper or, as the only one, on the embedded keeper.

It registers (``registration.py``), takes part in the election of the controller (``election.py``),
and follows what concerns every broker: changed settings (``config_changes.py``), and the
registrations of the others, which say whose fetches count as a follower's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from tidelog.controller.config_changes import ConfigChanges
from tidelog.controller.election import Election
from tidelog.controller.host import ControllerHost, Requests
from tidelog.controller.registration import Registration
from tidelog.controller.store import Key
from tidelog.controller.watching import keep_watching
from tidelog.keeper.keeper import Keeper, SessionEvent
from tidelog.keeper.registry import Registry, retry
from tidelog.metadata import BrokerInfo

log = logging.getLogger(__name__)


class Membership:
    """See the module."""

    def __init__(
        self,
        host: ControllerHost,
        keeper: Keeper,
        registry: Registry,
        requests: Requests,
        log_epochs: Callable[[], Mapping[Key, int]] = dict,
    ) -> None:
        self._host = host
        self._keeper = keeper
        self._registry = registry
        self._requests = requests
        self._connected = asyncio.Event()
        self._connected.set()
        self._registration = Registration(host, keeper, registry, requests)
        self.election = Election(
            host, keeper, registry, self._registration, requests, self._connected, log_epochs
        )
        self._config_changes = ConfigChanges(registry, requests, self.election)
        self._live_epochs: dict[int, int] = {}

    async def prepare(self) -> None:
        """What is needed before the logs are opened: paths and settings."""
        await self._registry.make_paths()
        await self._config_changes.prepare()
        self._requests.topic_configs = await self._registry.topic_configs()

    async def join(self) -> None:
        """Register, and wait for the metadata of a controller."""
        self._keeper.on_session(self._session_changed)
        await retry(lambda: self._registration.ensure(self.election.look_again))
        self.election.start()
        self._host.spawn(self._config_changes.run(self._connected))
        self._host.spawn(
            keep_watching(self._registry.brokers, self._brokers_changed, self._connected)
        )
        informed = asyncio.ensure_future(self._requests.informed.wait())
        failed = asyncio.ensure_future(self._host.stopped())
        try:
            await asyncio.wait({informed, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                await failed
        finally:
            informed.cancel()
            failed.cancel()

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._connected.set()
            if not self._registration.valid:
                log.info("a new session with ZooKeeper")
            self.election.look_again()
            return
        self._connected.clear()
        if event is SessionEvent.EXPIRED:
            log.warning("the session with ZooKeeper has expired: joining the cluster again")
            self._registration.valid = False
            self.election.step_down()
        else:
            self.election.look_again()

    async def _brokers_changed(self, brokers: dict[int, BrokerInfo]) -> None:
        self._live_epochs = {i: info.epoch for i, info in brokers.items()}

    def is_registered(self, broker_id: int, broker_epoch: int) -> bool:
        """Is this the epoch under which a broker is registered?  While ZooKeeper is away, what
        was known last holds."""
        return self._live_epochs.get(broker_id) == broker_epoch

    async def log_dirs_changed(self) -> None:
        """Notify the controller that some log directory has failed, or works again."""
        await retry(lambda: self._registry.notify_log_dir_event(self._host.broker_id))

    def close(self) -> None:
        self.election.close()
