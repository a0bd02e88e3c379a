"""ListGroups: the groups that this broker coordinates.

Versions: 1 throttle time; 3 flexible; 4 filter by state; 5 filter by type (KIP-848).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.states import GroupState
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


_AT_ONCE = 2000  # then others are served: there may be tens of thousands


@api(
    ListGroupsRequest,
    versions=(0, 5),
    needs="DESCRIBE CLUSTER or DESCRIBE GROUP",
    large_answer=True,
)
async def list_groups(
    broker: Broker, message: ListGroupsRequest, request: Request
) -> ListGroupsResponse:
    """List consumer groups."""
    states = {state.lower() for state in message.states_filter}
    types = {kind.lower() for kind in message.types_filter}
    groups = broker.groups.groups()
    listed = []
    for start in range(0, len(groups), _AT_ONCE):
        if start:
            await asyncio.sleep(0)
        listed += [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in groups[start : start + _AT_ONCE]
            if group.state is not GroupState.DEAD
            and (not states or group.state.lower() in states)
            and (not types or group.group_type in types)
        ]
    return ListGroupsResponse(error_code=0, groups=listed)
