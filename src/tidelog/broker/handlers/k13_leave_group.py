"""LeaveGroup: members go, and need not be waited for.

Versions: 1 throttle time; 3 many members, by member id or instance id; 4 flexible; 5 reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_MANY = 3


@api(LeaveGroupRequest, versions=(0, 5), needs="READ GROUP")
def leave_group(broker: Broker, message: LeaveGroupRequest, request: Request) -> LeaveGroupResponse:
    """Leave a consumer group."""
    members = message.members
    if request.version < _MANY:
        members = [MemberIdentity(member_id=message.member_id)]
    codes = broker.groups.leave(
        message.group_id,
        [
            (row.member_id, row.group_instance_id, _reason(broker, message.group_id, row, request))
            for row in members
        ],
    )
    if request.version < _MANY:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
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


def _reason(broker: Broker, group_id: str, row: MemberIdentity, request: Request) -> str:
    """Why a member goes: what the client says, or that it is not the member itself."""
    reason = row.reason or ""
    group = broker.groups.group(group_id) if group_id else None
    member = group.members.get(row.member_id) if group is not None else None
    who = request.client_id
    # Without a member id it is an administrator, who knows the instance id only.
    if not row.member_id or (member is not None and member.client_id != who):
        by = f"client {who!r} at {request.connection.peer_host} removed it"
        return f"{by}: {reason}" if reason else by
    return reason
