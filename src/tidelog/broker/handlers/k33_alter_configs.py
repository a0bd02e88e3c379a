"""AlterConfigs: replace all settings of a resource (what is not named goes back to default).

Versions: 2 flexible.  IncrementalAlterConfigs (44) is the better way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.configs import current_config, replace_config
from tidelog.broker.dispatch import Client, api
from tidelog.coordination.keeper import KeeperError
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(AlterConfigsRequest, versions=(0, 2))
async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, client: Client
) -> AlterConfigsResponse:
    """Replace the settings of topics, brokers and groups."""
    return AlterConfigsResponse(
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
        current_config(broker, kind, name)  # does it exist?
        config = {row.name: row.value for row in resource.configs if row.value is not None}
        await replace_config(broker, kind, name, config, validate_only=validate_only)
    except ApiError as error:
        code, message = error.code, error.message
    except (KeeperError, OSError) as error:
        code, message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return AlterConfigsResourceResponse(
        error_code=code, error_message=message, resource_type=kind, resource_name=name
    )
