"""Callbacks from the JVM in a process with many open files.

py4j waits for the JVM's calls (``foreachBatch``, listeners of streams) with ``select()``, which
takes no descriptor above 1023.  In a process that has more files open than that, its thread dies
and the call waits for ever.  ``poll()`` has no such limit; PySpark itself uses it elsewhere.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any


class Polling:
    """As much of the module ``select`` as py4j's callback server uses."""

    @staticmethod
    def select(
        readers: Sequence[Any],
        writers: Sequence[Any],
        errors: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Those of the readers that can be read, or whose other side is gone."""
        assert not writers and not errors
        poll = select.poll()
        by_descriptor = {reader.fileno(): reader for reader in readers}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        found = poll.poll(None if timeout is None else round(timeout * 1000))
        return [by_descriptor[descriptor] for descriptor, _ in found], [], []


def poll_in_py4j() -> None:
    """From now on py4j waits with ``poll()``."""
    import py4j.java_gateway

    if getattr(py4j.java_gateway, "select", None) is select:
        py4j.java_gateway.select = Polling
