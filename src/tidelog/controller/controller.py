"""The controller: the only one who changes what exists.

It writes znodes first and then publishes a new :class:`ClusterMetadata`; the broker
acts on that value.  What the keeper did not take has not happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tidelog.clock import Clock
from tidelog.controller.coalescing import Together
from tidelog.controller.topics import check_assignment, colliding, spread
from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.ids import random_uuid
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
from tidelog.keeper.registry import Registry
from tidelog.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.new_topic import NewTopic
from tidelog.settings import Settings, check_topic_config
from tidelog.text import plural
from tidelog.topic_partition import check_name
from tidelog.wire.uuids import uuid_text

log = logging.getLogger(__name__)

_AT_ONCE = 1000  # operations in one transaction: ZooKeeper takes a mebibyte


class Controller:
    """See the module."""

    def __init__(
        self,
        keeper: Keeper,
        settings: Settings,
        clock: Clock,
        publish: Callable[[ClusterMetadata], None],
    ) -> None:
        self._keeper = keeper
        self._settings = settings
        self._clock = clock
        self._publish = publish
        self._registry = Registry(keeper, clock)
        self._lock = asyncio.Lock()  # one decision at a time; see keeper.py
        self._create = Together(self._lock, self._create_topics)
        self._delete = Together(self._lock, self._delete_topics)
        self._fence = Check(paths.CONTROLLER_EPOCH, -1)
        self.epoch = 0
        self.first_start = False  # no broker has ever come to serve with this tree
        self.metadata = ClusterMetadata()

    async def find_cluster_id(self, on_disk: str | None) -> str:
        """The cluster's id; the first broker of a cluster writes it down."""
        return await self._registry.find_cluster_id(on_disk)

    # -- start ------------------------------------------------------------------

    async def elect(self, broker: BrokerInfo, cluster_id: str) -> None:
        """Register this broker, become controller, and read the tree."""
        self.first_start = await self._keeper.exists(paths.SETTLED) is None
        await self._registry.make_paths()
        await self._registry.register(broker)
        await self._take_office(broker.broker_id)
        topics = await self._registry.topics()
        self.metadata = ClusterMetadata(
            cluster_id=cluster_id,
            controller_id=broker.broker_id,
            brokers={broker.broker_id: broker},
            topics=topics,
            topic_names={topic.topic_id: name for name, topic in topics.items()},
            broker_configs=await self._registry.broker_configs(),
            group_configs=await self._registry.group_configs(),
        )
        await self._finish_deletions()

    async def _take_office(self, broker_id: int) -> None:
        """Make the znode that says who is controller, and count the epoch, both or neither."""
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
        # Whatever we write from now on counts only while nobody has taken office after us.
        self._fence = Check(paths.CONTROLLER_EPOCH, stat.version + 1)

    async def _write(self, operations: Sequence[Operation]) -> None:
        await self._keeper.multi([self._fence, *operations])

    async def _write_in_parts(self, operations: Sequence[Operation]) -> None:
        """More than one transaction can take; after a crash the first ones have happened."""
        for start in range(0, len(operations), _AT_ONCE):
            await self._write(operations[start : start + _AT_ONCE])

    # -- topics -----------------------------------------------------------------

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> TopicInfo:
        """Make a topic, or say exactly why not."""
        if validate_only:
            return self._plan_topic(new, self.metadata.topics)
        return await self._create(new)

    async def _create_topics(self, wanted: Sequence[NewTopic]) -> list[TopicInfo | Exception]:
        answers: list[TopicInfo | Exception] = []
        topics: dict[str, TopicInfo] = {}
        for one in wanted:
            try:
                topic = self._plan_topic(one, ChainMap(topics, dict(self.metadata.topics)))
                topics[topic.name] = topic
                answers.append(topic)
            except ApiError as error:
                answers.append(error)
        if topics:
            await self._write_in_parts([op for topic in topics.values() for op in self._new(topic)])
            self._change(self.metadata.with_topics(topics.values()))
        return answers

    def _plan_topic(self, wanted: NewTopic, existing: Mapping[str, TopicInfo]) -> TopicInfo:
        name = wanted.name
        check_name(name)
        if name in existing:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
        if name in self._registry.unreadable:
            message = f"what the registry has of topic {name!r} cannot be read; see the logs"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        if alike := colliding(name, existing):
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} cannot be told from {alike[0]!r} in metric names "
                "('.' and '_' look alike); choose another name",
            )
        try:
            check_topic_config(wanted.config)
        except SettingError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
        replicas = self._assign(wanted)
        rows = tuple(self._new_partition(row) for row in replicas)
        return TopicInfo(name, wanted.topic_id or random_uuid(), rows, wanted.config)

    def _new(self, topic: TopicInfo) -> list[Operation]:
        """The znodes of a new topic."""
        replicas = [list(row.replicas) for row in topic.partitions]
        value = paths.topic_value(uuid_text(topic.topic_id), replicas)
        operations: list[Operation] = [Create(paths.topic(topic.name), value)]
        if topic.config:
            config = paths.config_value(dict(topic.config))
            operations.append(Create(paths.topic_config(topic.name), config))
        operations.append(Create(paths.partitions(topic.name)))
        return operations + self._states(topic, 0)

    def _assign(self, wanted: NewTopic) -> list[list[int]]:
        brokers = sorted(self.metadata.brokers)
        partitions, replication_factor = wanted.partitions, wanted.replication_factor
        if wanted.assignment:
            if partitions != -1 or replication_factor != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "give either an assignment, or partitions and a replication factor",
                )
            check_assignment(wanted.assignment, brokers)
            return [list(replicas) for replicas in wanted.assignment]
        if partitions == -1:
            usual = self._settings["num.partitions"]
            partitions = self._settings.partition_counts.get(wanted.name, usual)
        if replication_factor == -1:
            replication_factor = self._settings["default.replication.factor"]
        return spread(partitions, replication_factor, brokers, racks=self._racks())

    def _racks(self) -> dict[int, str | None]:
        return {info.broker_id: info.rack for info in self.metadata.brokers.values()}

    def _new_partition(self, replicas: Sequence[int]) -> PartitionInfo:
        """Who lives is in sync: there is nothing yet that one could lack."""
        live = tuple(broker for broker in replicas if broker in self.metadata.brokers)
        return PartitionInfo(live[0], 0, tuple(replicas), live)

    def _states(self, topic: TopicInfo, first: int) -> list[Operation]:
        """The znodes of new partitions, from ``first`` on."""
        operations: list[Operation] = []
        for i in range(first, len(topic.partitions)):
            value = self._state_value(topic.partitions[i])
            operations.append(Create(paths.partition(topic.name, i)))
            operations.append(Create(paths.partition_state(topic.name, i), value))
        return operations

    def _state_value(self, info: PartitionInfo) -> bytes:
        return paths.state_value(info.leader, info.leader_epoch, list(info.isr), self.epoch)

    async def delete_topic(self, name: str) -> None:
        """Forget a topic and its settings; the brokers then drop its logs."""
        await self._delete(name)

    async def _delete_topics(self, names: Sequence[str]) -> list[Exception | None]:
        answers: list[Exception | None] = []
        doomed: dict[str, TopicInfo] = {}
        for name in names:
            topic = self.metadata.topics.get(name)
            if topic is None or name in doomed:
                message = f"there is no topic {name!r}"
                answers.append(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
            else:
                doomed[name] = topic
                answers.append(None)
        if doomed:
            await self._delete_znodes(doomed)
            self._change(self.metadata.without_topics(doomed.keys()))
            await self._write_in_parts([Delete(paths.deletion(name)) for name in doomed])
        return answers

    async def _delete_znodes(self, doomed: Mapping[str, TopicInfo]) -> None:
        """First the marks, which outlive a crash: logs without a topic are then known to be
        doomed, and whoever takes office next finishes what was begun."""
        marks = [paths.deletion(name) for name in doomed]
        configs = [paths.topic_config(name) for name in doomed]
        found = await asyncio.gather(*map(self._keeper.exists, marks + configs))
        known = {path for path, stat in zip(marks + configs, found, strict=True) if stat}
        operations: list[Operation] = [Create(mark) for mark in marks if mark not in known]
        for topic in doomed.values():
            for i, row in enumerate(topic.partitions):
                if row.partition_epoch >= 0:
                    operations.append(Delete(paths.partition_state(topic.name, i)))
                    operations.append(Delete(paths.partition(topic.name, i)))
        await self._write_in_parts(operations)
        # What is left is looked at again: a crash may have left something half made.
        operations = [Delete(paths.topic(name), recursive=True) for name in doomed]
        operations += [Delete(path) for path in configs if path in known]
        await self._write_in_parts(operations)

    async def _finish_deletions(self) -> None:
        """A crash came in between: what is marked goes."""
        marked = await self.deleted_topics()
        doomed = {name: t for name, t in self.metadata.topics.items() if name in marked}
        if doomed:
            await self._delete_znodes(doomed)
            self.metadata = self.metadata.without_topics(doomed.keys())

    async def deleted_topics(self) -> set[str]:
        """Topics whose deletion a crash interrupted; the caller removes their logs."""
        return set(await self._keeper.children(paths.DELETED_TOPICS))

    async def settled(self) -> None:
        """The logs on disk match the registry: forget the marks, remember that it was so."""
        marks = await self._keeper.children(paths.DELETED_TOPICS)
        operations: list[Operation] = [Delete(f"{paths.DELETED_TOPICS}/{name}") for name in marks]
        if self.first_start:
            operations.append(Create(paths.SETTLED))
        if operations:
            await self._keeper.multi(operations)

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to ``count`` partitions."""
        async with self._lock:
            await self._create_partitions(name, count, assignment, validate_only=validate_only)

    async def _create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool,
    ) -> None:
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        have = len(topic.partitions)
        if count <= have:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {plural(have, 'partition')} already; it can only grow",
            )
        brokers = sorted(self.metadata.brokers)
        if assignment is not None:
            if len(assignment) != count - have:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{plural(count - have, 'new partition')} but "
                    f"{plural(len(assignment), 'assignment')}",
                )
            check_assignment(assignment, brokers)
            new = [list(replicas) for replicas in assignment]
        else:
            factor = len(topic.partitions[0].replicas)
            new = spread(count - have, factor, brokers, first=have, racks=self._racks())
        if validate_only:
            return
        added = tuple(self._new_partition(row) for row in new)
        grown = replace(topic, partitions=topic.partitions + added)
        await self._write_in_parts([self._topic_set(grown), *self._states(grown, have)])
        self._change(self.metadata.with_topic(grown))

    def _topic_set(self, topic: TopicInfo) -> Set:
        """Write down who has the partitions of a topic."""
        rows = topic.partitions
        value = paths.topic_value(
            uuid_text(topic.topic_id),
            [list(row.replicas) for row in rows],
            {i: list(row.adding) for i, row in enumerate(rows) if row.adding},
            {i: list(row.removing) for i, row in enumerate(rows) if row.removing},
        )
        return Set(paths.topic(topic.name), value)

    # -- settings ---------------------------------------------------------------

    async def set_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        """Replace a topic's own settings (already checked)."""
        topic = self.metadata.topics[name]
        await self._registry.write_config(paths.topic_config(name), config, tell=False)
        self._change(self.metadata.with_topic(replace(topic, config=dict(config))))

    async def set_broker_config(self, entity: str, config: Mapping[str, str]) -> None:
        """Replace the dynamic settings of one broker, or of all (``<default>``)."""
        await self._registry.write_config(paths.broker_config(entity), config, tell=False)
        configs = {**self.metadata.broker_configs, entity: dict(config)}
        self._change(replace(self.metadata, broker_configs=configs))

    async def set_group_config(self, group_id: str, config: Mapping[str, str]) -> None:
        """Replace what a group has of its own; without anything it is forgotten."""
        await self._registry.write_group_config(group_id, config, tell=False)
        configs = {**self.metadata.group_configs, group_id: dict(config)}
        if not config:
            del configs[group_id]
        self._change(replace(self.metadata, group_configs=configs))

    async def allocate_producer_ids(self, broker_id: int) -> range:
        """The next block of producer ids, never given out before."""
        return await self._registry.allocate_producer_ids(broker_id)

    # -- after another broker -----------------------------------------------------

    async def catch_up(self, epochs: Mapping[tuple[str, int], int], producer_id: int) -> None:
        """Go beyond what the logs have seen, so that nothing is used twice.

        ``epochs`` are the latest leader epochs in the logs, ``producer_id`` the highest id.
        They are ahead of the tree when Kafka has written the logs, or a journal was lost.
        """
        for name, topic in self.metadata.topics.items():
            partitions = list(topic.partitions)
            operations: list[Operation] = []
            for i, partition in enumerate(partitions):
                latest = epochs.get((name, i), -1)
                if latest > partition.leader_epoch:
                    raised = replace(
                        partition,
                        leader_epoch=latest + 1,
                        partition_epoch=partition.partition_epoch + 1,
                    )
                    partitions[i] = raised
                    state = paths.partition_state(name, i)
                    operations.append(Set(state, self._state_value(raised)))
            if operations:
                await self._write(operations)
                changed = replace(topic, partitions=tuple(partitions))
                self.metadata = self.metadata.with_topic(changed)
        end, version = await self._registry.producer_ids_given_out()
        if producer_id > end:
            ids = range(end + 1, producer_id + 1)
            await self._registry.write_producer_ids(self.metadata.controller_id, ids, version)

    def _change(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        self._publish(metadata)
