"""DescribeAcls: API key 29."""

from __future__ import annotations

from tidelog.wire.schema import Int8, Int16, Int32, Message, String, Struct


class DescribeAclsRequest(Message, key=29, versions=(1, 3), flexible=2):
    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class AclDescription(Struct):
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Struct):
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    acls: list[AclDescription]


class DescribeAclsResponse(Message, key=29, versions=(1, 3), flexible=2):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None
    resources: list[DescribeAclsResource]
