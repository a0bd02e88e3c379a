"""What the members of all groups of a broker may hold in its memory.

A member's metadata and assignment are usually some hundred bytes, and those are always taken.
What is large counts against one bound for all groups: Kafka has none, and two hundred JoinGroup
requests of a megabyte would hold hundreds of them until the sessions end.

What is held is counted while it is referred to, wherever that is: in a member, in a request that
waits, in a write on its way to the log.  It counts itself off when the last reference goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.coordinators.members import Protocols
from tidelog.errors import ApiError, ErrorCode

MAX_BYTES = 64 * 1024 * 1024
ALWAYS_TAKEN = 16 * 1024  # of one request


class GroupMemory:
    """See the module."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        self._most = most
        self.used = 0

    def protocols(self, protocols: Protocols) -> Protocols:
        """What a member says when it joins; GROUP_MAX_SIZE_REACHED if there is no room."""
        size = sum(len(name) + len(data) for name, data in protocols)
        if size <= ALWAYS_TAKEN:
            return protocols
        self._take(size)
        return _Protocols(protocols).counted(self, size)

    def assignments(self, assignments: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """What a leader hands in for the members."""
        size = sum(map(len, assignments.values()))
        if size <= ALWAYS_TAKEN:
            return assignments
        self._take(size)
        return {name: _Bytes(data).counted(self, len(data)) for name, data in assignments.items()}

    def _take(self, size: int) -> None:
        if self.used + size > self._most:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"{size} bytes of metadata or assignments, but the groups of this broker hold "
                f"{self.used} of at most {self._most} bytes already",
            )
        self.used += size


class _Protocols(tuple[tuple[str, bytes], ...]):
    memory: GroupMemory
    size: int

    def counted(self, memory: GroupMemory, size: int) -> _Protocols:
        self.memory, self.size = memory, size
        return self

    def __del__(self) -> None:
        self.memory.used -= self.size


class _Bytes(bytes):
    memory: GroupMemory
    size: int

    def counted(self, memory: GroupMemory, size: int) -> _Bytes:
        self.memory, self.size = memory, size
        return self

    def __del__(self) -> None:
        self.memory.used -= self.size
