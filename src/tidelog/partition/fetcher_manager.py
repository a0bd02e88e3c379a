"""All replica fetchers of a broker: which partition is fetched from which leader.

Kafka's ReplicaFetcherManager, with one fetcher for each leader.
"""

from __future__ import annotations

from tidelog.partition.partition import Partition
from tidelog.partition.replica_fetcher import FollowingBroker, Key, LeaderFetcher


class Fetchers:
    """See the module."""

    def __init__(self, broker: FollowingBroker) -> None:
        self._broker = broker
        self._by_leader: dict[int, LeaderFetcher] = {}
        self._leader_of: dict[Key, int] = {}
        self._held = False
        self._closed = False

    def hold(self) -> None:
        """Many partitions come one after the other: new ones break off no fetch until
        :meth:`release`, and then share one."""
        self._held = True

    def release(self) -> None:
        self._held = False
        for fetcher in self._by_leader.values():
            fetcher.go_on()

    def follow(self, partition: Partition, leader: int) -> None:
        """Fetch this partition from ``leader``, from now on."""
        if self._closed:
            return  # a late request of the controller, while the broker stops
        key = (partition.topic_id, partition.index)
        before = self._leader_of.get(key)
        if before is not None and before != leader:
            self.forget(partition)
        self._leader_of[key] = leader
        fetcher = self._by_leader.get(leader)
        if fetcher is None:
            fetcher = self._by_leader[leader] = LeaderFetcher(self._broker, leader)
            fetcher.task = self._broker.spawn(fetcher.run())
        fetcher.add(partition)
        if not self._held:
            fetcher.go_on()

    def forget(self, partition: Partition) -> None:
        """Fetch it no longer: we lead it, or have it no longer, or it has no leader."""
        key = (partition.topic_id, partition.index)
        leader = self._leader_of.pop(key, None)
        if leader is None:
            return
        fetcher = self._by_leader[leader]
        fetcher.remove(key)
        if not fetcher.partitions:
            del self._by_leader[leader]
            fetcher.close()

    def close(self) -> None:
        """Fetch nothing any more, whatever the controller asks for."""
        self._closed = True
        for fetcher in self._by_leader.values():
            fetcher.close()
        self._by_leader.clear()
        self._leader_of.clear()
