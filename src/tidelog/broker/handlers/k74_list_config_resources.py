"""ListConfigResources: what has settings of its own.

Version 0 was ListClientMetricsResources: it lists only those, and we have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.configs import BROKER, GROUP, TOPIC
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_CLIENT_METRICS = 16
_KNOWN = {TOPIC, BROKER, 8, _CLIENT_METRICS, GROUP}  # 8: broker loggers


@api(ListConfigResourcesRequest, versions=(0, 1), needs="DESCRIBE_CONFIGS CLUSTER")
def list_config_resources(
    broker: Broker, message: ListConfigResourcesRequest, request: Request
) -> ListConfigResourcesResponse:
    """List topics, brokers and groups that have settings."""
    wanted = {_CLIENT_METRICS} if request.version == 0 else set(message.resource_types) or _KNOWN
    if not wanted <= _KNOWN:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    found = []
    if TOPIC in wanted:
        found += [(name, TOPIC) for name in sorted(broker.metadata.topics)]
    if BROKER in wanted:
        found += [(str(broker_id), BROKER) for broker_id in sorted(broker.metadata.brokers)]
    if GROUP in wanted:
        found += [(name, GROUP) for name in sorted(broker.metadata.group_configs)]
    return ListConfigResourcesResponse(
        error_code=0,
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind) for name, kind in found
        ],
    )
