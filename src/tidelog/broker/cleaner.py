"""Compaction, as the broker sees it: it chooses a log, has it cleaned, and swaps files.

The work itself is done by another process (``log/cleaner_worker.py``), started when there
is some and gone when there is none: neither its memory nor the interpreter's lock is the
broker's.  What is left for the broker are a few renames for each group of segments.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas
from tidelog.clock import Clock
from tidelog.log.cleaner import Cleaned, Finished
from tidelog.log.cleaner_jobs import Limits, Round, assess_log
from tidelog.log.compaction import Cleanable
from tidelog.settings import Settings

_LINE_LIMIT = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class WorkerLost(Exception):
    """The process that compacts has ended by itself."""


class LogCleaner:
    """See the module."""

    def __init__(
        self, replicas: Replicas, settings_of: Callable[[], Settings], clock: Clock
    ) -> None:
        self._replicas = replicas
        self._settings_of = settings_of
        self._clock = clock
        self._worker: asyncio.subprocess.Process | None = None
        self._bytes_before = self._bytes_after = 0  # of the log at hand
        self._rest: set[Partition] = set()  # failed in this turn: not again before the next

    async def run(self) -> None:
        """Look for work again and again, and do what there is."""
        try:
            while True:
                await asyncio.sleep(self._settings_of()["log.cleaner.backoff.ms"] / 1000)
                self._rest.clear()
                while (chosen := self._choose()) is not None:
                    await self._clean(*chosen)
                await self._end_worker()
        finally:
            await self._kill_worker()

    def _choose(self) -> tuple[Partition, Cleanable] | None:
        """The log that needs it most: those that are overdue first, then the dirtiest."""
        now_ms = self._clock.now_ms()
        best: tuple[tuple[bool, float], Partition, Cleanable] | None = None
        for partition in self._replicas.partitions.values():
            config = partition.log.config
            if "compact" not in config.cleanup_policy or partition in self._rest:
                continue
            if partition.log.uncleanable or len(partition.log.segments) == 1:
                continue
            try:
                found = assess_log(partition.log, now_ms)
            except OSError as error:
                self._rest.add(partition)
                self._replicas.storage_failed(partition.log.directory, error)
                continue
            rank = (found.overdue, found.dirty_ratio)
            if found.due(config) and (best is None or rank > best[0]):
                best = rank, partition, found
        return best and best[1:]

    # -- one log ----------------------------------------------------------------

    async def _clean(self, partition: Partition, found: Cleanable) -> None:
        settings = self._settings_of()
        limits = Limits(
            settings["log.cleaner.dedupe.buffer.size"],
            settings["log.cleaner.io.buffer.load.factor"],
            settings["log.cleaner.io.buffer.size"],
            settings["log.cleaner.io.max.bytes.per.second"],
        )
        work = Round(partition.log, found, self._clock.now_ms(), limits)
        started = self._clock.monotonic()
        try:
            result = await self._work(partition, work)
        except (WorkerLost, OSError) as error:
            result = None
            if not partition.deleted:
                log.warning("%s: not compacted: %s", partition.log.directory, error)
        if result is None:
            self._rest.add(partition)
            await self._kill_worker()  # it may be at work on the rest
            partition.log.abandon_swap()
            work.abandon()
            return
        work.finish(result)
        await self._replicas.checkpoint()  # else a crash would have it cleaned again
        log.info(
            "%s-%d: compacted to offset %d in %.1f s: %d bytes became %d, %d of %d records stay%s",
            partition.topic,
            partition.index,
            result.end_offset,
            self._clock.monotonic() - started,
            self._bytes_before,
            self._bytes_after,
            result.records_kept,
            result.records,
            f", {result.keyless} without a key went" if result.keyless else "",
        )

    async def _work(self, partition: Partition, work: Round) -> Finished | None:
        """Have it cleaned; None if it did not come to an end."""
        self._bytes_before = self._bytes_after = 0
        worker = await self._start_worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(work.job.to_json()).encode() + b"\n")
            await worker.stdin.drain()
        except ConnectionError as error:
            raise WorkerLost("its process has ended") from error
        while line := await worker.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            if partition.deleted:
                return None
            if "finished" in answer:
                return Finished(**answer["finished"])
            if "corrupt" in answer:
                partition.log.uncleanable = answer["corrupt"]
                log.error(
                    "%s: it cannot be compacted and will not be tried again before a restart: %s",
                    partition.log.directory,
                    answer["corrupt"],
                )
                return None
            if "failed" in answer:
                raise OSError(answer["failed"])
            group = Cleaned(**answer["cleaned"])
            self._bytes_before += group.bytes_before
            self._bytes_after += group.bytes_after
            if group.changed and not await self._swap(partition, work, group):
                return None
        raise WorkerLost(f"its process has ended with code {await worker.wait()}")

    async def _swap(self, partition: Partition, work: Round, group: Cleaned) -> bool:
        """Put a group into place; False if the log has changed under it."""
        swap = work.swap(group)
        if swap is None:
            return False
        swap.begin()
        await self._replicas.in_flush_thread(swap.sync)
        if partition.deleted:
            return False
        files = swap.finish()
        if files is None:
            return False
        self._replicas.remove_later(partition, files)
        return True

    # -- the process ------------------------------------------------------------

    async def _start_worker(self) -> asyncio.subprocess.Process:
        if self._worker is None or self._worker.returncode is not None:
            self._worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tidelog.log.cleaner_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
            )
        return self._worker

    async def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and worker.stdin is not None:
            worker.stdin.close()
            await worker.wait()

    async def _kill_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
