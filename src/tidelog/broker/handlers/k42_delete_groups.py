"""DeleteGroups: forget groups without members, with their offsets.

Versions: 1 throttle time; 2 flexible.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(DeleteGroupsRequest, versions=(0, 2))
async def delete_groups(
    broker: Broker, message: DeleteGroupsRequest, request: Request
) -> DeleteGroupsResponse:
    """Delete consumer groups and their offsets."""
    names = list(dict.fromkeys(message.groups_names))
    codes = await asyncio.gather(*(_delete(broker, name) for name in names))
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=name, error_code=code)
            for name, code in zip(names, codes, strict=True)
        ]
    )


async def _delete(broker: Broker, group_id: str) -> ErrorCode:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    try:
        broker.groups.delete(group_id, done.set_result)
    except ApiError as error:
        return error.code
    return await done
