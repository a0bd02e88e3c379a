"""What the members of all groups of a broker may hold in its memory.

A member's metadata, its topics and its assignment are usually some hundred bytes.  Everything
counts against one bound for all groups: Kafka has none, and two hundred JoinGroup requests of a
megabyte would hold hundreds of them until the sessions end.  For small ones the bound is larger,
so that ordinary members get in when large ones have used up theirs.

What is held is counted while it is referred to, wherever that is: in a member, in a request that
waits, in a write on its way to the log.  It counts itself off when the last reference goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from tidelog.coordinators.groups.members import Protocols
from tidelog.errors import ApiError, ErrorCode

MAX_BYTES = 64 * 1024 * 1024
SMALL = 16 * 1024  # one request that has at most so much is small
_SMALL_TOO = 2  # times the bound
_EACH = 100  # about what Python adds to a string


class GroupMemory:
    """See the module."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        self._most = most
        self.used = 0

    def protocols(self, protocols: Protocols) -> Protocols:
        """What a member says when it joins; GROUP_MAX_SIZE_REACHED if there is no room."""
        size = sum(len(name) + len(data) + 2 * _EACH for name, data in protocols)
        self._take(size)
        return _Protocols(protocols).counted(self, size)

    def topics(self, topics: frozenset[str]) -> frozenset[str]:
        """What a member of a consumer group says that it reads."""
        size = sum(map(len, topics)) + len(topics) * _EACH
        self._take(size)
        return _Topics(topics).counted(self, size)

    def assignments(self, assignments: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """What a leader hands in for the members."""
        sizes = {name: len(data) + _EACH for name, data in assignments.items()}
        self._take(sum(sizes.values()))
        return {n: _Bytes(data).counted(self, sizes[n]) for n, data in assignments.items()}

    def _take(self, size: int) -> None:
        most = self._most * _SMALL_TOO if size <= SMALL else self._most
        if self.used + size > most:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"{size} bytes of metadata or assignments, but the groups of this broker hold "
                f"{self.used} of at most {most} bytes already",
            )
        self.used += size


class _Counted:
    memory: GroupMemory
    size: int

    def counted(self, memory: GroupMemory, size: int) -> Self:
        self.memory, self.size = memory, size
        return self

    def __del__(self) -> None:
        self.memory.used -= self.size


class _Protocols(_Counted, tuple[tuple[str, bytes], ...]):
    pass


class _Topics(_Counted, frozenset[str]):
    pass


class _Bytes(_Counted, bytes):
    pass
