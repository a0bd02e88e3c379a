"""Joining a cluster on a machine that is too slow for its session."""

from __future__ import annotations

import asyncio

from tidelog.coordination.keeper import ConnectionLost, SessionExpired
from tidelog.coordination.registry import patiently


def test_a_session_may_end_before_we_have_joined() -> None:
    troubles = [SessionExpired("/a"), ConnectionLost("/a")]

    async def read() -> str:
        if troubles:
            raise troubles.pop()
        return "value"

    assert asyncio.run(patiently(read)) == "value"
