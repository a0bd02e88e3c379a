"""Threads and worker processes: the only module of the broker that starts them.

There are four ways to leave the event loop:

    await workers.run(function, *args)      what blocks: files, a lookup of a host name
    await workers.abandonable(function)     what may block for ever; nothing waits for its thread
    workers.pool(threads, name)             work in the order it comes, or many pieces at once
    await workers.start_process(module)     what needs a processor, and an interpreter of its own

They are attributes of this module, and :func:`use` puts others in their place, for the whole
process: a simulation runs the same functions inline (``tests/support/inline_workers.py``).  So
callers import the module.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

run = asyncio.to_thread


def daemon(name: str, function: Callable[..., None], *args: Any) -> None:
    """A thread that the end of the process does not wait for."""
    threading.Thread(target=function, args=args, name=name, daemon=True).start()


async def abandonable(work: Callable[[], T]) -> T:
    """Await work that blocks.  A caller that is cancelled leaves it behind: it does not keep the
    process alive, as a thread of an executor would."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not done.done():
            set_outcome()

    def in_thread() -> None:
        try:
            outcome = partial(done.set_result, work())
        except BaseException as error:
            outcome = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
            loop.call_soon_threadsafe(settle, outcome)

    daemon("tidelog-abandonable", in_thread)
    return await done


def pool(threads: int, name: str) -> Executor:
    """Threads that work off what is submitted to them, in order."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"tidelog-{name}")


async def start_process(module: str, line_limit: int = 1 << 16) -> asyncio.subprocess.Process:
    """Run a module of ours in another process; it is talked to by its standard input and output."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=pipe, stdout=pipe, limit=line_limit
    )


OPERATIONS = ("run", "daemon", "abandonable", "pool", "start_process")


def use(operations: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Put other ways to start work in place of these; returns those that were in place."""
    unknown = operations.keys() - set(OPERATIONS)
    if unknown:
        raise ValueError(f"not an operation: {', '.join(sorted(unknown))}")
    before = {name: globals()[name] for name in operations}
    globals().update(operations)
    return before
