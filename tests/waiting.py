"""Wait for a condition, never for a time."""

import time


def until(condition, what="the condition", timeout=100):
    """Poll until ``condition()`` is true; returns its value."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true in {timeout} s")
        time.sleep(0.01)
