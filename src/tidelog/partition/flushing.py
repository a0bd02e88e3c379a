"""The flushes of all logs, in one thread: at once, after a while, and one at a time for each log.

A producer waits for a flush only if ``flush.messages`` asks for it.  Others are begun by a timer
and carried out in a thread of their own, which waits for nothing but flushes: removing a large
log takes seconds.  A flush that fails is tried again until it works.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Future

from tidelog import workers
from tidelog.log.flush import Flush
from tidelog.partition.partition import Partition

_RETRY_FLUSH_MS = 1000

log = logging.getLogger(__name__)


class Flushes:
    """See the module."""

    def __init__(self, write_failed: Callable[[str, OSError], None]) -> None:
        self._write_failed = write_failed
        self._thread = workers.pool(1, "flush")
        # Flushes to come (None: when the one in flight has ended), and those in flight.
        self._waiting: dict[Partition, asyncio.TimerHandle | None] = {}
        self._syncing: dict[Partition, tuple[Flush, Future[None]]] = {}
        self._held: set[Partition] = set()  # no flush of them begins

    def now(self, partition: Partition) -> None:
        """Flush before the producer is answered (flush.messages is reached)."""
        timer = self._waiting.pop(partition, None)  # this one does the work of that to come
        if timer:
            timer.cancel()
        if partition in self._syncing:  # a log has one flush in flight, and this cannot wait
            flush, future = self._syncing[partition]
            if future.cancel():
                del self._syncing[partition]
                partition.log.cancel_flush(flush)
            else:
                self._settle(partition)
        try:
            partition.log.flush()
        except BaseException:
            self.later(partition, _RETRY_FLUSH_MS)
            raise
        partition.flushed()

    def later(self, partition: Partition, delay_ms: int) -> None:
        """Flush once, after a while; more records until then share the flush."""
        if partition in self._waiting and delay_ms > 0:
            return
        loop = asyncio.get_running_loop()
        timer = self._waiting.get(partition)
        if timer:
            timer.cancel()
        self._waiting[partition] = loop.call_later(delay_ms / 1000, self._begin, partition)

    def _begin(self, partition: Partition) -> None:
        self._waiting.pop(partition, None)
        if partition.deleted:
            return
        if partition in self._syncing or partition in self._held:
            self._waiting[partition] = None  # as soon as that is over
            return
        try:
            flush = partition.log.begin_flush()
        except OSError as error:
            self._failed(partition, error)
            return
        loop = asyncio.get_running_loop()
        future = self._thread.submit(flush.carry_out)
        self._syncing[partition] = flush, future
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._end, partition, done))

    def _end(self, partition: Partition, done: Future[None]) -> None:
        if partition not in self._syncing or self._syncing[partition][1] is not done:
            return  # another flush has not waited for this one to be settled
        self._settle(partition)
        if partition in self._waiting and self._waiting[partition] is None:
            self._begin(partition)

    async def hold(self, partition: Partition) -> None:
        """Begin no flush until :meth:`release`; at the end of this none is in flight."""
        self._held.add(partition)
        if partition not in self._syncing:
            return
        flush, future = self._syncing[partition]
        if future.cancel():  # it was waiting for those of other partitions
            del self._syncing[partition]
            partition.log.cancel_flush(flush)
            self._waiting.setdefault(partition, None)
            return
        ended = asyncio.wrap_future(future)
        await asyncio.wait([ended])
        ended.exception()  # that is for _settle
        if partition in self._syncing:
            self._settle(partition)

    def release(self, partition: Partition) -> None:
        self._held.discard(partition)
        if partition in self._waiting and self._waiting[partition] is None:
            self._begin(partition)

    def _settle(self, partition: Partition) -> None:
        """Note how the flush in flight has ended; waits for it if it has not."""
        flush, future = self._syncing.pop(partition)
        error = future.exception()
        partition.log.end_flush(flush, error)
        if error is None:
            partition.flushed()
            if partition.log.flush_failed and not partition.deleted:
                self.later(partition, _RETRY_FLUSH_MS)  # it was cut meanwhile
        elif not partition.deleted:
            if not isinstance(error, OSError):
                log.error("%s: flush failed", partition.log.directory, exc_info=error)
                error = OSError(errno.EINVAL, str(error))  # ours, not the disk's
            self._failed(partition, error)

    def _failed(self, partition: Partition, error: OSError) -> None:
        self._write_failed(partition.log.directory, error)
        self.later(partition, _RETRY_FLUSH_MS)

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Have something synced."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def forget(self, partition: Partition) -> None:
        """The partition is served no longer."""
        timer = self._waiting.pop(partition, None)
        if timer:
            timer.cancel()

    def close(self) -> None:
        """Begin no flush any more, and wait for those in flight."""
        for timer in self._waiting.values():
            if timer:
                timer.cancel()
        self._thread.shutdown(wait=True)
        for partition, (flush, future) in self._syncing.items():
            partition.log.end_flush(flush, future.exception())
        self._syncing.clear()
