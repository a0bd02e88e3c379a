"""The in-sync set: what a leader knows of its followers.  No I/O, and the time is injected.

A follower's fetch offset is its log end: it has everything below.  It is caught up when it has
fetched up to the leader's end, or up to where that end was at its fetch before: a follower of
a busy leader is always a little behind.

Changes of the in-sync set are proposed to the controller, and count when it has agreed
(KIP-497).  Meanwhile both count: the high watermark waits for every replica in the old set or in
the new one.

Under constant load the end moves on between any two fetches of a follower, and alone in sync the
leader would commit that at once: the follower could never show that it has all that is committed.
So the high watermark waits for the next fetch of one that keeps pace and may come into sync, where
the log ended at its last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

_REFUSED_MS = 1000  # until a replica that cannot be in sync is proposed again


@dataclass(slots=True)
class FollowerState:
    """How far one follower is."""

    end_offset: int = -1  # not known before its first fetch
    log_start_offset: int = -1
    caught_up_ms: int = 0  # when it had all there was
    fetched_ms: int = 0
    leader_end: int = 0  # at that fetch
    broker_epoch: int = -1  # at that fetch: a broker that was restarted has another one
    refused_ms: int | None = None  # the fetch after which the controller did not take it


class InSync:
    """The followers of one partition, and the in-sync set."""

    def __init__(
        self,
        leader: int,
        replicas: Iterable[int],
        isr: Iterable[int],
        partition_epoch: int,
        now_ms: int,
    ) -> None:
        self.leader = leader
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        self.proposed: tuple[int, ...] | None = None
        self.proposed_epochs: dict[int, int] = {}  # the broker epochs of the followers in it
        # Followers that may come into sync with their next fetch, and the log end to wait at.
        self.awaited: dict[int, int] = {}
        # None is late at first: a replica in sync has the lag time to show that it is there.
        self.followers = {b: FollowerState(caught_up_ms=now_ms) for b in replicas if b != leader}

    def reassigned(self, replicas: Iterable[int], now_ms: int) -> None:
        """The same leader goes on with other replicas."""
        known = self.followers
        self.followers = {
            b: known.get(b) or FollowerState(caught_up_ms=now_ms)
            for b in replicas
            if b != self.leader
        }
        self.awaited = {b: end for b, end in self.awaited.items() if b in self.followers}

    # -- facts ------------------------------------------------------------------

    def fetched(
        self, follower: int, offset: int, leader_end: int, now_ms: int, broker_epoch: int = -1
    ) -> bool:
        """A follower asks for ``offset``; False if it is no replica of this partition, or has
        been restarted since it asked."""
        state = self.followers.get(follower)
        if state is None or -1 < broker_epoch < state.broker_epoch:
            return False
        if self.awaited:
            self.awaited.pop(follower, None)
        keeps_pace = False
        if offset >= leader_end:
            state.caught_up_ms = now_ms
        elif offset >= state.leader_end and state.fetched_ms:
            state.caught_up_ms = max(state.caught_up_ms, state.fetched_ms)
            keeps_pace = True
        state.end_offset = offset
        state.broker_epoch = broker_epoch
        state.fetched_ms = now_ms
        state.leader_end = leader_end
        if keeps_pace and self._may_be_added(follower):
            self.awaited[follower] = leader_end
        return True

    def no_longer_await(self, follower: int, leader_end: int) -> None:
        """It has taken too long since its fetch when the log ended there."""
        if self.awaited.get(follower) == leader_end:
            del self.awaited[follower]

    def starts_at(self, follower: int, log_start_offset: int) -> bool:
        """The log of a follower starts there; False if that is no news."""
        state = self.followers[follower]
        before, state.log_start_offset = state.log_start_offset, log_start_offset
        return before != log_start_offset

    # -- conclusions ------------------------------------------------------------

    def high_watermark(self, leader_end: int) -> int:
        """Up to here all replicas have it that are in sync, or are about to be."""
        lowest = leader_end
        for broker in self.isr if self.proposed is None else {*self.isr, *self.proposed}:
            state = self.followers.get(broker)
            if state is not None and state.end_offset < lowest:
                lowest = state.end_offset
        if self.awaited:
            lowest = min(lowest, *self.awaited.values())
        return lowest

    def low_watermark(self, leader_start: int, live: Collection[int]) -> int:
        """Below here no replica on a live broker has a record any more."""
        starts = (f.log_start_offset for broker, f in self.followers.items() if broker in live)
        return min((leader_start, *starts))

    def to_add(
        self, follower: int, high_watermark: int, epoch_start: int
    ) -> tuple[int, ...] | None:
        """The in-sync set with a follower that has just fetched, if it has caught up.

        It needs everything that is committed, and also what was in the log when this leader
        began: the high watermark of a new leader may be an old one.  Only the
        follower that fetches now counts: others may be dead, or come back with less than they had.
        """
        if not self._may_be_added(follower):
            return None
        enough = self.followers[follower].end_offset >= max(high_watermark, epoch_start)
        return (*self.isr, follower) if enough else None

    def _may_be_added(self, follower: int) -> bool:
        if self.proposed is not None or follower in self.isr:
            return False
        state = self.followers[follower]
        # Soon after a refusal, it would be the same answer again.
        return state.refused_ms is None or not (
            0 <= state.fetched_ms - state.refused_ms < _REFUSED_MS
        )

    def to_drop(self, leader_end: int, now_ms: int, max_lag_ms: int) -> tuple[int, ...] | None:
        """The in-sync set without followers that are late for too long, if there are any."""
        if self.proposed is not None:
            return None
        late = {
            broker
            for broker in self.isr
            if (state := self.followers.get(broker)) is not None
            and state.end_offset < leader_end
            and now_ms - state.caught_up_ms > max_lag_ms
        }
        return tuple(b for b in self.isr if b not in late) if late else None

    def furthest(self, among: Collection[int], offset: int) -> int:
        """Of these followers, the one that has most, if it has ``offset``; else -1."""
        have = {
            broker: state.end_offset
            for broker, state in self.followers.items()
            if broker in among and state.end_offset >= offset
        }
        return max(have, key=lambda broker: (have[broker], -broker), default=-1)

    # -- the controller's answer --------------------------------------------------

    def propose(self, isr: tuple[int, ...]) -> None:
        self.proposed = isr
        # As they are now, however long the controller takes: a follower that is restarted
        # meanwhile may come back with less than it has (KIP-903).
        self.proposed_epochs = {
            broker: state.broker_epoch for broker, state in self.followers.items() if broker in isr
        }
        # The high watermark waits for a proposed replica anyway, and for a dead one no longer
        # than it is in sync.
        self.awaited = {b: end for b, end in self.awaited.items() if b not in isr}

    def decided(self, isr: Iterable[int], partition_epoch: int) -> bool:
        """What the controller has decided; False if that is no news.

        Then a proposal that is under way stands: the controller may have agreed to it by now,
        and the high watermark must wait for every replica that may be in sync.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        self.proposed = None
        return True

    def answered(self, asked: tuple[int, ...], isr: tuple[int, ...], partition_epoch: int) -> bool:
        """The controller's answer to a proposal; False if nothing has changed."""
        if partition_epoch == self.partition_epoch and self.proposed == asked:
            self.proposed = None  # it was so already
        return self.decided(isr, partition_epoch)

    def refused(self, asked: tuple[int, ...]) -> None:
        """The controller has surely not agreed: replicas that are not in sync do not count."""
        if self.proposed != asked:
            return
        self.proposed = None
        for broker in asked:
            state = self.followers.get(broker)
            if state is not None and broker not in self.isr:
                state.refused_ms = state.fetched_ms
