"""Time, injected: the only module of the broker that imports ``time``.

There are two parts to it.  What time it is, a :class:`Clock` tells, which is handed to every object
that asks.  Waiting is the event loop's: asyncio's own sleeps, timeouts and timers are used
everywhere, and a simulation runs them in an event loop with virtual time
(``tests/support/virtual_time.py``), which jumps to the next timer when nothing is ready.  The
alternative, ``Clock.sleep`` and ``Clock.call_later`` in the fifty places that wait, would need the
same loop for what asyncio times itself (connects, ``asyncio.timeout``), one more object in each of
those places and one more call for each long poll; and one place forgotten would hang a simulation.

``monotonic`` and ``loop.time()`` are the same time, in both worlds.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the broker needs to know about time."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970, as in record timestamps."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for timeouts; the time of the event loop."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait, in a thread or process that has nothing else to do; never in the event loop."""
        ...


class SystemClock:
    """The real time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # twice for each request: without a call of ours

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """Time that moves only when a test says so."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)

    def advance(self, ms: int) -> None:
        self._now_ms += ms
