"""FindCoordinator: which broker coordinates a group.

It is the leader of the partition of ``__consumer_offsets`` to which the group's id hashes.
The topic is made when the first client asks.

Transactions are not there yet: their coordinator is COORDINATOR_NOT_AVAILABLE.
Versions: 1 kind of coordinator, error message; 3 flexible; 4 many keys; 6 share groups, which
are not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Client, api
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


@api(FindCoordinatorRequest, versions=(0, 6))
async def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, client: Client
) -> FindCoordinatorResponse:
    """Say which broker coordinates a group."""
    if client.version >= _MANY:
        keys = request.coordinator_keys
        found = [await _find(broker, key, request.key_type, client) for key in keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(broker, request.key, request.key_type, client)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(broker: Broker, key: str, key_type: int, client: Client) -> Coordinator:
    try:
        if key_type == TRANSACTION:
            message = "there are no transactions yet: leave transactional.id unset"
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        if key_type != GROUP:
            message = f"there is no coordinator of kind {key_type}"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        node_id = await broker.groups.find(key)
        info = broker.metadata.brokers.get(node_id)
        if info is None:
            message = f"broker {node_id}, which coordinates {key!r}, is down"
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    except ApiError as error:
        late = error.code == ErrorCode.REQUEST_TIMED_OUT  # clients ask again for this one:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if late else error.code
        return _failure(key, code, error.message)
    except (KeeperError, OSError) as error:
        return _failure(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    host, port = broker.address_of(info, client.connection)
    return Coordinator(
        key=key, node_id=node_id, host=host, port=port, error_code=0, error_message=None
    )


def _failure(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message
    )
