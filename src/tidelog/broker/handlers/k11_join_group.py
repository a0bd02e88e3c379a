"""JoinGroup: become a member of a group, or stay one; answered when the generation begins.

Versions: 1 rebalance timeout; 2 throttle time; 4 a new member gets its id first and joins
with it (KIP-394); 5 group.instance.id (KIP-345); 6 flexible; 7 protocol type; 8 reason;
9 a leader may be told to keep the assignment (KIP-814).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.members import Join, JoinResult
from tidelog.errors import ErrorCode
from tidelog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_ID_FIRST, _NULL_PROTOCOL, _MAY_SKIP = 4, 7, 9


def _failed(
    message: JoinGroupRequest, version: int, code: ErrorCode, text: str | None
) -> JoinGroupResponse:
    return _response(JoinResult(code, getattr(message, "member_id", "")), version)


@api(JoinGroupRequest, versions=(0, 9), needs="READ GROUP", failed=_failed, large=True)
def join_group(broker: Broker, message: JoinGroupRequest, request: Request) -> None:
    """Join a consumer group, or stay in it."""
    version = request.version
    session_ms, rebalance_ms = message.session_timeout_ms, message.rebalance_timeout_ms
    join = Join(
        message.member_id,
        request.client_id,
        request.connection.peer_host,
        session_ms,
        session_ms if rebalance_ms < 0 else rebalance_ms,
        message.protocol_type,
        tuple((row.name, row.metadata) for row in message.protocols),
        message.group_instance_id,
        message.reason or "",
        id_first=version >= _ID_FIRST,
        may_skip=version >= _MAY_SKIP,
    )
    broker.groups.join(message.group_id, join, lambda r: request.reply(_response(r, version)))


def _response(result: JoinResult, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol if version >= _NULL_PROTOCOL else result.protocol or "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=row.member_id, group_instance_id=row.instance_id, metadata=row.metadata
            )
            for row in result.members
        ],
    )
