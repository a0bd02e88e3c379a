"""What a controller has written of partitions: their states, and who has them.

The lower half of :class:`~tidelog.controller.cluster_controller.ClusterController`: whoever has
decided something hands it in here.  It is written first, fenced by the controller's epoch and
guarded by the version of each state; then it is in the metadata, and the brokers are told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tidelog.controller.controller import Controller
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.keeper import Create, Operation, Set
from tidelog.metadata import PartitionInfo, TopicInfo

Key = tuple[str, int]


class PartitionStates(Controller):
    """See the module."""

    async def _commit(self, changes: Mapping[Key, PartitionInfo]) -> None:
        """Write partition states, then act on them."""
        if not changes:
            return
        await self._write_in_parts([self._state_set(key, info) for key, info in changes.items()])
        self._adopt(_as_written(changes))

    def _state_set(self, key: Key, info: PartitionInfo) -> Set:
        return Set(paths.partition_state(*key), self._state_value(info), info.partition_epoch)

    def _adopt(self, changes: Mapping[Key, PartitionInfo]) -> None:
        """Take into the metadata what is written, and tell the brokers."""
        by_topic: dict[str, dict[int, PartitionInfo]] = {}
        for (name, i), info in changes.items():
            by_topic.setdefault(name, {})[i] = info
        topics = []
        for name, rows in by_topic.items():
            topic = self.metadata.topics[name]
            partitions = tuple(rows.get(i, row) for i, row in enumerate(topic.partitions))
            topics.append(replace(topic, partitions=partitions))
        self._change(self.metadata.with_topics(topics))

    async def _rewrite(self, changes: Mapping[Key, PartitionInfo]) -> None:
        """Write states and assignments, which change together when replicas move.

        If they are too many for one transaction, the assignment comes last: whoever takes
        office in between goes on with the move as it was.
        """
        if not changes:
            return
        written = _as_written(changes)
        for name in dict.fromkeys(name for name, _ in changes):
            topic = self.metadata.topics[name]
            rows = tuple(written.get((name, i), row) for i, row in enumerate(topic.partitions))
            states = [self._state_set(key, info) for key, info in changes.items() if key[0] == name]
            await self._write_in_parts([*states, self._topic_set(replace(topic, partitions=rows))])
        self._adopt(written)

    async def _make_missing_states(self) -> None:
        """The controller before us died after it had written the topic."""
        for topic in self.metadata.topics.values():
            rows = list(topic.partitions)
            missing = [i for i, row in enumerate(rows) if row.partition_epoch < 0]
            operations: list[Operation] = []
            for i in missing:
                live = tuple(b for b in rows[i].replicas if b in self.metadata.brokers)
                if not live:
                    continue  # made when one of them comes
                rows[i] = PartitionInfo(live[0], 0, rows[i].replicas, live)
                state = paths.partition_state(topic.name, i)
                operations.append(Create(state, self._state_value(rows[i])))
            await self._write_in_parts(operations)
            if operations:
                changed = replace(topic, partitions=tuple(rows))
                self.metadata = self.metadata.with_topic(changed)

    # -- looking up -----------------------------------------------------------------

    def _known_partition(self, key: Key) -> PartitionInfo:
        topic = self.metadata.topics.get(key[0])
        if topic is None or not 0 <= key[1] < len(topic.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.partitions[key[1]]

    def _topics_of(self, keys: Iterable[Key]) -> list[TopicInfo]:
        return [self.metadata.topics[name] for name in dict.fromkeys(name for name, _ in keys)]

    def _with_replicas_on(self, brokers: Collection[int]) -> list[TopicInfo]:
        return [
            topic
            for topic in self.metadata.topics.values()
            if any(not set(row.replicas).isdisjoint(brokers) for row in topic.partitions)
        ]


def _as_written(changes: Mapping[Key, PartitionInfo]) -> dict[Key, PartitionInfo]:
    """What is known once it is in the tree: each write counts the partition epoch."""
    return {
        key: replace(info, partition_epoch=info.partition_epoch + 1)
        for key, info in changes.items()
    }
