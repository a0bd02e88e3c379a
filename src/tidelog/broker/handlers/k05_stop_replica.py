"""StopReplica: the controller says which partitions this broker has no longer.

Versions: 3 the epoch of the leader, and for each partition whether its files go; 4 KRaft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(StopReplicaRequest, versions=(3, 4), needs="CLUSTER_ACTION CLUSTER")
async def stop_replica(
    broker: Broker, message: StopReplicaRequest, request: Request
) -> StopReplicaResponse:
    """Let go of partitions, as the controller says."""
    return await broker.controller_requests.stop_replica(message)
