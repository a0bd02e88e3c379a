"""AlterConfigs: replace all settings of a resource (what is not named goes back to default).

Versions: 2 flexible.  IncrementalAlterConfigs (44) is the better way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.configs import current_config, outcome, replace_config
from tidelog.broker.registry import api
from tidelog.broker.request import Request
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
    broker: Broker, message: AlterConfigsRequest, request: Request
) -> AlterConfigsResponse:
    """Replace the settings of topics, brokers and groups."""
    responses = []
    for resource in message.resources:
        change = _replace(broker, resource, message.validate_only)
        responses.append(await outcome(resource, change, AlterConfigsResourceResponse))
    return AlterConfigsResponse(responses=responses)


async def _replace(broker: Broker, resource: AlterConfigsResource, validate_only: bool) -> None:
    kind, name = resource.resource_type, resource.resource_name
    current_config(broker, kind, name)  # does it exist?
    config = {row.name: row.value for row in resource.configs if row.value is not None}
    await replace_config(broker, kind, name, config, validate_only=validate_only)
