"""Warnings about clients, at most a few a second of each kind and in all; and about disks.

A fuzzer or a full disk must not fill the log as well: what is held back is counted
and told with the next line.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tidelog.clock import Clock

_PER_SECOND = 5
_ALL_PER_SECOND = 20
_MAX_KINDS = 200

_FIRST_GAP_SECONDS = 5.0  # between two lines about the same place; twice as long each time
_MOST_GAP_SECONDS = 60.0
_FORGET_SECONDS = 600.0  # what fails again after this time is another trouble


class Complaints:
    """A logger that does not repeat itself too often."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._seen: dict[str, tuple[int, int]] = {}  # kind -> (second, count)
        self._second = 0
        self._told = 0  # lines in this second
        self._held_back = 0  # for want of lines, since the last one

    def warn(self, kind: str, message: str) -> None:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._told = second, 0
        if self._told >= _ALL_PER_SECOND:
            self._held_back += 1
            return
        if self._held_back:
            self._log.warning("%d more complaints were held back", self._held_back)
            self._held_back = 0
        if len(self._seen) > _MAX_KINDS:
            self._seen.clear()
        since, count = self._seen.get(kind, (second, 0))
        if since != second:
            if count > _PER_SECOND:
                self._log.warning("%d more like this: %s", count - _PER_SECOND, kind)
            since, count = second, 0
        self._seen[kind] = (since, count + 1)
        if count < _PER_SECOND:
            self._told += 1
            self._log.warning("%s", message)


@dataclass(slots=True)
class _Trouble:
    failed_at: float
    next_line: float
    gap: float = 0.0
    held_back: int = 0
    reasons: set[str] = field(default_factory=set)  # that were told
    paths: set[str] = field(default_factory=set)  # they have failed since, and not worked again


class DiskTroubles:
    """Says where something cannot be written and why: at once, then now and then, and when it is
    over.

    A place is a log directory, or one partition in it.  A writer there tries again many
    times a second, and when a disk is nearly full some of it works.
    """

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._complaints = Complaints(log, clock)  # there may be thousands of places
        self._known: dict[str, _Trouble] = {}
        self.failing: set[str] = set()  # places, as far as we have said so

    def failed(self, place: str, path: str, reason: str, effect: str = "") -> None:
        """Something in ``path``, which is in ``place``, could not be written.

        ``effect`` is what that means, if it is not the disk's fault.
        """
        now = self._clock.monotonic()
        trouble = self._known.get(place)
        if trouble is None or now - trouble.failed_at >= _FORGET_SECONDS:
            self._forget(now)
            trouble = self._known[place] = _Trouble(now, now)
        trouble.failed_at = now
        trouble.paths.add(path)
        if now < trouble.next_line and reason in trouble.reasons:
            trouble.held_back += 1
            return
        trouble.reasons.add(reason)
        message = f"{path}: cannot write: {reason}; reads go on, writes are refused"
        if effect:
            message = f"{path}: {reason}; {effect}"
        if trouble.held_back:
            message += f" ({trouble.held_back} more failures in {place} were not told)"
            trouble.held_back = 0
        trouble.gap = max(_FIRST_GAP_SECONDS, min(2 * trouble.gap, _MOST_GAP_SECONDS))
        trouble.next_line = now + trouble.gap
        self.failing.add(place)
        self._complaints.warn("disk", message)

    def _forget(self, now: float) -> None:
        for place, trouble in list(self._known.items()):
            if now - trouble.failed_at >= _FORGET_SECONDS:
                del self._known[place]
                self.failing.discard(place)

    def works(self, place: str, path: str) -> None:
        """Something in ``path`` was written."""
        if place not in self.failing or path not in self._known[place].paths:
            return
        self.failing.discard(place)
        self._known[place].paths.clear()
        self._log.warning("%s: writing works again", path)
