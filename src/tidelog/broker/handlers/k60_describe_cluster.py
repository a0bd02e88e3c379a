"""DescribeCluster: brokers and controller.

Versions: 1 endpoint type (1 brokers, 2 controllers); 2 fenced brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker import authorized_operations
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_BROKERS = 1


@api(DescribeClusterRequest, versions=(0, 2), needs="")
def describe_cluster(
    broker: Broker, message: DescribeClusterRequest, request: Request
) -> DescribeClusterResponse:
    """Describe the brokers and the controller."""
    cluster = broker.metadata
    if message.endpoint_type != _BROKERS:
        text = "ask for brokers (endpoint type 1); controllers have no listener"
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, text)
    brokers = []
    for info in cluster.brokers.values():
        host, port = broker.address_of(info, request.connection)
        brokers.append(
            DescribeClusterBroker(
                broker_id=info.broker_id, host=host, port=port, rack=info.rack, is_fenced=False
            )
        )
    return DescribeClusterResponse(
        error_code=0,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=brokers,
        cluster_authorized_operations=authorized_operations.on_cluster(
            message.include_cluster_authorized_operations
        ),
    )
