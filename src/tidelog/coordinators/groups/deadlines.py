"""The deadlines of a group, as one: nothing is due before ``next``."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.clock import Clock


class Deadlines:
    """In milliseconds of the monotonic clock.

    A deadline that moves away is not taken back: the group is looked at too early, finds nothing to
    do, and says with ``reset`` what is left.
    """

    __slots__ = ("_clock", "next")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.next: int | None = None

    def now(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def add(self, deadline: int) -> None:
        if self.next is None or deadline < self.next:
            self.next = deadline

    def reset(self, deadlines: Iterable[int] = ()) -> None:
        self.next = min(deadlines, default=None)
