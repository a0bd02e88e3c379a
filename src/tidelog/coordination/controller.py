"""The controller: the only one who changes what exists.

It writes znodes first and then publishes a new :class:`ClusterMetadata`; the broker
acts on that value.  What the keeper did not take has not happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tidelog.clock import Clock
from tidelog.coordination import paths
from tidelog.coordination.keeper import (
    Check,
    Create,
    Delete,
    Keeper,
    NodeExists,
    NoNode,
    Operation,
    Set,
)
from tidelog.coordination.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.coordination.registry import Registry
from tidelog.coordination.topics import check_assignment, check_name, colliding, spread
from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.settings import Settings, check_topic_config
from tidelog.text import plural
from tidelog.wire.uuids import random_uuid, uuid_text

log = logging.getLogger(__name__)

_AT_ONCE = 500  # partitions in one transaction: ZooKeeper takes a mebibyte


class Admin(Protocol):
    """What handlers ask for: of the controller, whichever broker it is on."""

    @property
    def metadata(self) -> ClusterMetadata: ...

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        assignment: Sequence[Sequence[int]] = (),
        config: Mapping[str, str] | None = None,
        *,
        topic_id: bytes | None = None,
        validate_only: bool = False,
    ) -> TopicInfo: ...

    async def delete_topic(self, name: str) -> None: ...

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None: ...

    async def set_topic_config(self, name: str, config: Mapping[str, str]) -> None: ...

    async def set_broker_config(self, entity: str, config: Mapping[str, str]) -> None: ...

    async def set_group_config(self, group_id: str, config: Mapping[str, str]) -> None: ...

    async def allocate_producer_ids(self, broker_id: int) -> range: ...


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

    # -- topics -----------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        assignment: Sequence[Sequence[int]] = (),
        config: Mapping[str, str] | None = None,
        *,
        topic_id: bytes | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """Make a topic, or say exactly why not."""
        async with self._lock:
            return await self._create_topic(
                name,
                partitions,
                replication_factor,
                assignment,
                config,
                topic_id=topic_id,
                validate_only=validate_only,
            )

    async def _create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        assignment: Sequence[Sequence[int]],
        config: Mapping[str, str] | None,
        *,
        topic_id: bytes | None,
        validate_only: bool,
    ) -> TopicInfo:
        check_name(name)
        if name in self.metadata.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
        if alike := colliding(name, self.metadata.topics):
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} cannot be told from {alike[0]!r} in metric names "
                "('.' and '_' look alike); choose another name",
            )
        config = dict(config or {})
        try:
            check_topic_config(config)
        except SettingError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
        replicas = self._assign(name, partitions, replication_factor, assignment)
        topic = TopicInfo(
            name,
            topic_id or random_uuid(),
            tuple(self._new_partition(row) for row in replicas),
            config,
        )
        if validate_only:
            return topic
        value = paths.topic_value(uuid_text(topic.topic_id), replicas)
        operations: list[Operation] = [Create(paths.topic(name), value)]
        if config:
            operations.append(Create(paths.topic_config(name), paths.config_value(config)))
        await self._write([*operations, *self._states(topic, 0, _AT_ONCE)])
        for first in range(_AT_ONCE, len(replicas), _AT_ONCE):
            await self._write(self._states(topic, first, first + _AT_ONCE))
        self._change(self.metadata.with_topic(topic))
        return topic

    def _assign(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        assignment: Sequence[Sequence[int]],
    ) -> list[list[int]]:
        brokers = sorted(self.metadata.brokers)
        if assignment:
            if partitions != -1 or replication_factor != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "give either an assignment, or partitions and a replication factor",
                )
            check_assignment(assignment, brokers)
            return [list(replicas) for replicas in assignment]
        if partitions == -1:
            partitions = self._settings.partition_counts.get(name, self._settings["num.partitions"])
        if replication_factor == -1:
            replication_factor = self._settings["default.replication.factor"]
        return spread(partitions, replication_factor, brokers, racks=self._racks())

    def _racks(self) -> dict[int, str | None]:
        return {info.broker_id: info.rack for info in self.metadata.brokers.values()}

    def _new_partition(self, replicas: Sequence[int]) -> PartitionInfo:
        """Who lives is in sync: there is nothing yet that one could lack."""
        live = tuple(broker for broker in replicas if broker in self.metadata.brokers)
        return PartitionInfo(live[0], 0, tuple(replicas), live)

    def _states(self, topic: TopicInfo, first: int, end: int) -> list[Operation]:
        return [
            Create(paths.partition_state(topic.name, i), self._state_value(topic.partitions[i]))
            for i in range(first, min(end, len(topic.partitions)))
        ]

    def _state_value(self, info: PartitionInfo) -> bytes:
        return paths.state_value(info.leader, info.leader_epoch, list(info.isr), self.epoch)

    async def delete_topic(self, name: str) -> None:
        """Forget a topic and its settings; the brokers then drop its logs."""
        async with self._lock:
            await self._delete_topic(name)

    async def _delete_topic(self, name: str) -> None:
        if name not in self.metadata.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        # The mark outlives a crash: logs found without a topic are then known to be doomed.
        mark = f"{paths.DELETED_TOPICS}/{name}"
        operations: list[Operation] = [Delete(paths.topic(name), recursive=True)]
        if await self._keeper.exists(paths.topic_config(name)):
            operations.append(Delete(paths.topic_config(name)))
        if await self._keeper.exists(mark) is None:
            operations.append(Create(mark))
        await self._write(operations)
        self._change(self.metadata.without_topic(name))
        await self._write([Delete(mark)])

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
        first, end = have, have + _AT_ONCE
        await self._write([self._topic_set(grown), *self._states(grown, first, end)])
        for first in range(end, count, _AT_ONCE):
            await self._write(self._states(grown, first, first + _AT_ONCE))
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
