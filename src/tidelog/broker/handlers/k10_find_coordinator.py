"""FindCoordinator: which broker coordinates a group.

It is the leader of the partition of ``__consumer_offsets`` to which the group's id hashes.
The topic is made when the first client asks.

Transactions are not there yet: their coordinator is COORDINATOR_NOT_AVAILABLE.
Versions: 1 kind of coordinator, error message; 3 flexible; 4 many keys; 6 share groups, which
are not served.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import for_each
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.keeper import KeeperError
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

GROUP, TRANSACTION = 0, 1
_MANY = 4


@api(
    FindCoordinatorRequest,
    versions=(0, 6),
    needs="DESCRIBE GROUP or DESCRIBE TRANSACTIONAL_ID",
)
async def find_coordinator(
    broker: Broker, message: FindCoordinatorRequest, request: Request
) -> FindCoordinatorResponse:
    """Say which broker coordinates a group."""
    many = request.version >= _MANY
    keys = message.coordinator_keys if many else [message.key]
    find = partial(_find, broker, message.key_type, request)
    found = await for_each(keys, find, Coordinator, at_a_time=1)
    if many:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(broker: Broker, key_type: int, request: Request, key: str) -> Coordinator:
    if key_type == TRANSACTION:
        text = "there are no transactions yet: leave transactional.id unset"
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    if key_type != GROUP:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of kind {key_type}")
    try:
        node_id = await broker.groups.find(key)
    except (ApiError, KeeperError, OSError) as error:
        if isinstance(error, ApiError) and error.code != ErrorCode.REQUEST_TIMED_OUT:
            raise
        # Clients ask again for this one.
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    info = broker.metadata.brokers.get(node_id)
    if info is None:
        text = f"broker {node_id}, which coordinates {key!r}, is down"
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    host, port = broker.address_of(info, request.connection)
    return Coordinator(
        key=key, node_id=node_id, host=host, port=port, error_code=0, error_message=None
    )
