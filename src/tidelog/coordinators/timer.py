"""The timer of a coordinator shard: one deadline for each key, one timer of the event loop."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable

from tidelog.clock import Clock

log = logging.getLogger(__name__)


class CoordinatorTimer:
    """Calls back with a key when its deadline has passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, str]] = []
        self._deadlines: dict[str, int] = {}  # key -> its deadline; others in the heap are stale
        self._timer: asyncio.TimerHandle | None = None
        self._expired: Callable[[str], None] | None = None

    def on_expired(self, callback: Callable[[str], None]) -> None:
        self._expired = callback

    def schedule(self, key: str, deadline: int | None) -> None:
        """Call back for ``key`` at this time of the monotonic clock, in ms; None: never."""
        if deadline is None or self._expired is None:
            self._deadlines.pop(key, None)
        elif self._deadlines.get(key) != deadline:
            self._deadlines[key] = deadline
            heapq.heappush(self._heap, (deadline, key))
            if self._heap[0] == (deadline, key):
                self._start()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap and self._expired is not None:
            # One ms later: the timer of the loop may be early by less.
            delay = self._heap[0][0] / 1000 - self._clock.monotonic() + 0.001
            self._timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = int(self._clock.monotonic() * 1000)
        due = []
        while self._heap and self._heap[0][0] <= now:
            deadline, key = heapq.heappop(self._heap)
            if self._deadlines.get(key) == deadline:
                del self._deadlines[key]
                due.append(key)
        for key in due:
            if self._expired is None:
                return  # closed meanwhile
            try:
                self._expired(key)
            except Exception:
                log.exception("the deadline of %r", key)
        if self._timer is None:
            self._start()

    def close(self) -> None:
        # No cycle may be left: a log's files are closed when its last reference goes.
        self._expired = None
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
