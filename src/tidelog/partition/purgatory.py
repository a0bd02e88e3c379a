"""Delayed operations, which wait for partitions: Kafka's purgatory.

A Produce with acks=all, a Fetch with too few bytes, a DeleteRecords and the records of a
coordinator wait in the same way.  Each watches its partitions; when one of them changes the
operation is tried again, and at the latest it completes when its time is up.

A partition knows who watches it (:class:`Watchers`), so there is no table of keys as in Kafka.
What wakes an operation is in the middle of other work, an append for example, so the operation
is tried in the next turn of the event loop, once however many partitions have woken it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

log = logging.getLogger(__name__)


class Watchers:
    """The operations that watch one partition, in the order in which they came."""

    __slots__ = ("committed", "log_end")

    def __init__(self) -> None:
        # What readers see: high watermark, log start, in-sync replicas, leadership.
        self.committed: dict[DelayedOperation, None] = {}
        self.log_end: dict[DelayedOperation, None] = {}  # followers read up to the log end

    def wake(self) -> None:
        if self.committed:
            for operation in tuple(self.committed):
                operation.wake()

    def wake_log_end(self) -> None:
        if self.log_end:
            for operation in tuple(self.log_end):
                operation.wake()

    def wake_all(self) -> None:
        self.wake()
        self.wake_log_end()


class Watched(Protocol):
    """A partition."""

    @property
    def watchers(self) -> Watchers: ...


class DelayedOperation:
    """Waits until ``done()``, tried whenever a partition changes, or until its time is up; then
    ``complete()`` is called, once."""

    __slots__ = ("_complete", "_done", "_loop", "_scheduled", "_timer", "_watched")

    def __init__(self, done: Callable[[], bool], complete: Callable[[], None]) -> None:
        self._done = done
        self._complete = complete
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[dict[DelayedOperation, None]] = []

    def watch(
        self, partitions: Iterable[Watched], timeout_ms: int, *, log_end: bool = False
    ) -> None:
        """Begin to wait; with ``log_end`` for every append, committed or not."""
        self._loop = loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0, timeout_ms) / 1000, self.complete)
        for partition in partitions:
            watchers = partition.watchers
            watched = watchers.log_end if log_end else watchers.committed
            watched[self] = None
            self._watched.append(watched)

    def wake(self) -> None:
        """Try to complete, soon."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._try)

    def _try(self) -> None:
        self._scheduled = False
        if self._timer is None:
            return
        try:
            done = self._done()
        except Exception:
            log.exception("a delayed operation failed")  # a bug of ours: its client does not wait
            done = True
        if done:
            self.complete()

    def complete(self) -> None:
        """Complete as things are."""
        if self._timer is not None:
            complete = self._complete
            self.cancel()
            complete()

    def cancel(self) -> None:
        """Wait no longer, and do not complete."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            for watched in self._watched:
                watched.pop(self, None)
            # No cycle may be left: a log's files are closed when its last reference goes.
            del self._watched, self._done, self._complete


async def wait_until(
    done: Callable[[], bool], partitions: Iterable[Watched], timeout_ms: int
) -> None:
    """Wait as a delayed operation, in a coroutine."""
    completed = asyncio.get_running_loop().create_future()

    def complete() -> None:
        if not completed.done():  # it may be cancelled
            completed.set_result(None)

    operation = DelayedOperation(done, complete)
    operation.watch(partitions, timeout_ms)
    try:
        await completed
    finally:
        operation.cancel()
