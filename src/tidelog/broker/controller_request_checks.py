"""Controller requests are compared with ZooKeeper before they count.

Any process that reaches the port can send LeaderAndIsr, StopReplica and UpdateMetadata, and the
epochs of the controller and of this broker can be guessed.  The controller writes to ZooKeeper
first and sends requests then, so a request of its own never says more than the tree does:

* a controller epoch that is higher than the tree's is no controller's, and is not remembered;
* a partition that the tree does not assign to this broker is not created, and one that it does
  assign is neither stopped nor quarantined;
* a leader epoch or partition epoch that is ahead of the tree's is refused: remembered, it would
  make the next requests of the controller old news;
* a topic that the tree has, or may have, is not forgotten, nor its committed offsets;
* a broker is live, at an address, only as it is registered.

What is old news already is not looked up.  Reads come after a ``sync``, as a server of the
ensemble may be behind the one that the controller wrote to.  Without ZooKeeper nothing can be
compared: the caller answers with a retriable code, and the controller sends it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.controller.store import Key
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.registry import Registry
from tidelog.keeper.znodes import TopicValue
from tidelog.metadata import BrokerInfo, PartitionInfo
from tidelog.topic_partition import directory_name

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def name_error(key: Key) -> ErrorCode:
    """NONE if a partition may have this name and index."""
    try:
        directory_name(*key)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


class TreeChecks:
    """See the module."""

    def __init__(self, broker: Broker, registry: Registry) -> None:
        self._broker = broker
        self._registry = registry

    async def leader_and_isr(
        self, wanted: Mapping[Key, tuple[bytes, PartitionInfo]]
    ) -> dict[Key, ErrorCode]:
        """The partitions (with the id of their topic) that must not be taken, and why."""
        errors = {key: code for key in wanted if (code := name_error(key))}
        news = [key for key in wanted if key not in errors and self._is_news(key, *wanted[key])]
        if not news:
            return errors
        await self._registry.sync()
        topics, _ = await self._registry.assignments(sorted({name for name, _ in news}))
        ours = []
        for key in news:
            topic = topics.get(key[0])
            if topic is None or topic.topic_id != wanted[key][0] or not self._assigned(key, topic):
                errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                ours.append(key)
        states = await self._registry.partition_states(ours, topics)
        for key, state in zip(ours, states, strict=True):
            if state is None or _ahead(wanted[key][1], state):
                errors[key] = ErrorCode.UNKNOWN_LEADER_EPOCH
        return errors

    def _is_news(self, key: Key, topic_id: bytes, info: PartitionInfo) -> bool:
        known = self._broker.replicas.partitions.get(key)
        return (
            known is None
            or known.topic_id != topic_id
            or (info.leader_epoch, info.partition_epoch) > known.order
        )

    def _assigned(self, key: Key, topic: TopicValue) -> bool:
        index = key[1]
        return index < len(topic.replicas) and self._broker.broker_id in topic.replicas[index]

    async def still_ours(self, keys: Collection[Key]) -> set[Key]:
        """Of these logs, those that the tree assigns to this broker, or may assign: a znode that
        cannot be read is no reason to lose a log."""
        names = sorted({name for name, _ in keys})
        if not names:
            return set()
        await self._registry.sync()
        topics, unreadable = await self._registry.assignments(names)
        return {
            key
            for key in keys
            if key[0] in unreadable
            or (
                (topic := topics.get(key[0])) is not None
                and self._topic_id(key) in (None, topic.topic_id)
                and self._assigned(key, topic)
            )
        }

    def _topic_id(self, key: Key) -> bytes | None:
        """Of the log that we have."""
        partition = self._broker.replicas.partitions.get(key)
        return partition.topic_id if partition else self._broker.manager.topic_ids.get(key)

    async def missing(self, topics: Mapping[str, tuple[bytes, int]]) -> set[str]:
        """Of these topics, with their ids and an index, those that the tree does not have so."""
        if not topics:
            return set()
        await self._registry.sync()
        found, _ = await self._registry.assignments(sorted(topics))
        return {
            name
            for name, (topic_id, index) in topics.items()
            if name not in found
            or found[name].topic_id != topic_id
            or index >= len(found[name].replicas)
        }

    async def existing(self, topics: Mapping[str, bytes]) -> set[str]:
        """Of these topics, with their ids, those that the tree has, or may have: a znode that
        cannot be read is no deletion."""
        if not topics:
            return set()
        await self._registry.sync()
        found, unreadable = await self._registry.assignments(sorted(topics))
        return {
            name
            for name, topic_id in topics.items()
            if name in unreadable or (name in found and found[name].topic_id == topic_id)
        }

    async def live(self, broker_ids: Collection[int]) -> dict[int, BrokerInfo]:
        """Of these brokers, those that are registered, as they are."""
        await self._registry.sync()
        found = await self._registry.brokers()
        return {i: replace(info, epoch=-1) for i, info in found.items() if i in broker_ids}


def _ahead(wanted: PartitionInfo, state: PartitionInfo) -> bool:
    """Does a request say more than the tree, or another thing at the same epochs?"""
    said = (wanted.leader_epoch, wanted.partition_epoch)
    written = (state.leader_epoch, state.partition_epoch)
    if said == written:
        return (wanted.leader, wanted.isr) != (state.leader, state.isr)
    return said > written
