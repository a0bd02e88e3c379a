"""What blocks, away from the event loop, in a thread that nobody has to wait for at the end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Await work that blocks.  Whoever stops waiting leaves it behind: it does not keep the
    process alive, as a thread of an executor would."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not done.done():
            set_outcome()

    def run() -> None:
        try:
            outcome = partial(done.set_result, work())
        except BaseException as error:
            outcome = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # nobody waits: the loop is closed
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="zookeeper", daemon=True).start()
    return await done
