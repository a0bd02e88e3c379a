"""Decisions within the time that a request gives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.broker.failures import failed_row
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.keeper import KeeperError
from tidelog.wire.schema import Struct

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound=Struct)

_ROWS_AT_A_TIME = 1_000


def deadline(broker: Broker, timeout_ms: int) -> float | None:
    """When the time of a request is up; never without ``timeout_ms`` (zero or less)."""
    if timeout_ms <= 0:
        return None
    return broker.clock.monotonic() + timeout_ms / 1000


async def for_each(
    asked: Iterable[R],
    work: Callable[[R], Coroutine[Any, Any, S]],
    row: type[S],
    at_a_time: int = _ROWS_AT_A_TIME,
) -> list[S]:
    """The rows of an answer: do ``work`` for each row of the request, a limited number at a time.

    A request of a few kilobytes may name thousands of topics, and each takes memory while it
    waits for the controller.  An error is this row's only.
    """

    async def answer(one: R) -> S:
        try:
            return await work(one)
        except Exception as error:
            return failed_row(row, one, error)

    rest, done = iter(asked), list[S]()
    while batch := list(islice(rest, at_a_time)):
        done += await asyncio.gather(*map(answer, batch))
    return done


async def in_time(broker: Broker, work: Coroutine[Any, Any, T], until: float | None) -> T:
    """Await a decision of the controller; REQUEST_TIMED_OUT when the request's time is up.

    What has begun then goes on, as in Kafka: others may wait for the same, and half of it may be
    written.
    """
    if until is None:
        return await work
    left = until - broker.clock.monotonic()
    if left <= 0:
        work.close()
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "no time was left to begin with it")
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    task = broker.spawn(_settle(outcome, work))
    task.add_done_callback(lambda _: work.close())  # if we stop before it has begun
    try:
        async with asyncio.timeout(left):
            return await outcome
    except TimeoutError:
        problem = broker.keeper.problem()
        if not problem:
            problem = "not done within timeout_ms, and may still be: look before you repeat it"
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, problem) from None
    finally:
        del outcome  # its exception refers to this frame: thousands of them would wait for the gc


async def _settle(outcome: asyncio.Future[T], work: Coroutine[Any, Any, T]) -> None:
    try:
        result = await work
    except Exception as error:
        if not outcome.done():
            outcome.set_exception(error)
        elif not isinstance(error, (ApiError, KeeperError, OSError)):
            raise  # a bug of ours, and no request waits for it any more
    else:
        if not outcome.done():
            outcome.set_result(result)
    finally:
        del outcome  # as above
