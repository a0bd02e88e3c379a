"""Delayed operations: woken by partitions, in order, once, or when their time is up."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

from support.waiting import comes_true

from tidelog.partition.purgatory import DelayedOperation, Watchers, wait_until

HOUR_MS = 3_600_000


class Watched:
    """A partition, as far as operations know it."""

    def __init__(self) -> None:
        self.watchers = Watchers()
        self.end = 0

    def append(self) -> None:
        self.end += 1
        self.watchers.wake_all()

    @property
    def is_watched(self) -> bool:
        return bool(self.watchers.committed or self.watchers.log_end)


def operation(
    partition: Watched, end: int, completed: list[int], timeout_ms: int = HOUR_MS
) -> DelayedOperation:
    waiting = DelayedOperation(lambda: partition.end >= end, lambda: completed.append(end))
    waiting.watch([partition], timeout_ms)
    return waiting


async def test_operations_complete_in_the_order_in_which_they_came() -> None:
    partition, completed = Watched(), list[int]()
    for end in (*range(1, 50), 99):
        operation(partition, end, completed)
    for _ in range(49):
        partition.append()
    assert completed == [], "an append is never interrupted"
    await asyncio.sleep(0)
    assert completed == list(range(1, 50))
    assert partition.is_watched


async def test_an_operation_is_tried_once_however_many_partitions_have_woken_it() -> None:
    tried = list[int]()

    def done() -> bool:
        tried.append(1)
        return False

    partitions = [Watched() for _ in range(10)]
    waiting = DelayedOperation(done, lambda: None)
    waiting.watch(partitions, HOUR_MS)
    for partition in partitions:
        partition.append()
    await asyncio.sleep(0)
    assert len(tried) == 1
    waiting.cancel()
    assert not any(partition.is_watched for partition in partitions)


async def test_time_is_up() -> None:
    partition, completed = Watched(), list[int]()
    operation(partition, 1, completed, timeout_ms=-1)
    await comes_true(lambda: completed == [1])
    partition.append()
    await asyncio.sleep(0)
    assert completed == [1], "once"
    assert not partition.is_watched


async def test_a_cancelled_operation_does_not_complete() -> None:
    partition, completed = Watched(), list[int]()
    waiting = operation(partition, 1, completed)
    partition.append()
    waiting.cancel()
    await asyncio.sleep(0)
    waiting.complete()
    assert completed == []
    assert not partition.is_watched


async def test_no_cycle_is_left() -> None:
    """A log's files are closed when its last reference goes, and not by the garbage collector."""

    class Owner:
        def __init__(self, partition: Watched) -> None:
            self.partition = partition
            self.operation = DelayedOperation(self.done, self.complete)
            self.operation.watch([partition], HOUR_MS)

        def done(self) -> bool:
            return self.partition.end > 0

        def complete(self) -> None: ...

    def dies(end: Callable[[Owner], None]) -> bool:
        partition = Watched()
        owner = Owner(partition)
        end(owner)
        alive = weakref.ref(partition)
        del owner, partition
        return alive() is None

    gc.disable()
    try:
        assert dies(lambda owner: owner.operation.cancel())
        assert dies(lambda owner: owner.operation.complete())
    finally:
        gc.enable()


async def test_a_coroutine_waits() -> None:
    partition = Watched()
    waiting = asyncio.create_task(wait_until(lambda: partition.end == 2, [partition], HOUR_MS))
    await comes_true(lambda: partition.is_watched)
    partition.append()
    await asyncio.sleep(0)
    assert not waiting.done()
    partition.append()
    await waiting
    gone = asyncio.create_task(wait_until(lambda: False, [partition], HOUR_MS))
    await comes_true(lambda: partition.is_watched)
    gone.cancel()
    await asyncio.wait([gone])
    assert not partition.is_watched
