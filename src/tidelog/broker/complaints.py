"""Warnings about clients and disks, at most a few a second of each kind and in all.

A fuzzer or a full disk must not fill the log as well: what is held back is counted
and told with the next line.
"""

from __future__ import annotations

import logging

from tidelog.clock import Clock

_PER_SECOND = 5
_ALL_PER_SECOND = 20
_MAX_KINDS = 200


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
