"""ControlledShutdown: a broker that is about to stop wants its leaders moved to others.

Versions: 2 broker epoch; 3 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(ControlledShutdownRequest, versions=(2, 3), needs="CLUSTER_ACTION CLUSTER")
async def controlled_shutdown(
    broker: Broker, message: ControlledShutdownRequest, request: Request
) -> ControlledShutdownResponse:
    """Move the leaders of a broker that stops."""
    controller = broker.election.controller
    if controller is None or broker.standalone:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    left = await broker.election.decide(
        controller.controlled_shutdown(message.broker_id, message.broker_epoch)
    )
    return ControlledShutdownResponse(
        error_code=0,
        remaining_partitions=[
            RemainingPartition(topic_name=name, partition_index=index) for name, index in left
        ],
    )
