"""Propagation of the controller's decisions to the brokers.

There is a channel to each live broker (``broker_channel.py``).  New metadata is compared with the
metadata before, and each channel notes what of the difference concerns its broker.  The controller
reaches its own broker by a local call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.controller.broker_channel import Channel, LocalCall
from tidelog.controller.host import ControllerHost
from tidelog.controller.store import Key
from tidelog.metadata import BrokerInfo, ClusterMetadata, TopicInfo

_LOOK_SECONDS = 0.01
_SHORT_SECONDS = 0.001  # a local call
_LOOKS = 1_000


class Propagation:
    """See the module."""

    def __init__(self, host: ControllerHost, local: LocalCall) -> None:
        self._host = host
        self.epoch = 0  # of the controller
        self._local = local
        self.metadata = ClusterMetadata()
        self._channels: dict[int, Channel] = {}
        self._closed = False
        # Called with the partitions that a broker cannot write, and those that it can.
        self.storage_answered: Callable[[BrokerInfo, set[Key], set[Key]], None] = _ignore

    def publish(self, metadata: ClusterMetadata) -> None:
        """The controller has decided: note what is to be sent to each broker."""
        if self._closed:
            return  # decided before we stepped down: the next controller reads it from the tree
        before, self.metadata = self.metadata, metadata
        for broker_id, channel in list(self._channels.items()):
            info = metadata.brokers.get(broker_id)
            if info is None or info.epoch != channel.info.epoch:
                self._channels.pop(broker_id).close()
        changed, moved_away, deleted = _difference(before, metadata)
        brokers_changed = before.brokers != metadata.brokers
        for channel in self._channels.values():
            channel.note(changed, moved_away, deleted, brokers_changed)
        for broker_id, info in metadata.brokers.items():
            if broker_id not in self._channels:
                self._channels[broker_id] = self._open(info)

    def _open(self, info: BrokerInfo) -> Channel:
        own = info.broker_id == self._host.broker_id
        channel = Channel(self, info, self._host.peer(info), self._local if own else None)
        channel.note_all(self.metadata)
        channel.task = self._host.spawn(channel.run())
        return channel

    def ask_again(self, broker_id: int) -> None:
        """Send a broker again what it has: its answer says what its disks take."""
        channel = self._channels.get(broker_id)
        if channel is not None:
            topics = self.metadata.topics.values()
            channel.send_again(
                {
                    (topic.name, i)
                    for topic in topics
                    for i, row in enumerate(topic.partitions)
                    if broker_id in row.replicas
                }
            )

    async def sent(self) -> None:
        """Wait until every broker has everything."""
        while any(channel.busy for channel in self._channels.values()):
            await asyncio.sleep(_LOOK_SECONDS)

    async def carried_out_here(self) -> None:
        """Wait until our own broker has carried out what was published, for a moment at most."""
        own = self._channels.get(self._host.broker_id)
        for _ in range(_LOOKS):
            if own is None or not own.busy:
                return
            await asyncio.sleep(_SHORT_SECONDS)

    def close(self) -> None:
        self._closed = True
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


def _difference(
    before: ClusterMetadata, after: ClusterMetadata
) -> tuple[set[Key], dict[Key, set[int]], dict[str, TopicInfo]]:
    """Partitions that are new or changed; those that some brokers no longer have, with these
    brokers; topics that are gone."""
    changed: set[Key] = set()
    moved_away: dict[Key, set[int]] = {}
    deleted: dict[str, TopicInfo] = {}
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is topic:
            continue
        if old is not None and old.topic_id != topic.topic_id:
            deleted[name] = old
            old = None
        rows = old.partitions if old is not None else ()
        for i, row in enumerate(topic.partitions):
            if i >= len(rows) or rows[i] != row:
                changed.add((name, i))
            if i < len(rows) and (lost := set(rows[i].replicas) - set(row.replicas)):
                moved_away[name, i] = lost
    for name, topic in before.topics.items():
        if name not in after.topics:
            deleted[name] = topic
    return changed, moved_away, deleted


def _ignore(info: BrokerInfo, failed: set[Key], works: set[Key]) -> None:
    """The controller has not loaded yet."""
