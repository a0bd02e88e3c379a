"""IncrementalAlterConfigs: set, delete, append to or subtract from single settings.

Versions: 1 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.configs import apply_operation, current_config, replace_config
from tidelog.broker.dispatch import Client, api
from tidelog.coordination.keeper import KeeperError
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
    broker: Broker, request: IncrementalAlterConfigsRequest, client: Client
) -> IncrementalAlterConfigsResponse:
    """Change single settings of topics, brokers and groups."""
    return IncrementalAlterConfigsResponse(
        responses=[
            await _alter(broker, resource, request.validate_only) for resource in request.resources
        ]
    )


async def _alter(
    broker: Broker, resource: AlterConfigsResource, validate_only: bool
) -> AlterConfigsResourceResponse:
    kind, name = resource.resource_type, resource.resource_name
    code, message = ErrorCode.NONE, None
    try:
        names = [row.name for row in resource.configs]
        if len(set(names)) != len(names):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a setting is in the request twice")
        config = current_config(broker, kind, name)
        for row in resource.configs:
            apply_operation(kind, config, row.name, row.config_operation, row.value)
        await replace_config(broker, kind, name, config, validate_only=validate_only)
    except ApiError as error:
        code, message = error.code, error.message
    except (KeeperError, OSError) as error:
        code, message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return AlterConfigsResourceResponse(
        error_code=code, error_message=message, resource_type=kind, resource_name=name
    )
