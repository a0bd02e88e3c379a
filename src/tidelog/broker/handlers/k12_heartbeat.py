"""Heartbeat: a member is alive, and hears whether it must join again.

Versions: 1 throttle time; 3 group.instance.id; 4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(HeartbeatRequest, versions=(0, 4), needs="READ GROUP")
def heartbeat(broker: Broker, message: HeartbeatRequest, request: Request) -> HeartbeatResponse:
    """Stay in a consumer group."""
    code = broker.groups.heartbeat(
        message.group_id, message.member_id, message.group_instance_id, message.generation_id
    )
    return HeartbeatResponse(error_code=code)
