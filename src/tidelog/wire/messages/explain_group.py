"""ExplainGroup: API key 10015, tidelog's own: Kafka has nothing that says why a group rebalanced.

Keys from 10000 on are ours (this one after DescribeGroups, 15); clients skip keys that they
do not know.
"""

from __future__ import annotations

from tidelog.wire.schema import Bool, Int16, Int32, Int64, Message, String, Struct


class ExplainGroupRequest(Message, key=10015, versions=(0, 0), flexible=0):
    group_id: String


class GroupEvent(Struct):
    time_ms: Int64
    kind: String
    generation: Int32
    member_id: String
    cause: String


class RemovedOffset(Struct):
    topic: String
    partition: Int32
    removed_at_ms: Int64
    reason: String


class MemberStatus(Struct):
    member_id: String
    instance_id: String | None = None
    client_id: String
    client_host: String
    waited_for: Bool  # a rebalance does not go on without it
    away: Bool  # static, stopped, and its place is kept
    silent_ms: Int64  # since it was last heard of; -1: it waits for us
    expires_in_ms: Int64  # until it is taken for dead; -1: it waits for us


class ExplainGroupResponse(Message, key=10015, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    generation: Int32 = -1
    events: list[GroupEvent]
    removed_offsets: list[RemovedOffset]
    members: list[MemberStatus]
