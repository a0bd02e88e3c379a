"""FindCoordinator: there is none yet, and clients are told so.

It is announced all the same: to librdkafka a broker without FindCoordinator 0 is one
that does not know lz4, and it sends the batches uncompressed, without a word.

The answer is the retriable COORDINATOR_NOT_AVAILABLE.  librdkafka asks even if partitions
are assigned by hand, and would hand any other error to the application.

Versions: 1 kind of coordinator, error message; 3 flexible; 4 many keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Client, api
from tidelog.errors import ErrorCode
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_CODE = ErrorCode.COORDINATOR_NOT_AVAILABLE
_MESSAGE = "there are no consumer groups and no transactions yet: assign partitions by hand"


@api(FindCoordinatorRequest, versions=(0, 6))
def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, client: Client
) -> FindCoordinatorResponse:
    """Say that there are no coordinators yet."""
    broker.server.complain("coordinator", f"{client.connection.peer}: {_MESSAGE}")
    return FindCoordinatorResponse(
        error_code=_CODE,
        error_message=_MESSAGE,
        node_id=-1,
        port=-1,
        coordinators=[
            Coordinator(
                key=key,
                node_id=-1,
                host="",
                port=-1,
                error_code=_CODE,
                error_message=_MESSAGE,
            )
            for key in request.coordinator_keys
        ],
    )
