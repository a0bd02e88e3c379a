"""How fast replicas that are moved may be copied, so that clients do not notice.  No I/O.

As in Kafka: a broker has a rate for what it sends as a leader and one for what it fetches as a
follower, and the settings of a topic name the replicas that count: ``0:1,0:2`` is partition 0
on brokers 1 and 2, ``*`` is all of them.  Only a replica that is not in sync is held up: one
that keeps up must not fall behind because another one moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.clock import Clock
from tidelog.settings_table import LONG_MAX

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

_BURST_SECONDS = 1.0  # what was not used for longer than this is lost
_LOOK_AGAIN = 1.0  # with a rate of 0, which may be raised


class Throttle:
    """A bucket that leaks at the rate: what is above its rim has to wait.

    A fetch takes what it takes, up to ``replica.fetch.response.max.bytes``; the next ones pay
    for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = LONG_MAX
        self._level = 0.0  # bytes; below 0: may be taken at once
        self._since = clock.monotonic()

    def limit(self, bytes_per_second: int) -> None:
        """From now on at this rate."""
        if bytes_per_second != self._rate:
            self._rate, self._level = bytes_per_second, 0.0
            self._since = self._clock.monotonic()

    def took(self, size: int) -> None:
        """So many bytes of throttled replicas went through."""
        self._leak()
        self._level += size

    @property
    def wait_seconds(self) -> float:
        """How long throttled replicas have to wait now; 0 if not at all."""
        if self._rate == LONG_MAX:
            return 0.0
        self._leak()
        if self._rate == 0:
            return _LOOK_AGAIN
        return max(0.0, self._level / self._rate)

    def _leak(self) -> None:
        now = self._clock.monotonic()
        level = self._level - self._rate * (now - self._since)
        self._level, self._since = max(level, -_BURST_SECONDS * self._rate), now


def is_throttled(replicas: Sequence[str], partition: int, broker: int) -> bool:
    """Whether a topic's setting names this replica."""
    return bool(replicas) and (replicas[0] == "*" or f"{partition}:{broker}" in replicas)
