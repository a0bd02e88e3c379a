"""SyncGroup: the leader hands in the assignment, everybody gets its part.

Versions: 1 throttle time; 3 group.instance.id; 4 flexible; 5 protocol type and name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.deferred import read_request, reply_later
from tidelog.broker.dispatch import Frame, raw_api
from tidelog.coordinators.groups.members import SyncResult
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@raw_api(SyncGroupRequest, versions=(0, 5), large=True)
def sync_group(broker: Broker, frame: Frame) -> None:
    """Hand in and get the assignment of a generation."""
    request = read_request(SyncGroupRequest, frame)
    send = reply_later(frame)
    try:
        broker.groups.sync(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            {row.member_id: row.assignment for row in request.assignments},
            request.protocol_type,
            request.protocol_name,
            lambda result: send(_response(result)),
        )
    except ApiError as error:
        if error.code == ErrorCode.GROUP_MAX_SIZE_REACHED:
            peer = frame.connection.peer
            message = f"{peer}: group {request.group_id[:100]!r}: {error.message}; refused"
            broker.server.complain("group memory", message)
        send(_response(SyncResult(error.code)))


def _response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
