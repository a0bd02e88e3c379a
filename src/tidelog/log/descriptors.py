"""File descriptors: connections leave a reserve to the logs, and a want of them is named.

Every connection takes one, and so does the active segment of every partition and every older
segment that is read.  Without a reserve a flood of connections would make the next segment roll
fail, which looks like a failing disk.
"""

from __future__ import annotations

import errno
import resource

_LARGEST_RESERVE = 1024
_SMALLEST_RESERVE = 16


def limit() -> int:
    """How many this process may have.  Asked for each time: it may be changed (prlimit)."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def may_connect(descriptor: int, connections: int) -> bool:
    """May a new connection keep its descriptor, beside so many other connections?

    The system gives out the lowest number that is free: as many are in use as the number says.
    Where partitions alone have used them up, some connections are let in all the same.
    """
    most = limit()
    reserve = min(_LARGEST_RESERVE, max(_SMALLEST_RESERVE, most // 8))
    return descriptor < most - reserve or connections < reserve // 4


def exhausted(error: OSError) -> bool:
    """Is it only for want of descriptors that something has failed?"""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def reason(error: OSError) -> str:
    """Why something has failed, in words."""
    if error.errno == errno.EMFILE:
        return f"out of file descriptors: the limit is {limit()} (ulimit -n)"
    if error.errno == errno.ENFILE:
        return "the system is out of file descriptors (sysctl fs.file-max)"
    return error.strerror or str(error)
