"""What has happened to a group, for ``tidelog groups explain``: who, what and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

KEPT = 200  # events of one group; the newest
_LONGEST_CAUSE = 500  # clients may give a reason of 32 KiB
# What a client may do every few seconds, for ever: the newest few of a row are kept.
_REPEATED = frozenset({"committed", "refused"})
_IN_A_ROW = 5


class Event(NamedTuple):
    """One thing that happened; ``generation`` is the group's after it."""

    time_ms: int
    kind: str  # joined, left, expired, rebalance, ...: the list is in docs/groups.md
    generation: int
    member_id: str
    cause: str


class Timeline:
    """The newest events of a group, oldest first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT)

    def add(self, time_ms: int, kind: str, generation: int, member_id: str, cause: str) -> None:
        events = self._events
        newest = list(events)[-_IN_A_ROW:] if kind in _REPEATED else []
        if [event.kind for event in newest] == [kind] * _IN_A_ROW:
            del events[-_IN_A_ROW]
        events.append(Event(time_ms, kind, generation, member_id, cause[:_LONGEST_CAUSE]))

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self._events))
