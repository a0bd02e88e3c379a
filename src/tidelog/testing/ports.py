"""Ports that stay ours while servers on them stop and start again.

A port that the system gives out (``bind`` to 0) does not: while its server is down it may become
the local end of any connection, or of one to itself.  So ours lie outside the range that
the system gives out from, and no other process that asks here gets them while we live: byte N
of a file in the temporary folder is locked by the process that has port N.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import random
import tempfile
from pathlib import Path

from tidelog.ports import in_use

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_RANGE = (32_768, 60_999)  # Linux's
_LOWEST = 10_000  # below are other programs' well-known ones
_HIGHEST = 65_535

_taken: set[int] = set()


def free_port(row: int = 1) -> int:
    """A port of 127.0.0.1 for this process; the first of ``row`` in a row."""
    candidates = _candidates()
    begin = random.SystemRandom().randrange(len(candidates))
    for first in itertools.chain(candidates[begin:], candidates[:begin]):
        ports = range(first, first + row)
        if ports[-1] in candidates and all(_take(port) for port in ports):
            return first
    raise RuntimeError(f"there are no {row} free ports in a row from {candidates[0]} up")


def _candidates() -> range:
    try:
        low, high = map(int, _RANGE.read_text().split())
    except OSError:
        low, high = _DEFAULT_RANGE
    below, above = range(_LOWEST, low), range(high + 1, _HIGHEST + 1)
    largest = max(below, above, key=len)
    return largest if len(largest) >= 1000 else range(_LOWEST, _DEFAULT_RANGE[0])


def _take(port: int) -> bool:
    if port in _taken:
        return False
    try:
        fcntl.lockf(_lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:  # another process has it
        return False
    # Also when the port turns out to be in use: then no process should have it.
    _taken.add(port)
    return not in_use(port)


@functools.cache
def _lock_file() -> int:
    """Open to the end of the process: closing it would let go of every lock."""
    path = Path(tempfile.gettempdir()) / f"tidelog-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
