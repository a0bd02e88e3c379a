"""DeleteGroups: API key 42."""

from __future__ import annotations

from tidelog.wire.schema import Int16, Int32, Message, String, Struct, field


class DeleteGroupsRequest(Message, key=42, versions=(0, 2), flexible=2):
    groups_names: list[String] = field(default=())


class DeletableGroupResult(Struct):
    group_id: String
    error_code: Int16


class DeleteGroupsResponse(Message, key=42, versions=(0, 2), flexible=2):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult]
