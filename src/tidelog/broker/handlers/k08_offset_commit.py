"""OffsetCommit: write down how far a group has read.

Versions: 2-4 retention time; 3 throttle time; 6 leader epoch; 7 group.instance.id;
8 flexible; 9 member epochs (KIP-848); 10 topic ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.service import Codes, CommitRow
from tidelog.errors import ErrorCode
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_BY_ID = 10


@api(OffsetCommitRequest, versions=(2, 10), needs="READ GROUP and READ TOPIC")
def offset_commit(broker: Broker, message: OffsetCommitRequest, request: Request) -> None:
    """Commit the offsets of a group."""
    topics = broker.metadata.topic_names
    # The name of each topic; with an unknown id it is empty, as no name can be.
    named = [
        (topics.get(row.topic_id, "") if request.version >= _BY_ID else row.name, row)
        for row in message.topics
    ]
    rows: list[CommitRow] = [
        (
            name,
            part.partition_index,
            part.committed_offset,
            part.committed_leader_epoch,
            part.committed_metadata,
        )
        for name, row in named
        for part in row.partitions
    ]
    outsider = ""
    if not message.member_id:
        outsider = f"client {request.client_id!r} at {request.connection.peer_host}"
    broker.groups.commit(
        message.group_id,
        message.member_id,
        message.group_instance_id,
        message.generation_id_or_member_epoch,
        request.version,
        rows,
        message.retention_time_ms,
        lambda codes: request.reply(_response(named, codes, request.version >= _BY_ID)),
        outsider,
    )


def _response(
    named: list[tuple[str, OffsetCommitRequestTopic]], codes: Codes, by_id: bool
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=row.name,
                topic_id=row.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_ID
                        if by_id and not name
                        else codes[name, part.partition_index],
                    )
                    for part in row.partitions
                ],
            )
            for name, row in named
        ]
    )
