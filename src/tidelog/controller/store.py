"""The controller's writes to the keeper, each fenced by the controller's epoch.

Once another broker has been elected, every write here fails with ``BadVersion`` and changes
nothing.  The state of a partition is also guarded by its own version, so that nothing is written on
the ground of an old state.  What is more than one transaction can take is written in several: what
a crash in between leaves is completed by the next controller (see ``Controller.load``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tidelog.clock import Clock
from tidelog.keeper import paths
from tidelog.keeper.keeper import (
    Check,
    Create,
    Delete,
    Keeper,
    NodeExists,
    NoNode,
    Operation,
    Set,
)
from tidelog.metadata import PartitionInfo, TopicInfo
from tidelog.wire.uuids import uuid_text

Key = tuple[str, int]

_AT_ONCE = 1000  # operations in one transaction: ZooKeeper takes a mebibyte


class Store:
    """See the module.  Writes count after :meth:`elect`."""

    def __init__(self, keeper: Keeper, clock: Clock) -> None:
        self._keeper = keeper
        self._clock = clock
        self._fence = Check(paths.CONTROLLER_EPOCH, -1)
        self.epoch = 0
        self._marks: set[str] = set()  # deletion marks that we have written

    async def elect(self, broker_id: int) -> None:
        """Make a broker the controller: its znode and the next epoch, both or neither.

        NodeExists or BadVersion if another broker is elected.
        """
        while True:
            try:
                data, stat = await self._keeper.get(paths.CONTROLLER_EPOCH)
                break
            except NoNode:
                try:
                    await self._keeper.multi([Create(paths.CONTROLLER_EPOCH, b"0")])
                except NodeExists:
                    continue
        epoch = int(data) + 1
        value = paths.controller_value(broker_id, self._clock.now_ms())
        await self._keeper.multi(
            [
                Create(paths.CONTROLLER, value, ephemeral=True),
                Set(paths.CONTROLLER_EPOCH, str(epoch).encode(), stat.version),
            ]
        )
        self.epoch = epoch
        self._fence = Check(paths.CONTROLLER_EPOCH, stat.version + 1)

    async def _write(self, operations: Sequence[Operation]) -> None:
        for start in range(0, len(operations), _AT_ONCE):
            await self._keeper.multi([self._fence, *operations[start : start + _AT_ONCE]])

    # -- topics -----------------------------------------------------------------

    async def create_topics(self, topics: Collection[TopicInfo]) -> None:
        operations: list[Operation] = []
        for topic in topics:
            if topic.name in self._marks:  # it was deleted, and the mark could not be removed
                operations.append(Delete(paths.deletion(topic.name)))
            operations += new_topic(topic, self.epoch)
        await self._write(operations)
        self._marks -= {topic.name for topic in topics}

    async def add_partitions(self, topic: TopicInfo, first: int) -> None:
        """A topic has new partitions, from ``first`` on."""
        await self._write([_assignment(topic), *_new_states(topic, first, self.epoch)])

    async def create_states(self, topic: TopicInfo, partitions: Iterable[int]) -> None:
        """The states of partitions whose topic is written already."""
        await self._write(
            [
                Create(
                    paths.partition_state(topic.name, i), _state(topic.partitions[i], self.epoch)
                )
                for i in partitions
            ]
        )

    async def deletion_marks(self) -> set[str]:
        """Topics whose deletion has begun."""
        return set(await self._keeper.children(paths.DELETED_TOPICS))

    async def delete_topics(self, doomed: Mapping[str, TopicInfo]) -> None:
        """Delete the znodes of topics, and mark them before: after a crash the mark says that the
        next controller has to finish the deletion, and that logs of the topic are to go."""
        marks = [paths.deletion(name) for name in doomed]
        configs = [paths.topic_config(name) for name in doomed]
        found = await asyncio.gather(*map(self._keeper.exists, marks + configs))
        known = {path for path, stat in zip(marks + configs, found, strict=True) if stat}
        operations: list[Operation] = [Create(mark) for mark in marks if mark not in known]
        for topic in doomed.values():
            for i, partition in enumerate(topic.partitions):
                if partition.partition_epoch >= 0:
                    operations.append(Delete(paths.partition_state(topic.name, i)))
                    operations.append(Delete(paths.partition(topic.name, i)))
        await self._write(operations)
        self._marks |= doomed.keys()
        # The rest recursively: a crash may have left a topic with some of its znodes.
        operations = [Delete(paths.topic(name), recursive=True) for name in doomed]
        operations += [Delete(path) for path in configs if path in known]
        await self._write(operations)

    async def remove_deletion_marks(self, names: Iterable[str]) -> None:
        await self._write([Delete(paths.deletion(name)) for name in sorted(names)])
        self._marks.difference_update(names)

    # -- partitions -------------------------------------------------------------

    async def write_states(self, changes: Mapping[Key, PartitionInfo]) -> dict[Key, PartitionInfo]:
        """Write partition states; returns them as they are then."""
        await self._write([self._set_state(key, info) for key, info in changes.items()])
        return _as_written(changes)

    async def write_assignments(
        self, changes: Mapping[Key, PartitionInfo], topics: Mapping[str, TopicInfo]
    ) -> dict[Key, PartitionInfo]:
        """Write states together with the replicas of their topics, for a reassignment.

        If they are too many for one transaction, the replicas come last: a controller that is
        elected in between goes on with the reassignment as it was.
        """
        written = _as_written(changes)
        for name in dict.fromkeys(name for name, _ in changes):
            topic = topics[name]
            after = tuple(written.get((name, i), info) for i, info in enumerate(topic.partitions))
            states = [self._set_state(key, info) for key, info in changes.items() if key[0] == name]
            await self._write([*states, _assignment(replace(topic, partitions=after))])
        return written

    def _set_state(self, key: Key, info: PartitionInfo) -> Set:
        return Set(paths.partition_state(*key), _state(info, self.epoch), info.partition_epoch)

    # -- notifications ----------------------------------------------------------

    async def remove_log_dir_events(self, nodes: Iterable[str]) -> None:
        """The controller has acted on them."""
        await self._write([Delete(node) for node in nodes])


def new_topic(topic: TopicInfo, controller_epoch: int) -> list[Operation]:
    """The znodes of a new topic."""
    replicas = [list(info.replicas) for info in topic.partitions]
    value = paths.topic_value(uuid_text(topic.topic_id), replicas)
    operations: list[Operation] = [Create(paths.topic(topic.name), value)]
    if topic.config:
        config = paths.config_value(dict(topic.config))
        operations.append(Create(paths.topic_config(topic.name), config))
    operations.append(Create(paths.partitions(topic.name)))
    return operations + _new_states(topic, 0, controller_epoch)


def _new_states(topic: TopicInfo, first: int, controller_epoch: int) -> list[Operation]:
    operations: list[Operation] = []
    for i in range(first, len(topic.partitions)):
        value = _state(topic.partitions[i], controller_epoch)
        operations.append(Create(paths.partition(topic.name, i)))
        operations.append(Create(paths.partition_state(topic.name, i), value))
    return operations


def _state(info: PartitionInfo, controller_epoch: int) -> bytes:
    return paths.state_value(info.leader, info.leader_epoch, list(info.isr), controller_epoch)


def _assignment(topic: TopicInfo) -> Set:
    """The replicas of a topic's partitions."""
    partitions = topic.partitions
    value = paths.topic_value(
        uuid_text(topic.topic_id),
        [list(info.replicas) for info in partitions],
        {i: list(info.adding) for i, info in enumerate(partitions) if info.adding},
        {i: list(info.removing) for i, info in enumerate(partitions) if info.removing},
    )
    return Set(paths.topic(topic.name), value)


def _as_written(changes: Mapping[Key, PartitionInfo]) -> dict[Key, PartitionInfo]:
    """Each write of a state counts the partition epoch."""
    return {
        key: replace(info, partition_epoch=info.partition_epoch + 1)
        for key, info in changes.items()
    }
