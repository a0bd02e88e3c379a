"""Coalescing: calls that come at about the same time are carried out together, as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tidelog.keeper.keeper import KeeperError

Q = TypeVar("Q")
A = TypeVar("A")


class Coalescing(Generic[Q, A]):
    """The first call waits for a lock; those that come meanwhile are carried out with it.

    So a thousand topics are a few transactions, though each is a call of its own.  ``work`` returns
    the answer to each in its place, with an exception where only that one has failed.
    """

    def __init__(
        self,
        lock: asyncio.Lock,
        work: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]],
    ) -> None:
        self._lock = lock
        self._work = work
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []

    async def __call__(self, question: Q) -> A:
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if len(self._waiting) == 1:
            await self._answer()
        try:
            return await future
        finally:
            del future  # its exception knows this frame: a circle, and a thousand fill the heap

    async def _answer(self) -> None:
        waiting = self._waiting
        try:
            await asyncio.sleep(0)  # the others of the same request come now
            async with self._lock:
                self._waiting = []
                answers = await self._ask(waiting)
        except BaseException:
            self._waiting = [] if self._waiting is waiting else self._waiting
            (_, own), *others = waiting
            own.cancel()  # its own call ends here, with the exception
            _settle(others, [KeeperError("interrupted; it may have happened")] * len(others))
            raise
        _settle(waiting, answers)

    async def _ask(self, waiting: Sequence[tuple[Q, object]]) -> Sequence[A | Exception]:
        try:
            return await self._work([question for question, _ in waiting])
        except Exception as error:
            return [error] * len(waiting)


def _settle(
    waiting: Sequence[tuple[object, asyncio.Future[A]]], answers: Sequence[A | Exception]
) -> None:
    for (_, future), answer in zip(waiting, answers, strict=True):
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
