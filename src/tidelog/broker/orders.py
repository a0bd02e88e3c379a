"""What the controller orders, carried out on this broker.

LeaderAndIsr makes partitions leaders and followers, StopReplica ends them, UpdateMetadata is
what clients are told.  They come one at a time, from the controller's channel; an order of a
controller that has been replaced, or for an earlier life of this broker, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.broker.channel import DELETED, FULL, PART
from tidelog.coordination import paths
from tidelog.coordination.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.coordination.registry import Registry, patiently
from tidelog.errors import ErrorCode
from tidelog.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from tidelog.wire.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from tidelog.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from tidelog.wire.schema import Message

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_AT_ONCE = 20  # partitions; then others have their turn
_NOT_YET = PartitionInfo(-1, -1, (), (), -1)


class Orders:
    """See the module."""

    def __init__(self, broker: Broker, registry: Registry) -> None:
        self._broker = broker
        self._registry = registry
        self._lock = asyncio.Lock()
        self.broker_epoch = -1
        self.controller_epoch = 0
        self.topic_configs: dict[str, dict[str, str]] = {}
        self._registered = asyncio.Event()
        self.informed = asyncio.Event()  # we have heard from a controller
        # Of a whole that comes in parts, what has come so far.
        self._mentioned: set[tuple[str, int]] = set()
        self._topics: dict[str, TopicInfo] = {}

    async def apply(self, request: Message) -> Message:
        """An order from the controller on this very broker."""
        if isinstance(request, LeaderAndIsrRequest):
            return await self.leader_and_isr(request)
        if isinstance(request, StopReplicaRequest):
            return await self.stop_replica(request)
        assert isinstance(request, UpdateMetadataRequest)
        return await self.update_metadata(request)

    def registered(self, broker_epoch: int) -> None:
        """We are in ZooKeeper, under this epoch: orders for earlier ones are not for us."""
        self.broker_epoch = broker_epoch
        self._registered.set()

    async def _refusal(self, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        # Before that nobody can mean us, but a controller that has not noticed our death yet.
        await self._registered.wait()
        if controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if 0 <= broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch > self.controller_epoch:
            self._mentioned, self._topics = set(), {}
        self.controller_epoch = controller_epoch
        return ErrorCode.NONE

    # -- leaders and followers ----------------------------------------------------

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        async with self._lock:
            refusal = await self._refusal(request.controller_epoch, request.broker_epoch)
            if refusal:
                return LeaderAndIsrResponse(error_code=refusal, topics=[])
            for leader in request.live_leaders:
                self._broker.known_brokers[leader.broker_id] = BrokerInfo(
                    leader.broker_id, leader.host_name or None, leader.port, None
                )
            self._broker.fetchers.hold()
            try:
                answers, mentioned = await self._take(request)
            finally:
                self._broker.fetchers.release()
            if request.type == PART:
                self._mentioned |= mentioned
            elif request.type == FULL:
                wanted = mentioned | self._mentioned
                self._broker.replicas.keep_only(wanted | await self._doubtful(wanted))
                self._mentioned = set()
            return LeaderAndIsrResponse(error_code=0, topics=answers)

    async def _take(
        self, request: LeaderAndIsrRequest
    ) -> tuple[list[LeaderAndIsrTopicError], set[tuple[str, int]]]:
        """Carry it out; the answers, and which partitions are mentioned."""
        answers = []
        done = 0
        mentioned: set[tuple[str, int]] = set()
        await self._know_configs(state.topic_name for state in request.topic_states)
        for state in request.topic_states:
            config = await self._config(state.topic_name)
            topic = TopicInfo(state.topic_name, state.topic_id, (), config)
            errors = []
            for row in state.partition_states:
                code = self._broker.take_partition(topic, row.partition_index, _partition_info(row))
                mentioned.add((topic.name, row.partition_index))
                errors.append(
                    LeaderAndIsrPartitionError(partition_index=row.partition_index, error_code=code)
                )
                done += 1
                if done % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            answers.append(LeaderAndIsrTopicError(topic_id=state.topic_id, partition_errors=errors))
        return answers, mentioned

    async def _doubtful(self, wanted: set[tuple[str, int]]) -> set[tuple[str, int]]:
        """Logs of topics that exist, and whose znodes the controller could not read."""
        logs = [key for key in self._broker.manager.logs if key not in wanted]
        names = sorted({name for name, _ in logs})
        if not names:
            return set()
        unreadable = await patiently(lambda: self._registry.unreadable_among(names))
        return {key for key in logs if key[0] in unreadable}

    async def _know_configs(self, names: Iterable[str]) -> None:
        """A thousand topics are new: ask for their settings together."""
        new = [name for name in names if name not in self.topic_configs]
        nodes = [paths.topic_config(name) for name in new]
        found = await patiently(lambda: self._registry.configs(nodes))
        self.topic_configs.update(zip(new, found, strict=True))

    async def _config(self, name: str) -> dict[str, str]:
        known = self.topic_configs.get(name)
        if known is None:
            path = paths.topic_config(name)
            known = await patiently(lambda: self._registry.config(path))
            self.topic_configs[name] = known
        return known

    # -- the end of replicas --------------------------------------------------------

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        async with self._lock:
            refusal = await self._refusal(request.controller_epoch, request.broker_epoch)
            if refusal:
                return StopReplicaResponse(error_code=refusal, partition_errors=[])
            errors = []
            for topic in request.topic_states:
                for row in topic.partition_states:
                    key = (topic.topic_name, row.partition_index)
                    self._broker.stop_partition(key, delete=row.delete_partition)
                    errors.append(
                        StopReplicaPartitionError(
                            topic_name=key[0], partition_index=key[1], error_code=0
                        )
                    )
            return StopReplicaResponse(error_code=0, partition_errors=errors)

    # -- what clients are told ------------------------------------------------------

    async def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        async with self._lock:
            refusal = await self._refusal(request.controller_epoch, request.broker_epoch)
            if refusal:
                return UpdateMetadataResponse(error_code=refusal)
            before = self._broker.metadata
            whole = request.type in (FULL, PART)
            topics = self._topics if whole else dict(before.topics)
            for state in request.topic_states:
                name = state.topic_name
                known = topics.get(name) or before.topics.get(name)
                if any(row.leader == DELETED for row in state.partition_states):
                    if known is None or known.topic_id == state.topic_id:
                        topics.pop(name, None)
                        self.topic_configs.pop(name, None)
                    continue
                if known is not None and known.topic_id != state.topic_id:
                    known = None
                    self.topic_configs.pop(name, None)
                config = await self._config(name)
                topics[name] = _merge(known, state, config)
            if request.type == PART:
                return UpdateMetadataResponse(error_code=0)  # nobody is shown half of it
            if whole:
                self._topics = {}
                self.topic_configs = {n: c for n, c in self.topic_configs.items() if n in topics}
            brokers = {
                row.id: BrokerInfo(
                    row.id, row.endpoints[0].host or None, row.endpoints[0].port, row.rack
                )
                for row in request.live_brokers
                if row.endpoints
            }
            self._broker.publish(_with(before, request.controller_id, brokers, topics))
            self.informed.set()
            return UpdateMetadataResponse(error_code=0)

    async def config_changed(self, entity: str) -> None:
        """Somebody has changed settings: ``topics/name`` or ``brokers/id``."""
        kind, _, name = entity.partition("/")
        async with self._lock:
            metadata = self._broker.metadata
            if kind == "topics":
                config = await self._registry.config(paths.topic_config(name))
                topic = metadata.topics.get(name)
                if config or topic is not None:
                    self.topic_configs[name] = config
                else:  # it is deleted; the next one of this name has settings of its own
                    self.topic_configs.pop(name, None)
                if topic is not None:
                    self._broker.publish(metadata.with_topic(replace(topic, config=config)))
            elif kind == "brokers":
                config = await self._registry.config(paths.broker_config(name))
                configs = {**metadata.broker_configs, name: config}
                self._broker.publish(replace(metadata, broker_configs=configs))
            elif kind == "groups":
                group_id = paths.group_of_config(name)
                config = await self._registry.config(paths.group_config(group_id))
                configs = {**metadata.group_configs, group_id: config}
                if not config:
                    del configs[group_id]
                self._broker.publish(replace(metadata, group_configs=configs))


def _partition_info(row: LeaderAndIsrPartitionState) -> PartitionInfo:
    return PartitionInfo(
        row.leader,
        row.leader_epoch,
        tuple(row.replicas),
        tuple(row.isr),
        row.partition_epoch,
        tuple(row.adding_replicas),
        tuple(row.removing_replicas),
    )


def _merge(
    known: TopicInfo | None, state: UpdateMetadataTopicState, config: dict[str, str]
) -> TopicInfo:
    """A topic with some partitions changed."""
    rows = list(known.partitions) if known is not None else []
    for row in state.partition_states:
        rows += [_NOT_YET] * (row.partition_index + 1 - len(rows))
        rows[row.partition_index] = _metadata_info(row)
    return TopicInfo(state.topic_name, state.topic_id, tuple(rows), config)


def _metadata_info(row: UpdateMetadataPartitionState) -> PartitionInfo:
    return PartitionInfo(
        row.leader, row.leader_epoch, tuple(row.replicas), tuple(row.isr), row.zk_version
    )


def _with(
    before: ClusterMetadata,
    controller_id: int,
    brokers: dict[int, BrokerInfo],
    topics: dict[str, TopicInfo],
) -> ClusterMetadata:
    return replace(
        before,
        controller_id=controller_id,
        brokers=brokers,
        topics=topics,
        topic_names=_names(topics.values()),
    )


def _names(topics: Iterable[TopicInfo]) -> dict[bytes, str]:
    return {topic.topic_id: topic.name for topic in topics}
