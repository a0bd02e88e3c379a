"""IncrementalAlterConfigs: set, delete, append to or subtract from single settings.

Versions: 1 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.configs import apply_operation, current_config, outcome, replace_config
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(IncrementalAlterConfigsRequest, versions=(0, 1))
async def incremental_alter_configs(
    broker: Broker, message: IncrementalAlterConfigsRequest, request: Request
) -> IncrementalAlterConfigsResponse:
    """Change single settings of topics, brokers and groups."""
    responses = []
    for resource in message.resources:
        change = _change(broker, resource, message.validate_only)
        responses.append(await outcome(resource, change, AlterConfigsResourceResponse))
    return IncrementalAlterConfigsResponse(responses=responses)


async def _change(broker: Broker, resource: AlterConfigsResource, validate_only: bool) -> None:
    kind, name = resource.resource_type, resource.resource_name
    names = [row.name for row in resource.configs]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a setting is in the request twice")
    config = current_config(broker, kind, name)
    for row in resource.configs:
        apply_operation(kind, config, row.name, row.config_operation, row.value)
    await replace_config(broker, kind, name, config, validate_only=validate_only)
