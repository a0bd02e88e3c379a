"""AlterConfigs: replace all settings of a resource (what is not named goes back to default).

Versions: 2 flexible.  IncrementalAlterConfigs (44) is the better way.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.configs import current_config, replace_config
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import for_each
from tidelog.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(
    AlterConfigsRequest,
    versions=(0, 2),
    needs="ALTER_CONFIGS TOPIC or ALTER_CONFIGS GROUP or ALTER_CONFIGS CLUSTER",
)
async def alter_configs(
    broker: Broker, message: AlterConfigsRequest, request: Request
) -> AlterConfigsResponse:
    """Replace the settings of topics, brokers and groups."""
    work = partial(_replace, broker, message.validate_only)
    responses = await for_each(message.resources, work, AlterConfigsResourceResponse, at_a_time=1)
    return AlterConfigsResponse(responses=responses)


async def _replace(
    broker: Broker, validate_only: bool, resource: AlterConfigsResource
) -> AlterConfigsResourceResponse:
    kind, name = resource.resource_type, resource.resource_name
    current_config(broker, kind, name)  # does it exist?
    config = {row.name: row.value for row in resource.configs if row.value is not None}
    await replace_config(broker, kind, name, config, validate_only=validate_only)
    return AlterConfigsResourceResponse(
        error_code=0, error_message=None, resource_type=kind, resource_name=name
    )
