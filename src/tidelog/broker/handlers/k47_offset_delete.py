"""OffsetDelete: forget committed offsets of topics that the group does not read any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.service import Codes
from tidelog.errors import ErrorCode
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


@api(OffsetDeleteRequest, versions=(0, 0), needs="DELETE GROUP and READ TOPIC")
def offset_delete(broker: Broker, message: OffsetDeleteRequest, request: Request) -> None:
    """Delete committed offsets of a group."""

    def reply(error: ErrorCode, codes: Codes) -> None:
        rows = [] if error else message.topics
        request.reply(
            OffsetDeleteResponse(
                error_code=error,
                topics=[
                    OffsetDeleteResponseTopic(
                        name=row.name,
                        partitions=[
                            OffsetDeleteResponsePartition(
                                partition_index=part.partition_index,
                                error_code=codes[row.name, part.partition_index],
                            )
                            for part in row.partitions
                        ],
                    )
                    for row in rows
                ],
            )
        )

    places = [(row.name, part.partition_index) for row in message.topics for part in row.partitions]
    broker.groups.delete_offsets(message.group_id, places, reply)
