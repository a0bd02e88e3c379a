"""OffsetFetch: how far groups have read.

Without topics: everything that the group has committed.  A partition without an offset is
answered with offset -1 and no error; one with a commit in a transaction that is still open with
UNSTABLE_OFFSET_COMMIT if the client wants stable offsets, else with what was committed before.

A coordinator that has written what is not replicated yet waits for that before it answers: it
may be cut off from the others, who have another by now, with newer offsets.

Versions: 2 all topics, error of the group; 3 throttle time; 5 leader epoch; 6 flexible;
7 require stable; 8 many groups; 9 member epochs (KIP-848); 10 topic ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.failures import answer_row
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.offsets import Committed, GroupOffsets
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidelog.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_MANY, _EPOCH, _BY_ID = 8, 9, 10
_NOTHING = Committed(-1, -1, "", -1)

# Topic, and for each partition what is committed, or an error.
Rows = list[tuple[str, list[tuple[int, Committed, int]]]]
Places = Set[tuple[str, int]]
Codes = Mapping[str, ErrorCode]  # of groups that cannot be answered for


@api(OffsetFetchRequest, versions=(1, 10), needs="DESCRIBE GROUP and DESCRIBE TOPIC")
def offset_fetch(
    broker: Broker, message: OffsetFetchRequest, request: Request
) -> OffsetFetchResponse | Coroutine[Any, Any, OffsetFetchResponse]:
    """Say which offsets groups have committed."""
    groups = [message.group_id]
    if request.version >= _MANY:
        groups = [group.group_id for group in message.groups]
    uncommitted = [group_id for group_id in groups if not broker.groups.all_committed(group_id)]
    if uncommitted:
        return _answer_when_committed(broker, message, request.version, uncommitted)
    return _answer(broker, message, request.version, {})


async def _answer_when_committed(
    broker: Broker, message: OffsetFetchRequest, version: int, uncommitted: list[str]
) -> OffsetFetchResponse:
    codes = await asyncio.gather(*map(broker.groups.when_committed, uncommitted))
    return _answer(broker, message, version, dict(zip(uncommitted, codes, strict=True)))


def _answer(
    broker: Broker, message: OffsetFetchRequest, version: int, codes: Codes
) -> OffsetFetchResponse:
    if version >= _MANY:
        work = partial(_group, broker, version, codes, message.require_stable)
        return OffsetFetchResponse(
            groups=[answer_row(OffsetFetchResponseGroup, group, work) for group in message.groups]
        )
    wanted = None
    if message.topics is not None:
        wanted = [(row.name, row.partition_indexes) for row in message.topics]
    rows = _rows(broker, message.group_id, codes, wanted, message.require_stable)
    return OffsetFetchResponse(
        error_code=0,
        topics=[
            OffsetFetchResponseTopic(
                name=topic,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                        error_code=failed,
                    )
                    for index, found, failed in partitions
                ],
            )
            for topic, partitions in rows
        ],
    )


def _rows(
    broker: Broker,
    group_id: str,
    codes: Codes,
    wanted: Iterable[tuple[str, Iterable[int]]] | None,
    require_stable: bool,
) -> Rows:
    if code := codes.get(group_id):
        raise ApiError(code)
    offsets = broker.groups.offsets(group_id)
    unstable = broker.groups.pending(group_id) if require_stable else frozenset()
    if wanted is None:
        wanted = [(topic, list(partitions)) for topic, partitions in offsets.topics.items()]
    return [
        (topic, [(index, *_look_up(offsets, topic, index, unstable)) for index in indexes])
        for topic, indexes in wanted
    ]


def _look_up(
    offsets: GroupOffsets, topic: str, index: int, unstable: Places
) -> tuple[Committed, int]:
    if (topic, index) in unstable:
        return _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
    return offsets.get(topic, index) or _NOTHING, 0


def _group(
    broker: Broker,
    version: int,
    codes: Codes,
    require_stable: bool,
    group: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup:
    names, topics = broker.metadata.topic_names, broker.metadata.topics
    by_id = version >= _BY_ID
    wanted, unknown = None, []
    if group.topics is not None:
        wanted = []
        for row in group.topics:
            name = names.get(row.topic_id) if by_id else row.name
            if name is None:
                unknown.append(row)
            else:
                wanted.append((name, row.partition_indexes))
    if version >= _EPOCH:
        broker.groups.check_fetch(group.group_id, group.member_id, group.member_epoch)
    rows = _rows(broker, group.group_id, codes, wanted, require_stable)
    if by_id:
        rows = [row for row in rows if row[0] in topics]  # others have no id to be named by
    found = [
        OffsetFetchResponseTopics(
            name=topic,
            topic_id=topics[topic].topic_id if by_id else ZERO_UUID,
            partitions=[_partition(*partition) for partition in partitions],
        )
        for topic, partitions in rows
    ]
    found += [
        OffsetFetchResponseTopics(
            topic_id=row.topic_id,
            partitions=[
                _partition(index, _NOTHING, ErrorCode.UNKNOWN_TOPIC_ID)
                for index in row.partition_indexes
            ],
        )
        for row in unknown
    ]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=found)


def _partition(index: int, found: Committed, code: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=code,
    )
