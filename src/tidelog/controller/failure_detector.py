"""Notices at once that the process of another broker has died.

ZooKeeper takes a broker for dead when its session is over, many seconds later.  But when a
process dies, its connections end in the same moment, and its port refuses new ones: then there
is nothing to wait for.  A vigil holds a connection, and when that ends and the port refuses it
several times, says so.

Nothing else counts.  A machine that does not answer, a broken network, a process that is
stopped for a while: these look different (nothing comes, or the connection succeeds), and are
left to the session.  Nor does it matter if a vigil is wrong: a broker that finds itself
unregistered registers again, and everything it leads is fenced by epochs meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tidelog.metadata import BrokerInfo

_REFUSALS = 3
_AFTER_REFUSAL = 0.02
_AFTER_FAILURE = 1.0
_AFTER_SHORT = 0.1


async def watch_over(info: BrokerInfo, died: Callable[[BrokerInfo], Awaitable[None]]) -> None:
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
            # Something takes our connections and closes them: a proxy before a dead broker.
            await asyncio.sleep(_AFTER_SHORT)
    await died(info)
