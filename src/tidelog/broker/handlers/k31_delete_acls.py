"""DeleteAcls: remove access rules.

There is no authorizer, so the answer is SECURITY_DISABLED, as from a Kafka without one.
Versions: 2 flexible; 3 user resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.handlers.k29_describe_acls import NO_AUTHORIZER
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ErrorCode
from tidelog.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DeleteAclsRequest, versions=(1, 3))
def delete_acls(broker: Broker, message: DeleteAclsRequest, request: Request) -> DeleteAclsResponse:
    """Remove access rules: SECURITY_DISABLED, as there is no authorizer."""
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER, matching_acls=[]
    )
    return DeleteAclsResponse(filter_results=[refused] * len(message.filters))
