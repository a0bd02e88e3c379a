"""FindCoordinator: API key 10."""

from __future__ import annotations

from tidelog.wire.schema import Int8, Int16, Int32, Message, String, Struct, field


class FindCoordinatorRequest(Message, key=10, versions=(0, 6), flexible=3):
    key: String = field(default="", until=3)
    key_type: Int8 = field(default=0, since=1)
    coordinator_keys: list[String] = field(default=(), since=4)


class Coordinator(Struct):
    key: String
    node_id: Int32 = -1
    host: String
    port: Int32 = -1
    error_code: Int16
    error_message: String | None


class FindCoordinatorResponse(Message, key=10, versions=(0, 6), flexible=3):
    throttle_time_ms: Int32 = field(default=0, since=1)
    error_code: Int16 = field(default=0, until=3)
    error_message: String | None = field(default=None, since=1, until=3)
    node_id: Int32 = field(default=0, until=3)
    host: String = field(default="", until=3)
    port: Int32 = field(default=0, until=3)
    coordinators: list[Coordinator] = field(default=(), since=4)
