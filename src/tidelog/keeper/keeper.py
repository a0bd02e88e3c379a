"""The one interface to coordination: a tree of znodes, as ZooKeeper has it.

Two keepers serve it: ``embedded`` (in process, for one broker) and ``zookeeper`` (a real
ensemble).  The interface is asynchronous for both.  The embedded keeper's coroutines never
suspend, so that code above it runs as if it were called directly; those of ZooKeeper suspend
until the answer is there, and never block the event loop.  Code that reads, decides and writes
must therefore hold a lock, or write with the version that was read.  None of them waits for
longer than a moment while ZooKeeper is away.

A watch is ZooKeeper's: it is asked for with a read and fires once, in the event loop, when
what was read may have changed.  It also fires when the connection to ZooKeeper breaks, as
it is not known then what is missed.  So a watch says "look again", and no more than that.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class KeeperError(Exception):
    """The keeper refused or could not do it; nothing has changed."""


class ConnectionLost(KeeperError):
    """The connection broke before the answer came: it is not known whether it has happened."""


class Unreachable(ConnectionLost):
    """There is no connection, and none came soon.  Nothing was sent: nothing has changed."""


class NotWritten(KeeperError):
    """The embedded keeper's disk did not take it: nothing has changed."""


class SessionExpired(KeeperError):
    """The session is over, and its ephemeral znodes are gone.  Nothing has changed."""


class NoNode(KeeperError):
    """There is no such znode."""


class NodeExists(KeeperError):
    """There is such a znode already."""


class BadVersion(KeeperError):
    """The znode was changed in between."""


class NotEmpty(KeeperError):
    """The znode has children."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What the keeper knows about a znode; ``version`` guards conditional writes."""

    version: int
    czxid: int
    ephemeral: bool
    own: bool = False  # ephemeral, and of this very session
    mzxid: int = -1  # the transaction that wrote it last


@dataclass(frozen=True, slots=True)
class Create:
    """An operation of ``multi``; also creates missing parents.

    With ``sequential`` a number of ten digits is added to the name, larger than any before.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


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


@dataclass(frozen=True, slots=True)
class Check:
    """An operation of ``multi``: the others count only if a znode has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check
Watch = Callable[[], None]


class SessionEvent(enum.Enum):
    """What may happen to the session with the keeper."""

    SUSPENDED = "suspended"  # the connection broke; the session lives for a while
    CONNECTED = "connected"  # again
    EXPIRED = "expired"  # the ephemeral znodes are gone; a new session comes with CONNECTED


class Keeper(Protocol):
    """What the controller and the brokers need."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and facts.  The watch fires when either changes, or the znode goes."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """Data and facts of many znodes, None where there is none; each as of its own moment."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Facts, or None.  The watch also fires when the znode comes."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names, sorted.  The watch fires when one comes or goes."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[str]:
        """All of them or none; returns the paths of the operations, as they were created."""
        ...

    async def sync(self) -> None:
        """What is read from now on is at least as new as what anyone has read before."""
        ...

    async def reachable(self) -> None:
        """Return when there is a connection; Unreachable if none comes within a moment."""
        ...

    def problem(self) -> str:
        """Why there is no connection, and what to do; empty if there is one."""
        ...

    def on_session(self, listener: Callable[[SessionEvent], None]) -> None:
        """Call ``listener``, in the event loop, with what happens to the session."""
        ...

    async def close(self) -> None:
        """End the session: ephemeral znodes go."""
        ...
