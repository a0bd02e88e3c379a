"""Who comes first does the work of all who wait."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.controller.coalescing import Coalescing
from tidelog.keeper.keeper import KeeperError


class Work:
    """Doubles numbers; odd ones are refused, and everything that is with a 13."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.rounds: list[list[int]] = []
        self.ask = Coalescing(self.lock, self.double)

    async def double(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.rounds.append(list(numbers))
        if 13 in numbers:
            raise OSError("unlucky")
        await asyncio.sleep(0)
        return [ValueError(str(n)) if n % 2 else 2 * n for n in numbers]


async def test_all_that_wait_are_one_round() -> None:
    work = Work()
    first = asyncio.gather(*(work.ask(n) for n in range(5)), return_exceptions=True)
    answers = await first
    assert [a if isinstance(a, int) else type(a) for a in answers] == [
        0,
        ValueError,
        4,
        ValueError,
        8,
    ]
    assert work.rounds == [[0, 1, 2, 3, 4]]
    assert await work.ask(6) == 12
    assert work.rounds[1:] == [[6]]


async def test_who_comes_during_a_round_is_in_the_next() -> None:
    work = Work()
    async with work.lock:
        waiting = [asyncio.ensure_future(work.ask(n)) for n in (2, 4)]
        await asyncio.sleep(0)
    waiting.append(asyncio.ensure_future(work.ask(6)))
    assert await asyncio.gather(*waiting) == [4, 8, 12]
    assert [n for numbers in work.rounds for n in numbers] == [2, 4, 6]


async def test_a_failure_is_everybodys() -> None:
    work = Work()
    answers = await asyncio.gather(*(work.ask(n) for n in (2, 13)), return_exceptions=True)
    assert [type(a) for a in answers] == [OSError, OSError]
    assert await work.ask(2) == 4


@pytest.mark.parametrize("has_the_lock", [False, True])
async def test_the_first_is_cancelled(has_the_lock: bool) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, c: reported.append(c))
    work = Work()
    if not has_the_lock:
        await work.lock.acquire()
    first, other = (asyncio.ensure_future(work.ask(n)) for n in (2, 4))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(KeeperError):
        await other
    assert first.cancelled()
    if not has_the_lock:
        work.lock.release()
    assert await work.ask(8) == 16
    del first, other
    gc.collect()
    assert not reported, "an answer that nobody has looked at"
