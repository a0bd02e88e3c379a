"""LeaveGroup: members go, and need not be waited for.

Versions: 1 throttle time; 3 many members, by member id or instance id; 4 flexible; 5 reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.deferred import client_id, read_request, reply_later
from tidelog.broker.dispatch import Frame, raw_api
from tidelog.errors import ApiError
from tidelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_MANY = 3


@raw_api(LeaveGroupRequest, versions=(0, 5))
def leave_group(broker: Broker, frame: Frame) -> None:
    """Leave a consumer group."""
    request = read_request(LeaveGroupRequest, frame)
    send = reply_later(frame)
    members = request.members
    if frame.version < _MANY:
        members = [MemberIdentity(member_id=request.member_id)]
    try:
        codes = broker.groups.leave(
            request.group_id,
            [
                (
                    row.member_id,
                    row.group_instance_id,
                    _reason(broker, request.group_id, row, frame),
                )
                for row in members
            ],
        )
    except ApiError as error:
        send(LeaveGroupResponse(error_code=error.code))
        return
    if frame.version < _MANY:
        send(LeaveGroupResponse(error_code=codes[0]))
        return
    send(
        LeaveGroupResponse(
            error_code=0,
            members=[
                MemberResponse(
                    member_id=row.member_id,
                    group_instance_id=row.group_instance_id,
                    error_code=code,
                )
                for row, code in zip(members, codes, strict=True)
            ],
        )
    )


def _reason(broker: Broker, group_id: str, row: MemberIdentity, frame: Frame) -> str:
    """Why a member goes: what the client says, or that it is not the member itself."""
    reason = row.reason or ""
    group = broker.groups.group(group_id) if group_id else None
    member = group.members.get(row.member_id) if group is not None else None
    who = client_id(frame)
    # Without a member id it is an administrator, who knows the instance id only.
    if not row.member_id or (member is not None and member.client_id != who):
        by = f"client {who!r} at {frame.connection.peer_host} removed it"
        return f"{by}: {reason}" if reason else by
    return reason
