"""UpdateMetadata: the controller says what exists and who leads, for clients to be told.

Versions: 7 topic ids; 8 a type (2: this is all there is).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(UpdateMetadataRequest, versions=(7, 8), needs="CLUSTER_ACTION CLUSTER")
async def update_metadata(
    broker: Broker, message: UpdateMetadataRequest, request: Request
) -> UpdateMetadataResponse:
    """Learn of brokers, topics and leaders from the controller."""
    return await broker.controller_requests.update_metadata(message)
