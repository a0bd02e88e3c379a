"""The members of a classic group, their requests and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.errors import ErrorCode
from tidelog.settings import Settings

Protocols = tuple[tuple[str, bytes], ...]  # (name, metadata), the preferred one first
Token = object  # stands for a request that waits; what it is only the owner knows


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a group may be; the settings ``group.*`` of the broker."""

    min_session_ms: int = 6_000
    max_session_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    initial_delay_ms: int = 0

    @classmethod
    def of(cls, settings: Settings) -> GroupLimits:
        return cls(
            settings["group.min.session.timeout.ms"],
            settings["group.max.session.timeout.ms"],
            settings["group.max.size"],
            settings["group.initial.rebalance.delay.ms"],
        )

    def allow_session(self, session_ms: int) -> bool:
        return self.min_session_ms <= session_ms <= self.max_session_ms


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request, whatever its version was."""

    member_id: str
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: Protocols
    instance_id: str | None = None
    reason: str = ""
    id_first: bool = True  # v4: a new member is given its id, and joins with it
    may_skip: bool = False  # v9: the answer may say that the assignment stays


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request; the leader brings the assignments."""

    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    protocol_type: str | None = None
    protocol: str | None = None


class JoinedMember(NamedTuple):
    """A member, as the answer to the leader lists it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to a Join; ``members`` are for the leader only."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    """The answer to a SyncGroup: what the member has to do."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class MemberStatus(NamedTuple):
    """Is a member alive, and does a rebalance wait for it?"""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    waited_for: bool
    away: bool = False  # static, stopped, and its place is kept
    silent_ms: int = -1  # since its last request; -1: it waits for us
    expires_in_ms: int = -1  # until it is taken for dead; -1: it waits for us


@dataclass(slots=True, eq=False)
class Member:
    """One member.  A token is a request of it that waits to be answered."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None
    is_new: bool = False  # has not been in any generation yet
    deadline: int = field(default=0)  # when it is taken for dead

    def update(self, request: Join) -> None:
        """Take over what it says about itself."""
        self.protocols = request.protocols
        self.session_ms, self.rebalance_ms = request.session_ms, request.rebalance_ms
        self.client_id, self.client_host = request.client_id, request.client_host

    @property
    def waits(self) -> bool:
        """Does it wait for our answer, so that it cannot send heartbeats?"""
        if self.sync_token is not None:
            return True
        return self.join_token is not None and not self.is_new

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def protocol_names(self) -> set[str]:
        """Each protocol once, however often the client says it."""
        return {name for name, _ in self.protocols}

    @property
    def shown(self) -> str:
        """The member as a person knows it."""
        static = f"instance {self.instance_id}, " if self.instance_id else ""
        return f"{static}client {self.client_id!r} at {self.client_host}"
