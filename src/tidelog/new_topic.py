"""A topic to be created: the same value for a client, a broker and the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to make; -1 leaves a number to the broker."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[int]] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    topic_id: bytes | None = None  # of logs that are there already; never on the wire
