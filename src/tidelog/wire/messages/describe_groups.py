"""DescribeGroups: API key 15."""

from __future__ import annotations

from tidelog.wire.schema import Bool, Bytes, Int16, Int32, Message, String, Struct, field


class DescribeGroupsRequest(Message, key=15, versions=(0, 6), flexible=5):
    groups: list[String] = field(default=())
    include_authorized_operations: Bool = field(default=False, since=3)


class DescribedGroupMember(Struct):
    member_id: String
    group_instance_id: String | None = field(default=None, since=4)
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


class DescribedGroup(Struct):
    error_code: Int16
    error_message: String | None = field(default=None, since=6)
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: list[DescribedGroupMember]
    authorized_operations: Int32 = field(default=-2147483648, since=3)


class DescribeGroupsResponse(Message, key=15, versions=(0, 6), flexible=5):
    throttle_time_ms: Int32 = field(default=0, since=1)
    groups: list[DescribedGroup]
