"""Threads and worker processes inline: the same functions, in the event loop's own thread.

    with inline_workers():
        ...                          # nothing is started by tidelog.workers

So a simulation depends on nothing but its seed, and file systems in memory are seen by workers too.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, TypeVar

from tidelog import workers
from tidelog.log import cleaner_worker
from tidelog.partition import offload_worker

T = TypeVar("T")

_SIZE = struct.Struct(">Q")


@contextmanager
def inline_workers() -> Iterator[None]:
    """Start no thread and no process, meanwhile."""
    before = workers.use(
        {
            "run": _run,
            "daemon": _refuse,
            "abandonable": _run,
            "pool": lambda threads, name: _Pool(),
            "start_process": _start_process,
        }
    )
    try:
        yield
    finally:
        workers.use(before)


async def _run(function: Callable[..., T], *args: Any) -> T:
    await asyncio.sleep(0)  # others have their turn, as with a thread
    return function(*args)


def _refuse(name: str, *_: Any) -> None:
    raise AssertionError(f"the thread {name} cannot run inline")


class _Pool(Executor):
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


async def _start_process(module: str, line_limit: int = 1 << 16) -> _Process:
    answer = {
        "tidelog.log.cleaner_worker": _clean,
        "tidelog.partition.offload_worker": _offload,
    }[module]
    return _Process(answer, line_limit)


class _Process:
    """What ``asyncio.subprocess.Process`` is to its owner, and its standard input too."""

    def __init__(self, answer: Callable[[bytearray], Iterator[bytes]], line_limit: int) -> None:
        self.stdin = self
        self.stdout = asyncio.StreamReader(limit=line_limit)
        self.returncode: int | None = None
        self._answer = answer
        self._input = bytearray()

    def write(self, data: bytes) -> None:
        if self.returncode is not None:
            raise BrokenPipeError("the process has ended")
        self._input += data
        for answer in self._answer(self._input):
            self.stdout.feed_data(answer)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        self._end(0)

    def kill(self) -> None:
        self._end(-9)

    def _end(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self.stdout.feed_eof()

    async def wait(self) -> int:
        assert self.returncode is not None
        return self.returncode


def _clean(data: bytearray) -> Iterator[bytes]:
    while b"\n" in data:
        line, _, rest = data.partition(b"\n")
        data[:] = rest
        for answer in cleaner_worker.answers(line.decode()):
            yield answer.encode()


def _offload(data: bytearray) -> Iterator[bytes]:
    while len(data) >= _SIZE.size:
        end = _SIZE.size + _SIZE.unpack_from(data)[0]
        if len(data) < end:
            return
        function, args, _ = pickle.loads(data[_SIZE.size : end])
        del data[:end]
        answer = pickle.dumps((offload_worker.work(function, args),))
        yield _SIZE.pack(len(answer)) + answer
