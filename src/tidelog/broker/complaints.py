"""Warnings about clients and disks, at most a few a second of each kind.

A fuzzer or a full disk must not fill the log as well: what is held back is counted
and told with the next line.
"""

from __future__ import annotations

import logging

from tidelog.clock import Clock

_PER_SECOND = 5
_MAX_KINDS = 200


class Complaints:
    """A logger that does not repeat itself too often."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._seen: dict[str, tuple[int, int]] = {}  # kind -> (second, count)

    def warn(self, kind: str, message: str) -> None:
        second = int(self._clock.monotonic())
        if len(self._seen) > _MAX_KINDS:
            self._seen.clear()
        since, count = self._seen.get(kind, (second, 0))
        if since != second:
            if count > _PER_SECOND:
                self._log.warning("%d more like this: %s", count - _PER_SECOND, kind)
            since, count = second, 0
        self._seen[kind] = (since, count + 1)
        if count < _PER_SECOND:
            self._log.warning("%s", message)
