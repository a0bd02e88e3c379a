"""DescribeAcls: list access rules.

There is no authorizer, so the answer is SECURITY_DISABLED, as from a Kafka without one.
Versions: 2 flexible; 3 user resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def no_authorizer() -> ApiError:
    text = "there is no authorizer here: every client may do everything"
    return ApiError(ErrorCode.SECURITY_DISABLED, text)


@api(DescribeAclsRequest, versions=(1, 3), needs="DESCRIBE CLUSTER")
def describe_acls(
    broker: Broker, message: DescribeAclsRequest, request: Request
) -> DescribeAclsResponse:
    """List access rules: SECURITY_DISABLED, as there is no authorizer."""
    raise no_authorizer()
