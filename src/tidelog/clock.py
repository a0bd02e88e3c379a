"""Time, injected.  Nothing else in tidelog asks the operating system what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the broker needs to know about time."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970, as in record timestamps."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for timeouts."""
        ...


class SystemClock:
    """The real time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class FakeClock:
    """Time that moves only when a test says so."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def advance(self, ms: int) -> None:
        self._now_ms += ms
