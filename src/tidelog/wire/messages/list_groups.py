"""ListGroups: API key 16."""

from __future__ import annotations

from tidelog.wire.schema import Int16, Int32, Message, String, Struct, field


class ListGroupsRequest(Message, key=16, versions=(0, 5), flexible=3):
    states_filter: list[String] = field(default=(), since=4)
    types_filter: list[String] = field(default=(), since=5)


class ListedGroup(Struct):
    group_id: String
    protocol_type: String
    group_state: String = field(default="", since=4)
    group_type: String = field(default="", since=5)


class ListGroupsResponse(Message, key=16, versions=(0, 5), flexible=3):
    throttle_time_ms: Int32 = field(default=0, since=1)
    error_code: Int16
    groups: list[ListedGroup]
