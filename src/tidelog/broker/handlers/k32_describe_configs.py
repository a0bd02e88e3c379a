"""DescribeConfigs: settings of topics, brokers and groups, and where each comes from.

Versions: 1 synonyms; 3 types and documentation; 4 flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.configs import (
    GROUP,
    TOPIC,
    current_config,
    describe_broker,
    describe_group,
    describe_topic,
)
from tidelog.broker.failures import answer_row
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(
    DescribeConfigsRequest,
    versions=(1, 4),
    needs="DESCRIBE_CONFIGS TOPIC or DESCRIBE_CONFIGS GROUP or DESCRIBE_CONFIGS CLUSTER",
)
def describe_configs(
    broker: Broker, message: DescribeConfigsRequest, request: Request
) -> DescribeConfigsResponse:
    """Describe the settings of topics, brokers and groups."""
    distinct = {(row.resource_type, row.resource_name): row for row in message.resources}
    return DescribeConfigsResponse(
        results=[
            answer_row(DescribeConfigsResult, resource, partial(_describe, broker, message))
            for resource in distinct.values()
        ]
    )


def _describe(
    broker: Broker, message: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    current_config(broker, kind, name)  # does it exist?
    if kind == TOPIC:
        rows = describe_topic(broker, broker.metadata.topics[name])
    elif kind == GROUP:
        rows = describe_group(broker, name)
    else:
        rows = describe_broker(broker, name)
    keys = resource.configuration_keys
    return DescribeConfigsResult(
        error_code=0,
        error_message=None,
        resource_type=kind,
        resource_name=name,
        configs=[
            DescribeConfigsResourceResult(
                name=row.name,
                value=row.value,
                read_only=row.read_only,
                config_source=row.source,
                is_sensitive=False,
                synonyms=[
                    DescribeConfigsSynonym(name=n, value=v, source=s) for n, v, s in row.synonyms
                ]
                if message.include_synonyms
                else [],
                config_type=row.setting.kind.code,
                documentation=row.setting.doc if message.include_documentation else None,
            )
            for row in rows
            if not keys or row.name in keys  # none named: all of them
        ],
    )
