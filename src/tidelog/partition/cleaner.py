"""Compaction, as the broker sees it: it chooses a log, has it cleaned, and swaps files.

The work itself is done by other processes (``log/cleaner_worker.py``), as many at a time as
``log.cleaner.threads`` says, started when there is some and gone when there is none: neither
their memory nor the interpreter's lock is the broker's.  What is left for the broker are a
few renames for each group of segments.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from tidelog import workers
from tidelog.clock import Clock
from tidelog.log.cleaner import Cleaned, CleaningJob, Finished
from tidelog.log.cleaner_jobs import Limits, Round, assess_log
from tidelog.log.compaction import Cleanable
from tidelog.partition.partition import Partition
from tidelog.partition.replicas import Replicas
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
        self._lanes: set[int] = set()  # those at work, by number
        self._busy: set[Partition] = set()
        self._rest: dict[Partition, float] = {}  # failed: not before this time

    async def run(self) -> None:
        """Look for work again and again, and do what there is."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._backoff)
                now = self._clock.monotonic()
                self._rest = {p: until for p, until in self._rest.items() if until > now}
                for lane in range(self._settings_of()["log.cleaner.threads"]):
                    if lane not in self._lanes:
                        self._lanes.add(lane)
                        tasks.create_task(self._clean_all(lane))

    @property
    def _backoff(self) -> float:
        seconds: float = self._settings_of()["log.cleaner.backoff.ms"] / 1000
        return seconds

    async def _clean_all(self, lane: int) -> None:
        """One log after the other, in one process, until none is left."""
        worker = _Worker()
        try:
            while (chosen := self._choose()) is not None:
                partition, state = chosen
                self._busy.add(partition)
                try:
                    if not await self._clean(worker, partition, state):
                        self._rest[partition] = self._clock.monotonic() + self._backoff
                finally:
                    self._busy.discard(partition)
            await worker.end()
        finally:
            self._lanes.discard(lane)
            await worker.kill()

    def _choose(self) -> tuple[Partition, Cleanable] | None:
        """The log that needs it most: those that are overdue first, then the dirtiest."""
        now_ms = self._clock.now_ms()
        best: tuple[tuple[bool, float], Partition, Cleanable] | None = None
        for partition in self._replicas.partitions.values():
            config = partition.log.config
            if "compact" not in config.cleanup_policy:
                continue
            if partition in self._busy or partition in self._rest:
                continue
            if partition.log.uncleanable or len(partition.log.segments) == 1:
                continue
            try:
                state = assess_log(partition.log, now_ms)
            except OSError as error:
                self._rest[partition] = self._clock.monotonic() + self._backoff
                self._replicas.storage_failed(partition.log.directory, error)
                continue
            rank = (state.overdue, state.dirty_ratio)
            if state.due(config) and (best is None or rank > best[0]):
                best = rank, partition, state
        return best and best[1:]

    # -- one log ----------------------------------------------------------------

    async def _clean(self, worker: _Worker, partition: Partition, state: Cleanable) -> bool:
        """Clean one log; False if it did not come to an end."""
        work = Round(partition.log, state, self._clock.now_ms(), self._limits())
        started = self._clock.monotonic()
        sizes = [0, 0]  # of its segments, before and after
        result = None
        try:
            result = await self._work(worker, partition, work, sizes)
        except (WorkerLost, OSError) as error:
            if not partition.deleted:
                log.warning("%s: not compacted: %s", partition.log.directory, error)
        except Exception:
            log.exception("%s: not compacted: a bug of ours", partition.log.directory)
        if result is None:
            await worker.kill()  # it may be at work on the rest
            partition.log.abandon_swap()
            work.abandon()
            return False
        work.finish(result)  # the next checkpoint has it
        log.info(
            "%s-%d: compacted to offset %d in %.1f s: %d bytes became %d, %d of %d records stay%s",
            partition.topic,
            partition.index,
            result.end_offset,
            self._clock.monotonic() - started,
            *sizes,
            result.records_kept,
            result.records,
            f", {result.keyless} without a key went" if result.keyless else "",
        )
        return True

    def _limits(self) -> Limits:
        """The share of one process."""
        settings = self._settings_of()
        count = max(1, settings["log.cleaner.threads"])
        return Limits(
            settings["log.cleaner.dedupe.buffer.size"] // count,
            settings["log.cleaner.io.buffer.load.factor"],
            settings["log.cleaner.io.buffer.size"],
            settings["log.cleaner.io.max.bytes.per.second"] / count,
        )

    async def _work(
        self, worker: _Worker, partition: Partition, work: Round, sizes: list[int]
    ) -> Finished | None:
        """Have it cleaned; None if it did not come to an end."""
        await worker.send(work.job)
        while True:
            answer = await worker.answer()
            if partition.deleted:
                return None
            if "finished" in answer:
                await self._replicas.flushes.in_thread(work.sync)
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
            sizes[0] += group.bytes_before
            sizes[1] += group.bytes_after
            if group.changed and not await self._swap(partition, work, group):
                return None

    async def _swap(self, partition: Partition, work: Round, group: Cleaned) -> bool:
        """Put a group into place; False if the log has changed under it."""
        swap = work.swap(group)
        if swap is None:
            return False
        swap.begin()
        await self._replicas.flushes.in_thread(swap.sync)
        if partition.deleted:
            return False
        files = swap.finish()
        if files is None:
            return False
        self._replicas.remove_later(partition, files)
        return True


class _Worker:
    """A process that compacts; it is started with its first job."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def send(self, job: CleaningJob) -> None:
        """Give it a job.  Raises WorkerLost, here and below, if it is gone."""
        process = await self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
            await process.stdin.drain()
        except ConnectionError as error:
            raise WorkerLost("its process has ended") from error

    async def answer(self) -> dict[str, Any]:
        """Its next message about the job."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise WorkerLost(f"its process has ended with code {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await workers.start_process("tidelog.log.cleaner_worker", _LINE_LIMIT)
        return self._process

    async def end(self) -> None:
        """There is no more work."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await process.wait()

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
