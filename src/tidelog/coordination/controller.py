"""The controller: the only one who changes what exists.

It writes znodes first and then publishes a new :class:`ClusterMetadata`; the broker
acts on that value.  What the keeper did not take has not happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tidelog.clock import Clock
from tidelog.coordination import paths
from tidelog.coordination.keeper import Create, Delete, Keeper, NodeExists, NoNode, Operation, Set
from tidelog.coordination.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.coordination.topics import check_assignment, check_name, colliding, spread
from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.settings import Settings, check_topic_config
from tidelog.text import plural
from tidelog.wire.uuids import parse_uuid, random_uuid, uuid_text

log = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = 1000


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
        self._epoch = 0
        self.first_start = False  # no broker has ever come to serve with this tree
        self.metadata = ClusterMetadata()

    # -- start ------------------------------------------------------------------

    async def find_cluster_id(self, on_disk: str | None) -> str:
        """The cluster's id; the first broker of a cluster writes it down."""
        try:
            data, _ = await self._keeper.get(paths.CLUSTER_ID)
            cluster_id: str = paths.from_json(data)["id"]
        except NoNode:
            cluster_id = on_disk or uuid_text(random_uuid())
            value = paths.to_json({"version": "1", "id": cluster_id})
            await self._keeper.multi([Create(paths.CLUSTER_ID, value)])
        return cluster_id

    async def elect(self, broker: BrokerInfo, cluster_id: str) -> None:
        """Register this broker, become controller, and read the tree."""
        self.first_start = await self._keeper.exists(paths.SETTLED) is None
        for path in paths.PERSISTENT:
            if await self._keeper.exists(path) is None:
                await self._keeper.multi([Create(path)])
        await self._register(broker)
        await self._take_office(broker.broker_id)
        topics = {}
        for name in await self._keeper.children(paths.TOPICS):
            topics[name] = await self._read_topic(name)
        configs = {
            entity: await self._read_config(paths.broker_config(entity))
            for entity in await self._keeper.children(paths.CONFIG_BROKERS)
        }
        groups = map(paths.group_of_config, await self._keeper.children(paths.CONFIG_GROUPS))
        group_configs = {
            group_id: await self._read_config(paths.group_config(group_id)) for group_id in groups
        }
        self.metadata = ClusterMetadata(
            cluster_id=cluster_id,
            controller_id=broker.broker_id,
            brokers={broker.broker_id: broker},
            topics=topics,
            topic_names={topic.topic_id: name for name, topic in topics.items()},
            broker_configs=configs,
            group_configs=group_configs,
        )

    async def _register(self, broker: BrokerInfo) -> None:
        endpoint = f"PLAINTEXT://{broker.host or ''}:{broker.port}"
        value = {
            "version": 5,
            "host": broker.host or "",
            "port": broker.port,
            "jmx_port": -1,
            "timestamp": str(self._clock.now_ms()),
            "endpoints": [endpoint],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "features": {},
        }
        if broker.rack:
            value["rack"] = broker.rack
        path = paths.broker(broker.broker_id)
        try:
            await self._keeper.multi([Create(path, paths.to_json(value), ephemeral=True)])
        except NodeExists:
            raise SettingError(
                f"broker.id={broker.broker_id}: a broker with this id is running already"
            ) from None

    async def _take_office(self, broker_id: int) -> None:
        value = paths.to_json(
            {
                "version": 2,
                "brokerid": broker_id,
                "timestamp": str(self._clock.now_ms()),
                "kraftControllerEpoch": -1,
            }
        )
        operations: list[Operation] = [Create(paths.CONTROLLER, value, ephemeral=True)]
        try:
            data, stat = await self._keeper.get(paths.CONTROLLER_EPOCH)
            self._epoch = int(data) + 1
            epoch = str(self._epoch).encode()
            operations.append(Set(paths.CONTROLLER_EPOCH, epoch, stat.version))
        except NoNode:
            self._epoch = 1
            operations.append(Create(paths.CONTROLLER_EPOCH, b"1"))
        await self._keeper.multi(operations)

    async def _read_topic(self, name: str) -> TopicInfo:
        data, _ = await self._keeper.get(paths.topic(name))
        value = paths.from_json(data)
        partitions = []
        for i in range(len(value["partitions"])):
            state, _ = await self._keeper.get(paths.partition_state(name, i))
            read = paths.from_json(state)
            partitions.append(
                PartitionInfo(
                    read["leader"],
                    read["leader_epoch"],
                    tuple(value["partitions"][str(i)]),
                    tuple(read["isr"]),
                )
            )
        config = await self._read_config(paths.topic_config(name))
        return TopicInfo(name, parse_uuid(value["topic_id"]), tuple(partitions), config)

    async def _read_config(self, path: str) -> dict[str, str]:
        try:
            data, _ = await self._keeper.get(path)
        except NoNode:
            return {}
        config: dict[str, str] = paths.from_json(data)["config"] if data else {}
        return config

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
            tuple(PartitionInfo(r[0], 0, tuple(r), tuple(r)) for r in replicas),
            config,
        )
        if validate_only:
            return topic
        operations: list[Operation] = [
            Create(paths.topic(name), paths.topic_value(uuid_text(topic.topic_id), replicas)),
            *self._states(topic, 0),
        ]
        if config:
            operations.append(Create(paths.topic_config(name), paths.config_value(config)))
        await self._keeper.multi(operations)
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
        return spread(partitions, replication_factor, brokers)

    def _states(self, topic: TopicInfo, first: int) -> list[Operation]:
        return [
            Create(
                paths.partition_state(topic.name, i),
                paths.state_value(p.leader, p.leader_epoch, list(p.isr), self._epoch),
            )
            for i, p in enumerate(topic.partitions)
            if i >= first
        ]

    async def delete_topic(self, name: str) -> None:
        """Forget a topic and its settings; the brokers then drop its logs."""
        if name not in self.metadata.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        # The mark outlives a crash: logs found without a topic are then known to be doomed.
        mark = f"{paths.DELETED_TOPICS}/{name}"
        operations: list[Operation] = [Delete(paths.topic(name), recursive=True)]
        if await self._keeper.exists(paths.topic_config(name)):
            operations.append(Delete(paths.topic_config(name)))
        if await self._keeper.exists(mark) is None:
            operations.append(Create(mark))
        await self._keeper.multi(operations)
        self._change(self.metadata.without_topic(name))
        await self._keeper.multi([Delete(mark)])

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
            new = spread(count - have, len(topic.partitions[0].replicas), brokers, first=have)
        if validate_only:
            return
        added = tuple(PartitionInfo(r[0], 0, tuple(r), tuple(r)) for r in new)
        grown = replace(topic, partitions=topic.partitions + added)
        replicas = [list(p.replicas) for p in grown.partitions]
        value = paths.topic_value(uuid_text(topic.topic_id), replicas)
        await self._keeper.multi([Set(paths.topic(name), value), *self._states(grown, have)])
        self._change(self.metadata.with_topic(grown))

    # -- settings ---------------------------------------------------------------

    async def set_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        """Replace a topic's own settings (already checked)."""
        topic = self.metadata.topics[name]
        await self._write_config(paths.topic_config(name), config)
        self._change(self.metadata.with_topic(replace(topic, config=dict(config))))

    async def set_broker_config(self, entity: str, config: Mapping[str, str]) -> None:
        """Replace the dynamic settings of one broker, or of all (``<default>``)."""
        await self._write_config(paths.broker_config(entity), config)
        configs = {**self.metadata.broker_configs, entity: dict(config)}
        self._change(replace(self.metadata, broker_configs=configs))

    async def set_group_config(self, group_id: str, config: Mapping[str, str]) -> None:
        """Replace what a group has of its own; without anything it is forgotten."""
        path = paths.group_config(group_id)
        configs = {**self.metadata.group_configs, group_id: dict(config)}
        if config:
            await self._write_config(path, config)
        else:
            del configs[group_id]
            if await self._keeper.exists(path):
                await self._keeper.multi([Delete(path)])
        self._change(replace(self.metadata, group_configs=configs))

    async def _write_config(self, path: str, config: Mapping[str, str]) -> None:
        value = paths.config_value(dict(config))
        exists = await self._keeper.exists(path)
        await self._keeper.multi([Set(path, value) if exists else Create(path, value)])

    # -- producer ids -----------------------------------------------------------

    async def allocate_producer_ids(self, broker_id: int) -> range:
        """The next block of producer ids, never given out before."""
        end, version = await self._producer_ids_given_out()
        ids = range(end + 1, end + 1 + PRODUCER_ID_BLOCK)
        await self._write_producer_ids(broker_id, ids, version)
        return ids

    async def _producer_ids_given_out(self) -> tuple[int, int | None]:
        """The highest producer id given out, and the version of the znode that says so."""
        try:
            data, stat = await self._keeper.get(paths.PRODUCER_IDS)
        except NoNode:
            return -1, None
        return int(paths.from_json(data)["block_end"]), stat.version

    async def _write_producer_ids(self, broker_id: int, ids: range, version: int | None) -> None:
        value = paths.to_json(
            {
                "version": 1,
                "broker": broker_id,
                "block_start": str(ids[0]),
                "block_end": str(ids[-1]),
            }
        )
        operation: Operation = Create(paths.PRODUCER_IDS, value)
        if version is not None:
            operation = Set(paths.PRODUCER_IDS, value, version)
        await self._keeper.multi([operation])

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
                    partitions[i] = raised = replace(partition, leader_epoch=latest + 1)
                    value = paths.state_value(
                        raised.leader, raised.leader_epoch, list(raised.isr), self._epoch
                    )
                    operations.append(Set(paths.partition_state(name, i), value))
            if operations:
                await self._keeper.multi(operations)
                changed = replace(topic, partitions=tuple(partitions))
                self.metadata = self.metadata.with_topic(changed)
        end, version = await self._producer_ids_given_out()
        if producer_id > end:
            ids = range(end + 1, producer_id + 1)
            await self._write_producer_ids(self.metadata.controller_id, ids, version)

    def _change(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        self._publish(metadata)
