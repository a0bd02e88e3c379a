"""What a request is told whose work takes too long, fails, or has a bug."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.timeouts import deadline, for_each, in_time
from tidelog.clock import FakeClock, SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.delete_topics import DeletableTopicResult

_LONG = 600_000  # ms


Work = Callable[[asyncio.Event], Coroutine[Any, Any, str]]  # hears when the answer is out


async def run(work: Work, timeout_ms: int = _LONG) -> tuple[str, BaseException | None]:
    """On a broker of a cluster: what is answered, and how the work ended."""
    answered = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    def spawn(settling: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(settling))
        return tasks[0]

    keeper = SimpleNamespace(problem=lambda: "")
    broker: Any = SimpleNamespace(member=True, spawn=spawn, keeper=keeper, clock=SystemClock())
    try:
        answer = await in_time(broker, work(answered), deadline(broker, timeout_ms))
    except ApiError as error:
        answer = error.code.name
    answered.set()
    await asyncio.wait(tasks)
    return answer, tasks[0].exception()


def fails(error: Exception, *, late: bool = False) -> Work:
    async def work(answered: asyncio.Event) -> str:
        if late:
            await answered.wait()
        raise error

    return work


async def test_done_or_refused() -> None:
    assert await run(lambda _: asyncio.sleep(0, "done")) == ("done", None)
    assert await run(fails(ApiError(ErrorCode.NOT_CONTROLLER))) == ("NOT_CONTROLLER", None)


async def test_a_bug_is_told_at_once() -> None:
    """And not as a request that may still be carried out."""
    with pytest.raises(ZeroDivisionError):
        await run(fails(ZeroDivisionError()))


async def test_what_takes_too_long_goes_on() -> None:
    refused, bug = ApiError(ErrorCode.NOT_CONTROLLER), ZeroDivisionError()
    assert await run(fails(refused, late=True), 1) == ("REQUEST_TIMED_OUT", None)
    assert await run(fails(bug, late=True), 1) == ("REQUEST_TIMED_OUT", bug), (
        "to be heard of in the log"
    )


async def test_what_has_not_begun_when_the_time_is_up_does_not_begin() -> None:
    begun: list[str] = []
    broker: Any = SimpleNamespace(member=True, clock=FakeClock())
    until = deadline(broker, 1_000)

    async def work(name: str) -> DeletableTopicResult:
        return await in_time(broker, late(name), until)

    async def late(name: str) -> DeletableTopicResult:
        begun.append(name)
        return DeletableTopicResult(name=name, error_code=0)

    broker.clock.advance(1_000)
    results = await for_each(map(str, range(2_500)), work, DeletableTopicResult)
    assert [row.name for row in results] == [str(number) for number in range(2_500)]
    assert {row.error_code for row in results} == {ErrorCode.REQUEST_TIMED_OUT}
    assert not begun
