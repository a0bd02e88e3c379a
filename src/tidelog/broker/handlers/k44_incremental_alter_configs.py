"""IncrementalAlterConfigs: set, delete, append to or subtract from single settings.

Versions: 1 flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.configs import apply_operation, current_config, replace_config
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import for_each
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(
    IncrementalAlterConfigsRequest,
    versions=(0, 1),
    needs="ALTER_CONFIGS TOPIC or ALTER_CONFIGS GROUP or ALTER_CONFIGS CLUSTER",
)
async def incremental_alter_configs(
    broker: Broker, message: IncrementalAlterConfigsRequest, request: Request
) -> IncrementalAlterConfigsResponse:
    """Change single settings of topics, brokers and groups."""
    work = partial(_change, broker, message.validate_only)
    responses = await for_each(message.resources, work, AlterConfigsResourceResponse, at_a_time=1)
    return IncrementalAlterConfigsResponse(responses=responses)


async def _change(
    broker: Broker, validate_only: bool, resource: AlterConfigsResource
) -> AlterConfigsResourceResponse:
    kind, name = resource.resource_type, resource.resource_name
    names = [row.name for row in resource.configs]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a setting is in the request twice")
    config = current_config(broker, kind, name)
    for row in resource.configs:
        apply_operation(kind, config, row.name, row.config_operation, row.value)
    await replace_config(broker, kind, name, config, validate_only=validate_only)
    return AlterConfigsResourceResponse(
        error_code=0, error_message=None, resource_type=kind, resource_name=name
    )
