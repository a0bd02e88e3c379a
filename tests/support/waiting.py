"""Wait for a condition, never for a time.

One limit for all, just below that of a test: it only ends what would never come true, however
busy the machine is.
"""

import asyncio
import inspect
import time

LIMIT = 200


def until(condition, what="the condition", timeout=LIMIT):
    """Poll until ``condition()`` is true; returns its value."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true in {timeout} s")
        time.sleep(0.01)


async def comes_true(condition, what="the condition", timeout=LIMIT):
    """The same in a coroutine, where others go on meanwhile; the condition may be one too."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true in {timeout} s") from None
