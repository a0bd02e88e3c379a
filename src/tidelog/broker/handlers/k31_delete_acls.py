"""DeleteAcls: remove access rules.

There is no authorizer, so the answer is SECURITY_DISABLED, as from a Kafka without one.
Versions: 2 flexible; 3 user resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.handlers.k29_describe_acls import no_authorizer
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.wire.messages.delete_acls import (
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DeleteAclsRequest, versions=(1, 3), needs="ALTER CLUSTER")
def delete_acls(broker: Broker, message: DeleteAclsRequest, request: Request) -> DeleteAclsResponse:
    """Remove access rules: SECURITY_DISABLED, as there is no authorizer."""
    raise no_authorizer()
