"""What blocks, away from the event loop, in a thread that nobody has to wait for at the end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


async def in_thread(work: Callable[[], None]) -> None:
    """Await work that blocks.  Whoever stops waiting leaves it behind: it does not keep the
    process alive, as a thread of an executor would."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error else done.set_result(None)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # nobody waits: the loop is closed
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="zookeeper", daemon=True).start()
    await done
