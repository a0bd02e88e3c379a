"""The loop around a watch: read with a watch, act on what was read, wait for the watch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.keeper.keeper import KeeperError, Unreachable, Watch

T = TypeVar("T")
RETRY_SECONDS = 0.2


async def keep_watching(
    read: Callable[[Watch], Awaitable[T]],
    act: Callable[[T], Awaitable[None]],
    connected: asyncio.Event,
) -> None:
    """As long as the broker runs; without a connection, what was read last holds."""
    while True:
        changed = asyncio.Event()
        try:
            await act(await read(changed.set))
        except Unreachable:
            await connected.wait()
            continue
        except KeeperError:
            await asyncio.sleep(RETRY_SECONDS)
            continue
        await changed.wait()
