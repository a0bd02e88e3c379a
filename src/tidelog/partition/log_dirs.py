"""Log directories and partitions that take no writes: in a cluster, other brokers lead them.

A write that fails because of the disk (no space, a quota, read-only, an I/O error) marks the whole
log directory; any other error marks the one partition, and its neighbours go on.  What the
controller learns moves leaders, so a mark stays until nothing there has failed for some seconds,
and longer each time that it comes back soon.  A directory must also take a file of 16 MiB, which is
gone at once; that is tried once a second.

The controller is notified of each change: it asks this broker about its partitions again
(LeaderAndIsr), and those that are marked are answered with a storage error.

A mark decides nothing here: the broker goes on to read and to try to write, as it does alone.
The controller decides who leads, and without another replica in sync it stays as it is.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Sequence

from tidelog import files, workers
from tidelog.clock import Clock
from tidelog.keeper.keeper import KeeperError
from tidelog.log.flush import RecordsLost

log = logging.getLogger(__name__)

_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_PROBE_SECONDS = 1.0
_QUIET_SECONDS = 6.0  # longer than until the next attempt: flushes 1 s, the controller 5 s
_MOST_QUIET_SECONDS = 60.0
_FORGET_SECONDS = 600.0  # a mark that comes back within this time is the same trouble
_CHUNK = bytes(1 << 20)
_CHUNKS = 16  # with less room than that, the next few requests would fill the disk again


class LogDirs:
    """See the module."""

    def __init__(self, directories: Sequence[str], clock: Clock) -> None:
        self._directories = directories
        self._clock = clock
        self.failed: set[str] = set()  # log directories, and directories of partitions
        # When something there failed last, and for how long nothing may before the mark goes.
        self._last: dict[str, tuple[float, float]] = {}
        self._changed = asyncio.Event()

    def write_failed(self, path: str, error: OSError) -> None:
        """Something could not be written: ``path`` is the directory of a partition, as a rule."""
        marked = self.place_of(path, error)
        if marked is None:
            return
        now = self._clock.monotonic()
        failed_at, quiet = self._last.get(marked, (0.0, 0.0))
        if marked not in self.failed:
            again = quiet > 0 and now - failed_at < _FORGET_SECONDS
            quiet = min(2 * quiet, _MOST_QUIET_SECONDS) if again else _QUIET_SECONDS
            self._forget(now)
            self.failed.add(marked)
            self._changed.set()
        self._last[marked] = now, quiet

    def _forget(self, now: float) -> None:
        for path, (failed_at, _) in list(self._last.items()):
            if path not in self.failed and now - failed_at >= _FORGET_SECONDS:
                del self._last[path]

    def takes_writes(self, path: str) -> bool:
        if not self.failed:
            return True
        return path not in self.failed and self.directory_of(path) not in self.failed

    def place_of(self, path: str, error: OSError) -> str | None:
        """What such an error is about: a log directory, or this path alone."""
        # Records that the kernel has dropped are an I/O error of the past, in one log.
        if error.errno in _OF_THE_DISK and not isinstance(error, RecordsLost):
            return self.directory_of(path)
        return path

    def directory_of(self, path: str) -> str | None:
        for directory in self._directories:
            if path == directory or path.startswith(directory + os.sep):
                return directory
        return self._directories[0] if len(self._directories) == 1 else None

    async def watch(self, notify: Callable[[], Awaitable[None]]) -> None:
        """Notify the controller of each change, as long as the broker runs."""
        while True:
            if not self.failed:
                await self._changed.wait()
            if self._changed.is_set():
                self._changed.clear()
                try:
                    await notify()
                except KeeperError as error:
                    self._changed.set()  # in a second, then
                    reason = type(error).__name__
                    log.warning(
                        "cannot notify the controller of log directories: %s (%s)", error, reason
                    )
            await asyncio.sleep(_PROBE_SECONDS)
            await self._try_again()

    async def _try_again(self) -> None:
        for path in sorted(self.failed):
            failed_at, quiet = before = self._last[path]
            if self._clock.monotonic() - failed_at < quiet:
                continue
            if path in self._directories:
                try:
                    await workers.run(_probe, path)
                except OSError as error:
                    log.debug("%s still takes no writes: %s", path, error)
                    continue
                if self._last[path] != before:
                    continue  # something else has failed there meanwhile
                log.warning("%s takes writes again", path)
            self.failed.discard(path)
            self._changed.set()


def _probe(directory: str) -> None:
    """Write what has no name, so that nothing is left however this ends."""
    fd = files.open_unnamed(directory)
    try:
        for _ in range(_CHUNKS):
            left = memoryview(_CHUNK)
            while left:
                left = left[files.write(fd, left) :]
        files.fsync(fd)
    finally:
        files.close(fd)
