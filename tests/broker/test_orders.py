"""Orders of the controller that are not for this broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog.broker.orders import Orders
from tidelog.errors import ErrorCode
from tidelog.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.wire.messages.stop_replica import StopReplicaRequest
from tidelog.wire.messages.update_metadata import UpdateMetadataRequest


@pytest.mark.parametrize(
    "kind",
    [LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest],
    ids=lambda k: k.__name__,
)
def test_an_order_for_an_earlier_life(kind: Any) -> None:
    """The controller has not noticed that we died, and tells us what we are to lead."""
    order = kind(controller_id=1, controller_epoch=1, broker_epoch=7, topic_states=[])

    async def go() -> Any:
        orders = Orders(None, None)  # type: ignore[arg-type]  # a refusal needs neither
        answer = asyncio.create_task(orders.apply(order))
        await asyncio.sleep(0)
        assert not answer.done(), "who has no epoch yet cannot know whom it is for"
        orders.registered(8)
        return await answer

    assert asyncio.run(go()).error_code == ErrorCode.STALE_BROKER_EPOCH
