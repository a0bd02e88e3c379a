"""The members of a consumer group (KIP-848), their requests and the answers, and their way from
one assignment to the next.

    STABLE      it has what its epoch gives it
    UNREVOKED   it has to give up partitions, and has not said yet that it did
    UNRELEASED  it is to get partitions that another member has not given up yet

A member gives up first and gets afterwards; so no partition ever has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from tidelog.coordinators.groups.assignors import NO_SLOTS, Slot, Slots
from tidelog.coordinators.groups.members import Protocols
from tidelog.coordinators.groups.records import (
    AssignedPartitions,
    TopicPartitions,
)
from tidelog.errors import ErrorCode
from tidelog.settings import Settings
from tidelog.settings_table import GROUP_SETTINGS

LEFT, LEFT_FOR_A_WHILE = -1, -2  # epochs that mean: I go; I am static, and come back


class MemberState(IntEnum):
    """See the module.  The numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """What a consumer group may be; the settings ``group.consumer.*`` of the broker."""

    session_ms: int = 45_000
    heartbeat_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")  # the first one is the default
    upgrade: bool = True
    downgrade: bool = True

    @classmethod
    def of(cls, settings: Settings) -> ConsumerLimits:
        policy = settings["group.consumer.migration.policy"]
        return cls(
            settings["group.consumer.session.timeout.ms"],
            settings["group.consumer.heartbeat.interval.ms"],
            settings["group.consumer.max.size"],
            tuple(settings["group.consumer.assignors"]),
            upgrade=policy in ("bidirectional", "upgrade"),
            downgrade=policy in ("bidirectional", "downgrade"),
        )

    def with_config(self, config: Mapping[str, str]) -> ConsumerLimits:
        """With the group's own settings; they were checked when they were set."""
        values = {name: GROUP_SETTINGS[name].parse(value) for name, value in config.items()}
        return replace(
            self,
            session_ms=values.get("consumer.session.timeout.ms", self.session_ms),
            heartbeat_ms=values.get("consumer.heartbeat.interval.ms", self.heartbeat_ms),
        )


@dataclass(frozen=True, slots=True)
class Beat:
    """A ConsumerGroupHeartbeat request.  None: the same as before."""

    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Slots | None = None

    @property
    def full(self) -> bool:
        """It says everything, so it gets the whole assignment."""
        return self.epoch == 0 or (
            self.rebalance_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


class BeatResult(NamedTuple):
    """The answer to a Beat; no assignment means: the same as before."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Slots | None = None


@dataclass(frozen=True, slots=True)
class Classic:
    """What a member has said that still speaks the classic protocol."""

    session_ms: int
    protocols: Protocols


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """One member."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    rebalance_ms: int = -1
    assignor: str | None = None
    classic: Classic | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Slots = NO_SLOTS
    revoking: Slots = NO_SLOTS
    assigned_at: dict[Slot, int] = field(default_factory=dict)  # the epoch that gave it a partition
    deadline: int = field(default=0)  # when it is taken for dead
    act_by: int | None = None  # when it must have given up, or joined again, or synced

    @property
    def shown(self) -> str:
        """The member as a person knows it."""
        static = f"instance {self.instance_id}, " if self.instance_id else ""
        return f"{static}client {self.client_id!r} at {self.client_host}"

    def reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch


class Current(NamedTuple):
    """What a member has and has to do next."""

    epoch: int
    state: MemberState
    assigned: Slots
    revoking: Slots = NO_SLOTS


def reconcile(
    member: ConsumerMember,
    target: Slots,
    target_epoch: int,
    owned: Slots | None,
    is_free: Callable[[Slot], bool],
) -> Current:
    """The next step of a member towards its target; ``owned`` is what it says it holds."""
    epoch = member.epoch
    if member.state is MemberState.STABLE and epoch == target_epoch:
        return Current(epoch, member.state, member.assigned)
    if member.state is MemberState.UNREVOKED:
        if owned is None or owned & member.revoking:
            return Current(epoch, member.state, member.assigned, member.revoking)
        epoch += 1
    kept = member.assigned & target
    revoking = member.assigned - kept
    if revoking and (owned is None or owned & revoking):
        return Current(epoch, MemberState.UNREVOKED, kept, revoking)
    wanted = target - kept
    free = frozenset(slot for slot in wanted if is_free(slot))
    state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED
    return Current(target_epoch, state, kept | free)


def by_topic(slots: Iterable[Slot]) -> list[TopicPartitions]:
    """Partitions as records and messages list them."""
    found: dict[bytes, list[int]] = {}
    for topic, index in sorted(slots):
        found.setdefault(topic, []).append(index)
    return [TopicPartitions(topic_id=topic, partitions=rows) for topic, rows in found.items()]


def slots_of(rows: Iterable[TopicPartitions | AssignedPartitions]) -> Slots:
    return frozenset((row.topic_id, index) for row in rows for index in row.partitions)
