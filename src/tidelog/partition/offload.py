"""Work that is too much for the event loop, done by another process.

A few kilobytes from a client may decompress to millions of records.  To look through them in the
event loop, or in a thread that shares its interpreter's lock, would keep every other client
waiting.  So one process, ``offload_worker.py``, does such jobs one after the other; it is started
with the first and ends after a minute without one.

A job is given up after a few seconds of processor time (the worker sees to that).  At first it gets
a fraction of a second; if that is not enough it waits once more, and only one such job is in the
queue at a time.  So a short job waits for one long job at the most, however many clients send them.
A worker that does not answer at all is killed, and the next job starts another.

Work that may need it is a generator: it yields a :class:`Job` where there is too much, and is sent
the result.  As long as there is no such job it runs to its end at once.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import struct
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from tidelog import workers
from tidelog.errors import ApiError, ErrorCode

_IDLE_SECONDS = 60.0
_SECONDS = 20.0  # below the 30 s after which clients no longer wait
_SHORT_CPU_SECONDS = 0.25
_CPU_SECONDS = 5.0  # 16 MiB of the smallest records take half of that
_SIZE = struct.Struct(">Q")
_MOST_KEPT = 64 * 1024 * 1024  # bytes of requests of clients that are gone

log = logging.getLogger(__name__)

R = TypeVar("R")


class Job(NamedTuple):
    """A function of a module, so that the other process knows it too, and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


Work = Generator[Job, Any, R]


class Offload:
    """See the module."""

    def __init__(self) -> None:
        self.seconds = _SECONDS  # for the answer to a job
        self.cpu_seconds = _CPU_SECONDS  # for the job itself
        self.short_cpu_seconds = _SHORT_CPU_SECONDS  # for its first attempt
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._long_turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._kept = 0

    def keep(self, task: asyncio.Task[None], size: int) -> bool:
        """May a request of so many bytes go on although its client is gone?"""
        if self._kept + size > _MOST_KEPT:
            return False
        self._kept += size
        task.add_done_callback(lambda _: self._forget(size))
        return True

    def _forget(self, size: int) -> None:
        self._kept -= size

    async def finish(self, work: Work[R], job: Job) -> R:
        """Go on with what has yielded a job, up to its end."""
        while True:
            try:
                try:
                    result = await self.run(job)
                except ApiError as error:
                    job = work.throw(error)
                else:
                    job = work.send(result)
            except StopIteration as done:
                value: R = done.value
                return value

    async def run(self, job: Job) -> Any:
        """The result of a job.  Raises what the function raises, as an ApiError."""
        answers = await self._attempt(job, self.short_cpu_seconds)
        if not answers:
            async with self._long_turn:
                answers = await self._attempt(job, self.cpu_seconds)
        if not answers:
            seconds = f"{self.cpu_seconds:g} s"
            message = f"it takes more than {seconds} to check the batch; send smaller batches"
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, message)
        answer = answers[0]
        if isinstance(answer, ApiError):
            try:
                raise answer
            finally:
                del answer, answers  # else it keeps alive itself, and what its traceback names
        return answer

    async def _attempt(self, job: Job, cpu_seconds: float) -> tuple[Any, ...]:
        """What the worker answers; empty if the job takes longer than that."""
        async with self._turn:
            try:
                async with asyncio.timeout(self.seconds):
                    return await self._ask(pickle.dumps((*job, cpu_seconds)))
            except TimeoutError as error:
                raise await self._lost(f"has not answered for {self.seconds:g} s") from error
            except (OSError, asyncio.IncompleteReadError) as error:
                raise await self._lost(f"is lost ({error})") from error
            except BaseException:
                await self.close()  # it is at work for a client that is gone
                raise

    async def _lost(self, reason: str) -> ApiError:
        """End the process; the next job starts another."""
        log.error("the process that checks large batches %s; it is replaced", reason)
        await self.close()
        message = f"the process that checks large batches {reason}; send the batch again"
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    async def _ask(self, question: bytes) -> tuple[Any, ...]:
        process = await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_SIZE.pack(len(question)))
        process.stdin.write(question)
        await process.stdin.drain()
        (size,) = _SIZE.unpack(await process.stdout.readexactly(_SIZE.size))
        answers: tuple[Any, ...] = pickle.loads(await process.stdout.readexactly(size))
        self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._end)
        return answers

    async def _start(self) -> asyncio.subprocess.Process:
        if self._idle is not None:
            self._idle.cancel()
        if self._process is None or self._process.returncode is not None:
            self._process = await workers.start_process("tidelog.partition.offload_worker")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    async def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
