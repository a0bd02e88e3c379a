"""LeaderAndIsr: the controller says which partitions this broker leads and follows.

Versions: 5 topic ids and a type (2: this is all there is); 6 recovery state; 7 KRaft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(LeaderAndIsrRequest, versions=(5, 7), needs="CLUSTER_ACTION CLUSTER")
async def leader_and_isr(
    broker: Broker, message: LeaderAndIsrRequest, request: Request
) -> LeaderAndIsrResponse:
    """Lead and follow partitions, as the controller says."""
    return await broker.controller_requests.leader_and_isr(message)
