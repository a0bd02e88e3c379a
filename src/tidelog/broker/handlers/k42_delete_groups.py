"""DeleteGroups: forget groups without members, with their offsets.

Versions: 1 throttle time; 2 flexible.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import for_each
from tidelog.errors import ErrorCode
from tidelog.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DeleteGroupsRequest, versions=(0, 2), needs="DELETE GROUP")
async def delete_groups(
    broker: Broker, message: DeleteGroupsRequest, request: Request
) -> DeleteGroupsResponse:
    """Delete consumer groups and their offsets."""
    names = list(dict.fromkeys(message.groups_names))
    results = await for_each(names, partial(_delete, broker), DeletableGroupResult)
    return DeleteGroupsResponse(results=results)


async def _delete(broker: Broker, group_id: str) -> DeletableGroupResult:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    broker.groups.delete(group_id, done.set_result)
    return DeletableGroupResult(group_id=group_id, error_code=await done)
