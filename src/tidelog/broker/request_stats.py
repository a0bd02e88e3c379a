"""How many requests of an API were served, how long they took, and which errors they got.

Plain numbers: a request adds to them once, when it is answered, and metrics read them.
"""

from __future__ import annotations

from tidelog.clock import Clock


class ApiStats:
    """See the module."""

    __slots__ = ("_now", "count", "errors", "longest", "seconds")

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self.count = 0
        self.seconds = 0.0  # all together, from arrival to answer
        self.longest = 0.0
        self.errors: dict[int, int] = {}  # answers, by the code of the whole request

    def served(self, arrived: float) -> None:
        """A request that arrived then is answered now."""
        took = self._now() - arrived
        self.count += 1
        self.seconds += took
        if took > self.longest:  # noqa: PLR1730 (max costs a call for each request)
            self.longest = took

    def failed(self, code: int) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1
