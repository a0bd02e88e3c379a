"""An event loop with virtual time: it jumps to the next timer when there is nothing to do.

    result = run_virtual(scenario)       # hours of sleeps, timeouts and timers in milliseconds

``loop.time()`` is the virtual time, so everything of asyncio that waits does so in it, without a
change to the code that runs: ``sleep``, ``timeout``, ``wait_for``, ``call_later``.  Nothing runs in
threads: what is given to an executor runs inline, a moment later.  Sockets may be used if both
ends are in this loop.  A loop in which nothing can happen any more is an error, not a test that
hangs.

The order of what happens depends on nothing but the program: the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_MS = 1_700_000_000_000


class Deadlock(RuntimeError):
    """Every task waits, and there is no timer."""


class _Selector(selectors.DefaultSelector):
    """Never waits: if no socket is ready, the time that it would have waited has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise Deadlock("every task waits, and there is no timer")
        self.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Inline, but not before others had their turn, as with a thread."""
        done: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)

        self.call_soon(run)
        return done


class VirtualClock:
    """The clock of a broker in such a loop; ``skew_ms`` is how far its wall clock is ahead."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self._start_ms = START_MS + skew_ms

    def now_ms(self) -> int:
        return self._start_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"{seconds} s that would stop the event loop")


def run_virtual(scenario: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function, which is given a clock, to its end."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(scenario(VirtualClock(runner.get_loop())))
