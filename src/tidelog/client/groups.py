"""Administration of consumer groups; each request goes to the group's coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidelog.client.cluster import Cluster, error_of
from tidelog.client.partitions import in_requests
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.topic_partition import TopicPartition
from tidelog.wire.consumer_protocol import PROTOCOL_TYPE, assigned_partitions
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.wire.messages.explain_group import (
    ExplainGroupRequest,
    ExplainGroupResponse,
    MemberStatus,
)
from tidelog.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidelog.wire.schema import Message

R = TypeVar("R", bound=Message)

EMPTY, STABLE, DEAD = "Empty", "Stable", "Dead"
CLASSIC, CONSUMER = "classic", "consumer"
_MEMBERS_NAMED = 3  # in the error of one who wants a group without members
_IN_A_REQUEST = 50  # groups: each may have offsets of thousands of partitions
_MANY_GROUPS = 8  # the first OffsetFetch that is about several
_BY_NAME = 9  # the newest OffsetCommit and OffsetFetch that name topics, not topic ids

# The coordinator is being made, is moving or reads its log.
_COORDINATOR_MOVED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in a list."""

    group_id: str
    type: str  # classic or consumer; empty if the broker does not say
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and the partitions that it has.

    None if that is not known: during a rebalance, or because only its client can read it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as its coordinator describes it."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: int
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for one partition."""

    offset: int
    leader_epoch: int
    metadata: str


def list_groups(
    cluster: Cluster, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[GroupRow]:
    """The groups of all brokers, in the order of their names."""
    found = []
    wanted = {kind.lower() for kind in types}
    for broker_id in sorted(cluster.metadata([]).brokers):
        request = ListGroupsRequest(states_filter=list(states))
        for _ in cluster.attempts():
            response = cluster.ask(request, ListGroupsResponse, broker=broker_id)
            if response.error_code not in _COORDINATOR_MOVED:
                break
        if response.error_code:
            raise error_of(response.error_code, None, f"broker {broker_id}")
        found += [
            GroupRow(row.group_id, row.group_type.lower(), row.group_state, row.protocol_type)
            for row in response.groups
            if not wanted or row.group_type.lower() in wanted
        ]
        cluster.coordinators.update((row.group_id, broker_id) for row in response.groups)
    return sorted(found, key=lambda row: row.group_id)


def describe_group(cluster: Cluster, group_id: str) -> GroupView:
    """State and members of a group; an error if there is none."""
    request = DescribeGroupsRequest(groups=[group_id])
    node, response = _ask_coordinator(
        cluster,
        group_id,
        request,
        DescribeGroupsResponse,
        lambda r: r.groups[0].error_code,
    )
    row = response.groups[0]
    if row.error_code not in (0, ErrorCode.GROUP_ID_NOT_FOUND):
        raise error_of(row.error_code, row.error_message, f"group {group_id!r}")
    if row.error_code or row.group_state == DEAD:
        return _describe_consumer_group(cluster, group_id)
    return _view(row, node)


def _view(row: DescribedGroup, node: int) -> GroupView:
    return GroupView(
        row.group_id,
        CLASSIC,
        row.group_state,
        row.protocol_type,
        row.protocol_data,
        node,
        _members(row),
    )


def describe_together(
    cluster: Cluster, group_ids: Iterable[str]
) -> dict[str, tuple[GroupView, dict[TopicPartition, CommittedOffset]]]:
    """Members and offsets of the groups that can be asked about in one request: classic ones whose
    coordinator is known, and is new enough.  The others are to be asked about one by one."""
    found = {}
    by_node: dict[int, list[str]] = {}
    for group_id in group_ids:
        if group_id in cluster.coordinators:
            by_node.setdefault(cluster.coordinators[group_id], []).append(group_id)
    for node, known in by_node.items():
        version = cluster.connection_to(node).version_of(OffsetFetchRequest, _BY_NAME)
        for some in in_requests(known, _IN_A_REQUEST) if version >= _MANY_GROUPS else ():
            request = DescribeGroupsRequest(groups=some)
            rows = cluster.ask(request, DescribeGroupsResponse, broker=node).groups
            views = {
                row.group_id: _view(row, node)
                for row in rows
                if not row.error_code and row.group_state != DEAD
            }
            asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in views]
            if asked:
                fetch = OffsetFetchRequest(group_id="", topics=None, groups=asked)
                response = cluster.ask(fetch, OffsetFetchResponse, broker=node, at_most=_BY_NAME)
                for group in response.groups:
                    if not group.error_code:
                        found[group.group_id] = views[group.group_id], _committed(group.topics)
    return found


def _describe_consumer_group(cluster: Cluster, group_id: str) -> GroupView:
    """A group of the consumer protocol (KIP-848), which DescribeGroups does not know."""
    try:
        node, response = _ask_coordinator(
            cluster,
            group_id,
            ConsumerGroupDescribeRequest(group_ids=[group_id]),
            ConsumerGroupDescribeResponse,
            lambda r: r.groups[0].error_code,
        )
    except ApiError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise no_such_group(group_id) from None  # a broker from before KIP-848
    row = response.groups[0]
    if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise no_such_group(group_id)
    if row.error_code:
        raise error_of(row.error_code, row.error_message, f"group {group_id!r}")
    members = [
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host.removeprefix("/"),
            tuple(
                sorted(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                )
            ),
        )
        for member in row.members
    ]
    members.sort(key=lambda member: (member.client_id, member.member_id))
    return GroupView(
        group_id, CONSUMER, row.group_state, PROTOCOL_TYPE, row.assignor_name, node, tuple(members)
    )


def no_such_group(group_id: str) -> ApiError:
    message = f"there is no group {group_id!r}; see `tidelog groups list`"
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _members(row: DescribedGroup) -> tuple[GroupMember, ...]:
    members = []
    for member in row.members:
        partitions = None
        if row.protocol_type == PROTOCOL_TYPE and row.group_state == STABLE:
            places = assigned_partitions(member.member_assignment)
            if places is not None:
                partitions = tuple(sorted(TopicPartition(*place) for place in places))
        members.append(
            GroupMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host.removeprefix("/"),
                partitions,
            )
        )
    return tuple(sorted(members, key=lambda member: (member.client_id, member.member_id)))


def committed_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, CommittedOffset]:
    """Everything that a group has committed."""
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=None,
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)],
    )
    _, response = _ask_coordinator(
        cluster,
        group_id,
        request,
        OffsetFetchResponse,
        lambda r: r.groups[0].error_code if r.groups else r.error_code,
        at_most=_BY_NAME,
    )
    code = response.groups[0].error_code if response.groups else response.error_code
    if code:
        raise error_of(code, None, f"group {group_id!r}")
    return _committed(response.groups[0].topics if response.groups else response.topics)


def _committed(
    topics: Iterable[OffsetFetchResponseTopic | OffsetFetchResponseTopics],
) -> dict[TopicPartition, CommittedOffset]:
    return {
        TopicPartition(topic.name, part.partition_index): CommittedOffset(
            part.committed_offset, part.committed_leader_epoch, part.metadata or ""
        )
        for topic in topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def set_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, ApiError | None]:
    """Commit offsets for a group that has no members; None, or an error, for each."""
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for place, offset in offsets.items():
        row = OffsetCommitRequestPartition(
            partition_index=place.partition, committed_offset=offset, committed_metadata=""
        )
        by_topic.setdefault(place.topic, []).append(row)
    request = OffsetCommitRequest(
        group_id=group_id,
        member_id="",
        topics=[
            OffsetCommitRequestTopic(name=topic, partitions=rows)
            for topic, rows in by_topic.items()
        ],
    )
    _, response = _ask_coordinator(
        cluster,
        group_id,
        request,
        OffsetCommitResponse,
        lambda r: r.topics[0].partitions[0].error_code,
        at_most=_BY_NAME,
    )
    results: dict[TopicPartition, ApiError | None] = {}
    for topic in response.topics:
        for part in topic.partitions:
            place = TopicPartition(topic.name, part.partition_index)
            error = None
            if part.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                error = active_error(cluster, group_id)
            elif part.error_code:
                error = error_of(part.error_code, None, str(place))
            results[place] = error
    return results


def active_error(cluster: Cluster, group_id: str) -> ApiError:
    """Offsets of a group that is at work belong to its members: who are they?"""
    status = explained(cluster, group_id)
    if status is not None:
        names = [member_text(member) for member in status.members]
    else:
        names = [
            f"{member.member_id} (client {member.client_id!r} at {member.host})"
            for member in describe_group(cluster, group_id).members
        ]
    count = plural(len(names), "member") if names else "members"
    shown = "; ".join(names[:_MEMBERS_NAMED])
    more = f" and {len(names) - _MEMBERS_NAMED} more" if len(names) > _MEMBERS_NAMED else ""
    return ApiError(
        ErrorCode.NON_EMPTY_GROUP,
        f"group {group_id!r} has {count}: stop its consumers first"
        + (f": {shown}{more}" if shown else ""),
    )


def delete_groups(cluster: Cluster, names: Iterable[str]) -> dict[str, ApiError | None]:
    """Forget groups and their offsets; None, or an error, for each."""
    results: dict[str, ApiError | None] = {}
    for name in names:
        _, response = _ask_coordinator(
            cluster,
            name,
            DeleteGroupsRequest(groups_names=[name]),
            DeleteGroupsResponse,
            lambda r: r.results[0].error_code,
        )
        code = response.results[0].error_code
        if code == ErrorCode.GROUP_ID_NOT_FOUND:
            results[name] = no_such_group(name)
        elif code == ErrorCode.NON_EMPTY_GROUP:
            results[name] = active_error(cluster, name)
        elif code == ErrorCode.INVALID_GROUP_ID and not name:
            results[name] = ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        else:
            results[name] = error_of(code, None, f"group {name!r}") if code else None
    return results


def explain_group(cluster: Cluster, group_id: str) -> ExplainGroupResponse:
    """What happened to a group.  Only tidelog can say: an error from any other broker."""
    _, response = _ask_coordinator(
        cluster,
        group_id,
        ExplainGroupRequest(group_id=group_id),
        ExplainGroupResponse,
        lambda r: r.error_code,
    )
    if response.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise no_such_group(group_id)
    if response.error_code:
        raise error_of(response.error_code, response.error_message, f"group {group_id!r}")
    return response


def explained(cluster: Cluster, group_id: str) -> ExplainGroupResponse | None:
    """The same; None if the broker is not tidelog, or there is no such group."""
    try:
        return explain_group(cluster, group_id)
    except ApiError as error:
        if error.code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND):
            raise
        return None


def member_text(member: MemberStatus) -> str:
    """Who a member is, and how long it will be waited for."""
    static = f"instance {member.instance_id!r}, " if member.instance_id is not None else ""
    times = ""
    if member.expires_in_ms >= 0:
        state = "away" if member.away else f"silent for {round(member.silent_ms / 1000)} s"
        times = f", {state}, expires in {round(member.expires_in_ms / 1000)} s"
    who = f"client {member.client_id!r} at {member.client_host}"
    return f"{member.member_id} ({static}{who}{times})"


def _ask_coordinator(
    cluster: Cluster,
    group_id: str,
    request: Message,
    answer: type[R],
    code: Callable[[R], int],
    at_most: int | None = None,
) -> tuple[int, R]:
    """Ask the coordinator of a group, and its successor if it has just moved."""
    for _ in cluster.attempts():
        node = coordinator(cluster, group_id)
        response = cluster.ask(request, answer, broker=node, at_most=at_most)
        if code(response) not in _COORDINATOR_MOVED:
            break
        cluster.coordinators.pop(group_id, None)
    return node, response


def coordinator(cluster: Cluster, group_id: str) -> int:
    """The broker that coordinates a group, whether there is such a group or not."""
    if group_id in cluster.coordinators:
        return cluster.coordinators[group_id]
    request = FindCoordinatorRequest(key=group_id, key_type=0, coordinator_keys=[group_id])
    for _ in cluster.attempts():
        response = cluster.ask(request, FindCoordinatorResponse)
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code not in _COORDINATOR_MOVED:
            break
    if found.error_code:
        raise error_of(found.error_code, found.error_message, f"group {group_id!r}")
    cluster.coordinators[group_id] = found.node_id
    return found.node_id
