"""ConsumerGroupHeartbeat: everything that a member of a consumer group says (KIP-848).

It joins with epoch 0, says what it wants to read and what it holds, hears what it should
hold, and leaves with epoch -1, or -2 if it is static and comes back.
Versions: 1 regular expressions, and the client makes its member id by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.deferred import client_id, read_request, reply_later
from tidelog.broker.dispatch import Frame, raw_api
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


@raw_api(ConsumerGroupHeartbeatRequest, versions=(0, 1))
def consumer_group_heartbeat(broker: Broker, frame: Frame) -> None:
    """Join a consumer group of the new protocol, stay in it, and leave it."""
    request = read_request(ConsumerGroupHeartbeatRequest, frame)
    send = reply_later(frame)
    try:
        if not broker.groups.consumer_protocol:
            message = "group.coordinator.rebalance.protocols has no consumer"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, message)
        _check(request, frame.version, broker.groups.consumer_limits.assignors)
        topics, owned = request.subscribed_topic_names, request.topic_partitions
        beat = Beat(
            request.member_id,
            request.member_epoch,
            client_id(frame),
            frame.connection.peer_host,
            request.instance_id,
            request.rack_id,
            request.rebalance_timeout_ms,
            None if topics is None else frozenset(topics),
            request.subscribed_topic_regex,
            request.server_assignor,
            None
            if owned is None
            else frozenset((row.topic_id, index) for row in owned for index in row.partitions),
        )
        broker.groups.consumer_heartbeat(request.group_id, beat, lambda r: send(_response(r)))
    except ApiError as error:
        if error.code == ErrorCode.GROUP_MAX_SIZE_REACHED:
            peer = frame.connection.peer
            message = f"{peer}: group {request.group_id[:100]!r}: {error.message}; refused"
            broker.server.complain("group memory", message)
        send(_response(BeatResult(error.code, error.message)))


def _check(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> None:
    """Refuse what no client should send."""
    epoch, problem = request.member_epoch, ""
    ids = (request.member_id, request.instance_id, request.rack_id)
    if not request.group_id:
        problem = "the group id is empty"
    elif request.instance_id == "" or request.rack_id == "":
        problem = "an instance id or rack id that is there must not be empty"
    elif any(len(i or "") > _LONGEST_ID for i in ids):
        problem = f"an id has more than {_LONGEST_ID} characters"
    elif sum(map(len, request.subscribed_topic_names or ())) > _MOST_TOPICS:
        problem = f"the names of the topics have more than {_MOST_TOPICS} characters"
    elif epoch < LEFT_FOR_A_WHILE:
        problem = f"there is no member epoch {epoch}"
    elif not request.member_id and (epoch != 0 or version >= _OWN_ID):
        problem = "the member id is empty"
    elif epoch == LEFT_FOR_A_WHILE and request.instance_id is None:
        problem = f"only a member with an instance id can leave with epoch {epoch}"
    elif epoch == 0:
        problem = _missing(request)
    if problem:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    assignor = request.server_assignor
    if assignor is not None and assignor not in assignors and epoch != LEFT:
        message = f"there is no assignor {assignor!r}, only {', '.join(assignors)}"
        raise ApiError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _missing(request: ConsumerGroupHeartbeatRequest) -> str:
    """What is wrong with a request to join."""
    if request.rebalance_timeout_ms < 0:
        return "who joins must say its rebalance timeout"
    if request.topic_partitions is None or request.topic_partitions:
        return "who joins must own nothing, and say so"
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
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
