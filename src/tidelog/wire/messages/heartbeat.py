"""Heartbeat: API key 12."""

from __future__ import annotations

from tidelog.wire.schema import Int16, Int32, Message, String, field


class HeartbeatRequest(Message, key=12, versions=(0, 4), flexible=4):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = field(default=None, since=3)


class HeartbeatResponse(Message, key=12, versions=(0, 4), flexible=4):
    throttle_time_ms: Int32 = field(default=0, since=1)
    error_code: Int16
