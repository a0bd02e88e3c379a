"""Failure detector: notices at once that the process of another broker has died.

ZooKeeper takes a broker for dead when its session is over, many seconds later.  But when a
process dies, its connections end in the same moment, and its port refuses new ones: then there
is nothing to wait for.  The detector holds a connection, and when that ends and the port refuses
it several times, it removes the registration of that broker.

Nothing else counts.  A machine that does not answer, a broken network, a process that is
stopped for a while: these look different (nothing comes, or the connection succeeds), and are
left to the session.  Nor does it matter if the detector is wrong: a broker that finds itself
unregistered registers again, and everything it leads is fenced by epochs meanwhile.

Every broker watches the controller, and the controller watches all brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from tidelog.controller.host import ControllerHost
from tidelog.keeper.keeper import KeeperError, Unreachable
from tidelog.keeper.registry import Registry
from tidelog.keeper.znodes import UnreadableZnode
from tidelog.metadata import BrokerInfo

log = logging.getLogger(__name__)

_REFUSALS = 3
_AFTER_REFUSAL = 0.02
_AFTER_FAILURE = 1.0
_AFTER_SHORT = 0.1


class FailureDetector:
    """See the module."""

    def __init__(self, host: ControllerHost, registry: Registry, connected: asyncio.Event) -> None:
        self._host = host
        self._registry = registry
        self._connected = connected
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}  # broker, its epoch

    def watch(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Watch these brokers, and no others."""
        wanted = {
            (info.broker_id, info.epoch): info
            for info in brokers.values()
            if info.broker_id != self._host.broker_id
        }
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
        for key, info in wanted.items():
            if key not in self._tasks:
                self._tasks[key] = self._host.spawn(until_dead(info, self._died))

    async def _died(self, info: BrokerInfo) -> None:
        """Remove its registration, before its session ends."""
        self._tasks.pop((info.broker_id, info.epoch), None)
        try:
            found = await self._registry.registration(info.broker_id)
            if found is not None and found[0].epoch == info.epoch:
                log.info("broker %d has died: its port refuses connections", info.broker_id)
                await self._registry.forget(info.broker_id, found[1])
            await self._registry.forget_controller(info.broker_id)
        except Unreachable:  # still to be done when ZooKeeper is back
            await self._connected.wait()
            await self._died(info)
        except (KeeperError, UnreadableZnode):
            pass  # its session will end


async def until_dead(info: BrokerInfo, died: Callable[[BrokerInfo], Awaitable[None]]) -> None:
    """Until the broker has died, or this task is cancelled."""
    seen, refusals = False, 0
    while refusals < _REFUSALS:
        try:
            reader, writer = await asyncio.open_connection(info.host, info.port)
        except ConnectionRefusedError:
            if seen:
                refusals += 1
            await asyncio.sleep(_AFTER_REFUSAL if seen else _AFTER_FAILURE)
            continue
        except OSError:
            await asyncio.sleep(_AFTER_FAILURE)
            continue
        seen, refusals = True, 0
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            with contextlib.suppress(OSError):
                await reader.read(1)  # nothing ever comes: it returns when the connection ends
        finally:
            writer.close()
        if loop.time() - begun < _AFTER_SHORT:
            # Something accepts our connections and closes them: a proxy before a dead broker.
            await asyncio.sleep(_AFTER_SHORT)
    await died(info)
