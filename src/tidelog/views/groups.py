"""Consumer groups: members, committed offsets and lag, as their coordinators describe them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog.client import groups as asking
from tidelog.client.cluster import NO_LEADER, Cluster
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.groups import CommittedOffset, GroupMember, GroupView
from tidelog.client.offsets import Extent
from tidelog.client.partitions import extents
from tidelog.errors import ApiError, ErrorCode
from tidelog.topic_partition import TopicPartition
from tidelog.views.times import time_text
from tidelog.wire.messages.explain_group import ExplainGroupResponse, MemberStatus

BEFORE, BEYOND = "before the start", "beyond the end"


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition that a member has."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member.  Whether it is waited for, away or silent, only tidelog says: else None."""

    member: str
    instance: str | None
    client: str
    host: str
    partitions: list[Assigned] | None  # None: not known, during a rebalance for instance
    waited_for: bool | None
    away: bool | None
    silent_ms: int | None
    expires_in_ms: int | None


@dataclass(frozen=True, slots=True)
class OffsetDescription:
    """A partition that a group has committed an offset for, or has assigned to a member."""

    topic: str
    partition: int
    committed: int | None
    leader_epoch: int | None
    metadata: str | None
    start: int | None
    end: int | None
    lag: int | None
    note: str | None  # BEFORE or BEYOND what the log has
    member: str | None
    instance: str | None
    client: str | None
    host: str | None

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class LostOffset:
    """An offset that the group has lost."""

    topic: str
    partition: int
    removed_at: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group; with an error nothing else is known."""

    group: str
    type: str | None = None
    state: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    coordinator: int | None = None
    lag: int | None = None
    members: list[MemberDescription] = field(default_factory=list)
    partitions: list[OffsetDescription] = field(default_factory=list)
    removed_offsets: list[LostOffset] = field(default_factory=list)
    error: str | None = None


def describe_groups(cluster: Cluster, names: Iterable[str]) -> list[GroupDescription]:
    """These groups, or all if none is named."""
    wanted = list(dict.fromkeys(names))
    listed = not wanted
    if listed:
        wanted = [row.group_id for row in asking.list_groups(cluster)]
    together = asking.describe_together(cluster, wanted)
    found: dict[str, _Asked | ApiError] = {}
    for name in wanted:
        try:
            found[name] = _Asked(cluster, name, together.get(name))
        except BrokerUnreachable:
            raise
        except ApiError as error:
            # One that was listed may have gone since.
            if not listed or error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                found[name] = error
    asked = [one for one in found.values() if isinstance(one, _Asked)]
    logs = _logs(cluster, {place for one in asked for place in one.places})
    return [
        GroupDescription(name, error=one.message) if isinstance(one, ApiError) else one.view(logs)
        for name, one in found.items()
    ]


class _Asked:
    """What the coordinator of a group answers about it."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        known: tuple[GroupView, dict[TopicPartition, CommittedOffset]] | None,
    ) -> None:
        self._status = asking.explained(cluster, name)
        if known is not None:
            self._group, self._committed = known
        else:
            self._group = self._describe(cluster, name)
            self._committed = asking.committed_offsets(cluster, name)
        self._owners = {
            place: member for member in self._group.members for place in member.partitions or ()
        }
        self.places = sorted(self._committed.keys() | self._owners.keys())

    def _describe(self, cluster: Cluster, name: str) -> GroupView:
        try:
            return asking.describe_group(cluster, name)
        except ApiError as error:
            # When its last offset has gone, a group without members goes too; the reason stays.
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND or not removed_offsets(self._status):
                raise
            node = asking.coordinator(cluster, name)
            return GroupView(name, "", asking.DEAD, "", "", node, ())

    def view(self, logs: dict[TopicPartition, Extent]) -> GroupDescription:
        group = self._group
        partitions = [
            _partition(place, self._committed.get(place), logs.get(place), self._owners.get(place))
            for place in self.places
        ]
        known = [row.lag for row in partitions if row.lag is not None]
        statuses = {row.member_id: row for row in self._status.members} if self._status else {}
        return GroupDescription(
            group.group_id,
            group.type or None,
            group.state,
            group.protocol_type,
            group.protocol,
            group.coordinator,
            sum(known) if known else None,
            [_member(member, statuses.get(member.member_id)) for member in group.members],
            partitions,
            removed_offsets(self._status),
        )


def _logs(cluster: Cluster, places: set[TopicPartition]) -> dict[TopicPartition, Extent]:
    """Where the logs of these partitions begin and end, of those that have a leader."""
    topics = cluster.metadata({place.topic for place in places}).topics if places else {}
    led = {
        TopicPartition(topic.name, part.index)
        for topic in topics.values()
        for part in topic.partitions
        if part.leader != NO_LEADER and not topic.error
    }
    return extents(cluster, sorted(places & led), known_only=True)


def _partition(
    place: TopicPartition,
    committed: CommittedOffset | None,
    log: Extent | None,
    owner: GroupMember | None,
) -> OffsetDescription:
    lag = note = None
    if log is not None and committed is not None:
        lag = max(0, log.end - max(committed.offset, log.start))
        if committed.offset < log.start:
            note = BEFORE
        elif committed.offset > log.end:
            note = BEYOND
    return OffsetDescription(
        place.topic,
        place.partition,
        committed.offset if committed else None,
        committed.leader_epoch if committed else None,
        committed.metadata if committed else None,
        log.start if log else None,
        log.end if log else None,
        lag,
        note,
        owner.member_id if owner else None,
        owner.instance_id if owner else None,
        owner.client_id if owner else None,
        owner.host if owner else None,
    )


def _member(member: GroupMember, status: MemberStatus | None) -> MemberDescription:
    partitions = None
    if member.partitions is not None:
        partitions = [Assigned(*place) for place in member.partitions]
    return MemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.host,
        partitions,
        status.waited_for if status else None,
        status.away if status else None,
        _known(status.silent_ms) if status else None,
        _known(status.expires_in_ms) if status else None,
    )


def _known(milliseconds: int) -> int | None:
    return milliseconds if milliseconds >= 0 else None


def removed_offsets(status: ExplainGroupResponse | None) -> list[LostOffset]:
    return [
        LostOffset(row.topic, row.partition, time_text(row.removed_at_ms), row.reason)
        for row in (status.removed_offsets if status else ())
    ]


# -- what happened to a group -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """Something that happened to a group."""

    time: str
    event: str
    generation: int
    member: str
    cause: str


@dataclass(frozen=True, slots=True)
class CurrentMember:
    """A member; which partitions it has, the history does not say."""

    member: str
    instance: str | None
    client: str
    host: str
    waited_for: bool
    away: bool
    silent_ms: int | None
    expires_in_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """What happened to a group, and who its members are."""

    group: str
    generation: int | None = None
    events: list[HistoryEvent] = field(default_factory=list)
    members: list[CurrentMember] = field(default_factory=list)
    removed_offsets: list[LostOffset] = field(default_factory=list)
    error: str | None = None


def group_history(name: str, found: ExplainGroupResponse) -> GroupHistory:
    return GroupHistory(
        name,
        found.generation,
        [
            HistoryEvent(time_text(row.time_ms), row.kind, row.generation, row.member_id, row.cause)
            for row in found.events
        ],
        [
            CurrentMember(
                row.member_id,
                row.instance_id,
                row.client_id,
                row.client_host,
                row.waited_for,
                row.away,
                _known(row.silent_ms),
                _known(row.expires_in_ms),
            )
            for row in found.members
        ],
        removed_offsets(found),
    )
