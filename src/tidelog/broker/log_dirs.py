"""Which log directories take writes: in a cluster, others lead what is in those that do not.

The first write that fails marks the directory.  From then on it is tried once a second with a file
of its own, which is gone at once; when that works the mark goes.  Either way the controller is
told: it asks this broker about its partitions again (LeaderAndIsr), and those in a marked directory
are answered with a storage error.

A mark takes no decision here: the broker goes on to read and to try to write, as it does alone.
Who leads is up to the controller, and if nobody else is in sync it stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

_PROBE_SECONDS = 1.0
_CHUNK = bytes(1 << 20)
_CHUNKS = 16  # with less room than that, the next few requests would fill the disk again


class LogDirs:
    """See the module."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories
        self.failed: set[str] = set()
        self._news = asyncio.Event()

    def write_failed(self, path: str) -> None:
        """Something in a log directory could not be written."""
        directory = self._directory_of(path)
        if directory is not None and directory not in self.failed:
            self.failed.add(directory)
            self._news.set()

    def takes_writes(self, path: str) -> bool:
        return not self.failed or self._directory_of(path) not in self.failed

    def _directory_of(self, path: str) -> str | None:
        for directory in self._directories:
            if path == directory or path.startswith(directory + os.sep):
                return directory
        return self._directories[0] if len(self._directories) == 1 else None

    async def watch(self, tell: Callable[[], Awaitable[None]]) -> None:
        """Tell of each change, as long as the broker runs."""
        while True:
            if not self.failed:
                await self._news.wait()
            if self._news.is_set():
                self._news.clear()
                await tell()
            await asyncio.sleep(_PROBE_SECONDS)
            await self._try_again()

    async def _try_again(self) -> None:
        for directory in list(self.failed):
            try:
                await asyncio.to_thread(_probe, directory)
            except OSError as error:
                log.debug("%s still takes no writes: %s", directory, error)
                continue
            log.warning("%s takes writes again", directory)
            self.failed.discard(directory)
            self._news.set()


def _probe(directory: str) -> None:
    """Write what has no name, so that nothing is left however this ends."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(_CHUNKS):
            left = memoryview(_CHUNK)
            while left:
                left = left[file.write(left) :]
        os.fsync(file.fileno())
