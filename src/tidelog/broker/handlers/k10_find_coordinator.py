"""FindCoordinator: which broker coordinates a group.

It is the leader of the partition of ``__consumer_offsets`` to which the group's id hashes.
The topic is made when the first client asks.

Transactions are not there yet: their coordinator is COORDINATOR_NOT_AVAILABLE.
Versions: 1 kind of coordinator, error message; 3 flexible; 4 many keys; 6 share groups, which
are not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
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
    broker: Broker, message: FindCoordinatorRequest, request: Request
) -> FindCoordinatorResponse:
    """Say which broker coordinates a group."""
    if request.version >= _MANY:
        keys = message.coordinator_keys
        found = [await _find(broker, key, message.key_type, request) for key in keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(broker, message.key, message.key_type, request)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(broker: Broker, key: str, key_type: int, request: Request) -> Coordinator:
    try:
        if key_type == TRANSACTION:
            text = "there are no transactions yet: leave transactional.id unset"
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        if key_type != GROUP:
            text = f"there is no coordinator of kind {key_type}"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        node_id = await broker.groups.find(key)
        info = broker.metadata.brokers.get(node_id)
        if info is None:
            text = f"broker {node_id}, which coordinates {key!r}, is down"
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    except ApiError as error:
        late = error.code == ErrorCode.REQUEST_TIMED_OUT  # clients ask again for this one:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if late else error.code
        return _failure(key, code, error.message)
    except (KeeperError, OSError) as error:
        return _failure(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    host, port = broker.address_of(info, request.connection)
    return Coordinator(
        key=key, node_id=node_id, host=host, port=port, error_code=0, error_message=None
    )


def _failure(key: str, code: ErrorCode, text: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text)
