"""LeaveGroup: members go, and need not be waited for.

Versions: 1 throttle time; 3 many members, by member id or instance id; 4 flexible; 5 reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import Client, api
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


@api(LeaveGroupRequest, versions=(0, 5))
def leave_group(broker: Broker, request: LeaveGroupRequest, client: Client) -> LeaveGroupResponse:
    """Leave a consumer group."""
    members = request.members
    if client.version < _MANY:
        members = [MemberIdentity(member_id=request.member_id)]
    try:
        codes = broker.groups.leave(
            request.group_id,
            [(row.member_id, row.group_instance_id, row.reason or "") for row in members],
        )
    except ApiError as error:
        return LeaveGroupResponse(error_code=error.code)
    if client.version < _MANY:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        error_code=0,
        members=[
            MemberResponse(
                member_id=row.member_id, group_instance_id=row.group_instance_id, error_code=code
            )
            for row, code in zip(members, codes, strict=True)
        ],
    )
