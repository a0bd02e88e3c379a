"""Decisions within the time that a request gives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.coordination.keeper import KeeperError
from tidelog.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

T = TypeVar("T")
R = TypeVar("R")

_ROWS_AT_A_TIME = 1_000


async def rows_in_time(
    broker: Broker,
    rows: Iterable[R],
    work: Callable[[R, int], Coroutine[Any, Any, T]],
    timeout_ms: int,
) -> list[T]:
    """Do ``work`` for every row of a request, with what is left of the request's time.

    A request of a few kilobytes may name thousands of topics, and each takes memory while it
    waits for the controller; so it is a limited number at a time.
    """
    end = broker.clock.monotonic() + timeout_ms / 1000
    left, rest, done = timeout_ms, iter(rows), list[T]()
    while part := list(islice(rest, _ROWS_AT_A_TIME)):
        done += await asyncio.gather(*(work(row, left) for row in part))
        if timeout_ms > 0:
            left = max(1, int((end - broker.clock.monotonic()) * 1000))
    return done


async def in_time(broker: Broker, work: Coroutine[Any, Any, T], timeout_ms: int) -> T:
    """Await a decision of the controller; REQUEST_TIMED_OUT when the request's time is up.

    Then it goes on, as in Kafka: others may wait for the same, and half of it may be written.
    Without ``timeout_ms`` (zero or less), and with one broker, there is no limit.
    """
    if broker.member is None or timeout_ms <= 0:
        return await work
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    task = broker.spawn(_settle(outcome, work))
    task.add_done_callback(lambda _: work.close())  # if we stop before it has begun
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await outcome
    except TimeoutError:
        problem = broker.keeper.problem()
        if not problem:
            problem = (
                f"not done within {timeout_ms} ms, and may still be: look before you repeat it"
            )
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, problem) from None


async def _settle(outcome: asyncio.Future[T], work: Coroutine[Any, Any, T]) -> None:
    try:
        result = await work
    except Exception as error:
        if not outcome.done():
            outcome.set_exception(error)
        elif not isinstance(error, (ApiError, KeeperError, OSError)):
            raise  # a bug of ours, and nobody waits any more
    else:
        if not outcome.done():
            outcome.set_result(result)
