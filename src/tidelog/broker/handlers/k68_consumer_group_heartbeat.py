"""ConsumerGroupHeartbeat: everything that a member of a consumer group says (KIP-848).

It joins with epoch 0, says what it wants to read and what it holds, hears what it should
hold, and leaves with epoch -1, or -2 if it is static and comes back.
Versions: 1 regular expressions, and the client makes its member id by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.coordinators.groups.consumer_members import (
    LEFT,
    LEFT_FOR_A_WHILE,
    Beat,
    BeatResult,
    by_topic,
)
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_OWN_ID = 1
# Ids and names of topics go into records, and these must fit into a batch.
_LONGEST_ID = 1000
_MOST_TOPICS = 400_000  # characters of their names, all together


@api(ConsumerGroupHeartbeatRequest, versions=(0, 1), needs="READ GROUP")
def consumer_group_heartbeat(
    broker: Broker, message: ConsumerGroupHeartbeatRequest, request: Request
) -> None:
    """Join a consumer group of the new protocol, stay in it, and leave it."""
    if not broker.groups.consumer_protocol:
        text = "group.coordinator.rebalance.protocols has no consumer"
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
    _check(message, request.version, broker.groups.consumer_limits.assignors)
    topics, owned = message.subscribed_topic_names, message.topic_partitions
    beat = Beat(
        message.member_id,
        message.member_epoch,
        request.client_id,
        request.connection.peer_host,
        message.instance_id,
        message.rack_id,
        message.rebalance_timeout_ms,
        None if topics is None else frozenset(topics),
        message.subscribed_topic_regex,
        message.server_assignor,
        None
        if owned is None
        else frozenset((row.topic_id, index) for row in owned for index in row.partitions),
    )
    broker.groups.consumer_heartbeat(message.group_id, beat, lambda r: request.reply(_response(r)))


def _check(
    message: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> None:
    """Refuse what no client should send."""
    epoch, problem = message.member_epoch, ""
    ids = (message.member_id, message.instance_id, message.rack_id)
    if not message.group_id:
        problem = "the group id is empty"
    elif message.instance_id == "" or message.rack_id == "":
        problem = "an instance id or rack id that is there must not be empty"
    elif any(len(i or "") > _LONGEST_ID for i in ids):
        problem = f"an id has more than {_LONGEST_ID} characters"
    elif sum(map(len, message.subscribed_topic_names or ())) > _MOST_TOPICS:
        problem = f"the names of the topics have more than {_MOST_TOPICS} characters"
    elif epoch < LEFT_FOR_A_WHILE:
        problem = f"there is no member epoch {epoch}"
    elif not message.member_id and (epoch != 0 or version >= _OWN_ID):
        problem = "the member id is empty"
    elif epoch == LEFT_FOR_A_WHILE and message.instance_id is None:
        problem = f"only a member with an instance id can leave with epoch {epoch}"
    elif epoch == 0:
        problem = _missing(message)
    if problem:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    assignor = message.server_assignor
    if assignor is not None and assignor not in assignors and epoch != LEFT:
        text = f"there is no assignor {assignor!r}, only {', '.join(assignors)}"
        raise ApiError(ErrorCode.UNSUPPORTED_ASSIGNOR, text)


def _missing(message: ConsumerGroupHeartbeatRequest) -> str:
    """What is wrong with a request to join."""
    if message.rebalance_timeout_ms < 0:
        return "who joins must say its rebalance timeout"
    if message.topic_partitions is None or message.topic_partitions:
        return "who joins must own nothing, and say so"
    if message.subscribed_topic_names is None and message.subscribed_topic_regex is None:
        return "who joins must say what it wants to read: topics or a regular expression"
    return ""


def _response(result: BeatResult) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if result.assignment is not None:
        assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=row.topic_id, partitions=row.partitions)
                for row in by_topic(result.assignment)
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.interval_ms,
        assignment=assignment,
    )
