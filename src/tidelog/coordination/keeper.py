"""The one interface to coordination: a tree of znodes, as ZooKeeper has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class KeeperError(Exception):
    """The keeper refused or could not do it; nothing has changed."""


class NoNode(KeeperError):
    """There is no such znode."""


class NodeExists(KeeperError):
    """There is such a znode already."""


class BadVersion(KeeperError):
    """Somebody else changed the znode in between."""


class NotEmpty(KeeperError):
    """The znode has children."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What the keeper knows about a znode; ``version`` guards conditional writes."""

    version: int
    czxid: int
    ephemeral: bool


@dataclass(frozen=True, slots=True)
class Create:
    """An operation of ``multi``; also creates missing parents."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """An operation of ``multi``; ``version`` -1 writes whatever is there."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """An operation of ``multi``; with ``recursive`` the children go too."""

    path: str
    version: int = -1
    recursive: bool = False


Operation = Create | Set | Delete


class Keeper(Protocol):
    """What the controller and the brokers need."""

    async def get(self, path: str) -> tuple[bytes, Stat]: ...

    async def exists(self, path: str) -> Stat | None: ...

    async def children(self, path: str) -> list[str]: ...

    async def multi(self, operations: Sequence[Operation]) -> None:
        """All of them or none."""
        ...

    async def close(self) -> None:
        """End the session: ephemeral znodes go."""
        ...
