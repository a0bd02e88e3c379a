"""InitProducerId: an id for an idempotent producer.

Versions: 2 flexible; 3 a producer may ask for a new epoch of its id; 4, 5 error codes.
Transactional ids come with transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.keeper import KeeperError
from tidelog.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(
    InitProducerIdRequest,
    versions=(0, 5),
    needs="IDEMPOTENT_WRITE CLUSTER or WRITE TOPIC or WRITE TRANSACTIONAL_ID",
)
async def init_producer_id(
    broker: Broker, message: InitProducerIdRequest, request: Request
) -> InitProducerIdResponse:
    """Give a producer an id."""
    if message.transactional_id is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    try:
        # Without a transaction a new id is as good as a new epoch, and simpler.
        producer_id = await broker.next_producer_id()
    except (ApiError, KeeperError, OSError) as error:
        # As Kafka does while it waits for a block of ids: every client asks again.  After
        # COORDINATOR_NOT_AVAILABLE Java would look for the coordinator of no transactional id.
        broker.server.complain("producer ids", f"no producer ids are left to give out: {error}")
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
    return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=0)
