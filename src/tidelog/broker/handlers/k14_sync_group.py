"""SyncGroup: the leader hands in the assignment, each member gets its part.

Versions: 1 throttle time; 3 group.instance.id; 4 flexible; 5 protocol type and name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.members import Sync, SyncResult
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(SyncGroupRequest, versions=(0, 5), needs="READ GROUP", large=True)
def sync_group(broker: Broker, message: SyncGroupRequest, request: Request) -> None:
    """Hand in and get the assignment of a generation."""
    sync = Sync(
        message.member_id,
        message.group_instance_id,
        message.generation_id,
        {row.member_id: row.assignment for row in message.assignments},
        message.protocol_type,
        message.protocol_name,
    )
    broker.groups.sync(message.group_id, sync, lambda result: request.reply(_response(result)))


def _response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
