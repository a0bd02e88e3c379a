"""ExplainGroup: what happened to a group and why, who is alive, and which offsets it lost.

tidelog's own; ``tidelog groups explain`` and ``tidelog groups describe`` ask it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.explain_group import (
    ExplainGroupRequest,
    ExplainGroupResponse,
    GroupEvent,
    MemberStatus,
    RemovedOffset,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(ExplainGroupRequest, versions=(0, 0), needs="DESCRIBE GROUP")
def explain_group(
    broker: Broker, message: ExplainGroupRequest, request: Request
) -> ExplainGroupResponse:
    """Say why a group rebalanced, and why offsets are gone (tidelog's own)."""
    group_id = message.group_id
    group = broker.groups.group(group_id)
    removals = broker.groups.removals(group_id)
    if group is None and not removals:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
    return ExplainGroupResponse(
        error_code=0,
        generation=-1 if group is None else group.generation,
        events=[
            GroupEvent(
                time_ms=event.time_ms,
                kind=event.kind,
                generation=event.generation,
                member_id=event.member_id,
                cause=event.cause,
            )
            for event in (() if group is None else group.timeline)
        ],
        removed_offsets=[
            RemovedOffset(
                topic=topic,
                partition=partition,
                removed_at_ms=removal.time_ms,
                reason=removal.reason,
            )
            for (topic, partition), removal in removals.items()
        ],
        members=[
            MemberStatus(**status._asdict())
            for status in (() if group is None else group.statuses())
        ],
    )
