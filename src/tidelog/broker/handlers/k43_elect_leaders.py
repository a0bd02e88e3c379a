"""ElectLeaders: elect preferred leaders, or any replica where there is no leader (unclean).

Versions: 1 election type (0 preferred, 1 unclean), top-level error; 2 flexible.
A broker that is not the controller answers NOT_CONTROLLER: clients ask the right one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.broker.timeouts import deadline, in_time
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_PREFERRED, _UNCLEAN = 0, 1


@api(ElectLeadersRequest, versions=(0, 2), needs="ALTER CLUSTER")
async def elect_leaders(
    broker: Broker, message: ElectLeadersRequest, request: Request
) -> ElectLeadersResponse:
    """Elect leaders of partitions."""
    keys = None
    if message.topic_partitions is not None:
        keys = [(row.topic, i) for row in message.topic_partitions for i in row.partitions]
    if message.election_type not in (_PREFERRED, _UNCLEAN):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    work = _elect(broker, keys, message.election_type == _UNCLEAN)
    try:
        results = await in_time(broker, work, deadline(broker, message.timeout_ms))
    except ApiError as error:
        if error.code != ErrorCode.REQUEST_TIMED_OUT or not keys:
            raise
        results = dict.fromkeys(keys, error)  # only these have room for the reason
    topics: dict[str, ReplicaElectionResult] = {}
    for (name, index), problem in results.items():
        if keys is None and problem and problem.code == ErrorCode.ELECTION_NOT_NEEDED:
            continue  # asked for all: those that need nothing are not worth a line
        topic = topics.setdefault(name, ReplicaElectionResult(topic=name, partition_result=[]))
        topic.partition_result.append(
            PartitionResult(
                partition_id=index,
                error_code=problem.code if problem else 0,
                error_message=problem.message if problem else None,
            )
        )
    return ElectLeadersResponse(error_code=0, replica_election_results=list(topics.values()))


async def _elect(
    broker: Broker, keys: list[tuple[str, int]] | None, unclean: bool
) -> dict[tuple[str, int], ApiError | None]:
    controller = await broker.election.active()
    return await broker.election.decide(controller.elect_leaders(keys, unclean=unclean))
