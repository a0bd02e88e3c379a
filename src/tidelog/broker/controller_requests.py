"""Controller requests, carried out on this broker.

LeaderAndIsr makes partitions leaders and followers, StopReplica ends them, UpdateMetadata brings
the metadata for clients.  They come one at a time, from the controller's channel.  A request of a
controller that has been replaced, or for an earlier registration of this broker, is refused, and
so is what ZooKeeper contradicts (``controller_request_checks.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.broker.controller_request_checks import TreeChecks, name_error
from tidelog.controller.broker_channel import DELETED, FULL, PART
from tidelog.controller.store import Key
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.keeper import KeeperError
from tidelog.keeper.registry import Registry
from tidelog.keeper.znodes import UnreadableZnode
from tidelog.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.topic_partition import check_name
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

_Request = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest

_AT_ONCE = 20  # partitions; then others have their turn
_NOT_YET = PartitionInfo(-1, -1, (), (), -1)


class ControllerRequests:
    """See the module."""

    def __init__(self, broker: Broker, registry: Registry) -> None:
        self._broker = broker
        self._registry = registry
        self._checks = TreeChecks(broker, registry)
        self._lock = asyncio.Lock()
        self.broker_epoch = -1
        self.controller_epoch = 0
        self._controller_id = -1
        self.topic_configs: dict[str, dict[str, str]] = {}
        self._registered = asyncio.Event()
        self.informed = asyncio.Event()  # there has been metadata of a controller
        # Of a whole that comes in parts, what has come so far, and from which controller.
        self._parts_of = 0
        self._mentioned: set[Key] = set()
        self._topics: dict[str, TopicInfo] = {}

    async def apply(self, request: Message) -> Message:
        """A request of the controller on this very broker: it needs no checks."""
        if isinstance(request, LeaderAndIsrRequest):
            return await self.leader_and_isr(request, own=True)
        if isinstance(request, StopReplicaRequest):
            return await self.stop_replica(request, own=True)
        assert isinstance(request, UpdateMetadataRequest)
        return await self.update_metadata(request, own=True)

    def registered(self, broker_epoch: int) -> None:
        """We are registered under this epoch: requests for earlier ones are not for us."""
        self.broker_epoch = broker_epoch
        self._registered.set()

    @asynccontextmanager
    async def _admitted(self, request: _Request, own: bool) -> AsyncIterator[None]:
        """One request at a time; ApiError for one that does not count.

        ZooKeeper is asked about the sender before it is the request's turn: one from elsewhere
        must not keep the controller waiting.
        """
        if not own and self._broker.standalone:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH)  # the controller is here
        # Before that only a controller that has not noticed our death yet can mean us.
        await self._registered.wait()
        try:
            await self._check_epochs(request, own)
            async with self._lock:
                if request.controller_epoch < self.controller_epoch:
                    raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH)
                if self._parts_of != request.controller_epoch:
                    self._parts_of = request.controller_epoch
                    self._mentioned, self._topics = set(), {}
                yield
        except KeeperError as error:
            # The controller sends it again; see broker_channel.py.
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error

    async def _check_epochs(self, request: _Request, own: bool) -> None:
        broker_epoch, epoch = request.broker_epoch, request.controller_epoch
        if broker_epoch > self.broker_epoch:
            # The controller may know of our registration before we do.
            await self._registry.sync()
            found = None
            with suppress(UnreadableZnode):
                found = await self._registry.registration(self._broker.broker_id)
            if found is None:  # we register again; it may be sent again until the controller knows
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "this broker is not registered")
            if found[1].czxid != broker_epoch:
                raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
        elif broker_epoch != self.broker_epoch:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
        if own:
            if epoch > self.controller_epoch:
                self.controller_epoch, self._controller_id = epoch, request.controller_id
        elif epoch > self.controller_epoch:
            found_epoch, controller_id = await self._registry.controller()
            if found_epoch > self.controller_epoch:
                self.controller_epoch, self._controller_id = found_epoch, controller_id
        if epoch < self.controller_epoch:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH)
        if epoch > self.controller_epoch or request.controller_id != self._controller_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "ZooKeeper knows no such controller")

    # -- leaders and followers ----------------------------------------------------

    async def leader_and_isr(
        self, request: LeaderAndIsrRequest, *, own: bool = False
    ) -> LeaderAndIsrResponse:
        try:
            async with self._admitted(request, own):
                answers = await self._take(request, own)
                return LeaderAndIsrResponse(error_code=0, topics=answers)
        except ApiError as error:
            return LeaderAndIsrResponse(error_code=error.code, topics=[])

    async def _take(self, request: LeaderAndIsrRequest, own: bool) -> list[LeaderAndIsrTopicError]:
        wanted = {
            (state.topic_name, row.partition_index): (state.topic_id, _partition_info(row))
            for state in request.topic_states
            for row in state.partition_states
        }
        errors = {} if own else await self._checks.leader_and_isr(wanted)
        taken = wanted.keys() - errors.keys()
        await self._know_configs({name for name, _ in taken})
        leaders = {wanted[key][1].leader for key in taken}
        for leader in request.live_leaders:
            if leader.broker_id in leaders:
                self._broker.known_brokers[leader.broker_id] = BrokerInfo(
                    leader.broker_id, leader.host_name or None, leader.port, None
                )
        self._broker.fetchers.hold()
        try:
            answers = await self._lead_and_follow(request, errors)
        finally:
            self._broker.fetchers.release()
        if request.type in (PART, FULL):
            logs = self._broker.manager.logs
            self._mentioned |= {key for key in wanted if key in logs or key not in errors}
        if request.type == FULL:
            rest = [key for key in logs if key not in self._mentioned]
            self._broker.replicas.keep_only(self._mentioned | await self._checks.still_ours(rest))
            self._mentioned = set()
        return answers

    async def _lead_and_follow(
        self, request: LeaderAndIsrRequest, errors: Mapping[Key, ErrorCode]
    ) -> list[LeaderAndIsrTopicError]:
        answers = []
        opened = 0
        logs = self._broker.manager.logs
        for state in request.topic_states:
            config = self.topic_configs.get(state.topic_name, {})
            topic = TopicInfo(state.topic_name, state.topic_id, (), config)
            codes = []
            for row in state.partition_states:
                index = row.partition_index
                code = errors.get((topic.name, index), ErrorCode.NONE)
                if not code:
                    # In a cluster the controller is to know at once what the disk does not take.
                    new = (topic.name, index) not in logs
                    defer = self._broker.standalone and new and opened >= _AT_ONCE
                    code = self._broker.take_partition(
                        topic, index, _partition_info(row), defer=defer
                    )
                    opened += not defer
                    if not defer and opened % _AT_ONCE == 0:
                        await asyncio.sleep(0)
                codes.append(LeaderAndIsrPartitionError(partition_index=index, error_code=code))
            answers.append(LeaderAndIsrTopicError(topic_id=state.topic_id, partition_errors=codes))
        return answers

    async def _know_configs(self, names: Iterable[str]) -> None:
        """Read the settings of new topics, all at once."""
        new = sorted(name for name in names if name not in self.topic_configs)
        if not new:
            return
        found = await self._registry.configs([paths.topic_config(name) for name in new])
        self.topic_configs.update(zip(new, found, strict=True))

    # -- the end of replicas --------------------------------------------------------

    async def stop_replica(
        self, request: StopReplicaRequest, *, own: bool = False
    ) -> StopReplicaResponse:
        try:
            async with self._admitted(request, own):
                return StopReplicaResponse(
                    error_code=0, partition_errors=await self._stop(request, own)
                )
        except ApiError as error:
            return StopReplicaResponse(error_code=error.code, partition_errors=[])

    async def _stop(
        self, request: StopReplicaRequest, own: bool
    ) -> list[StopReplicaPartitionError]:
        stopped = {
            (topic.topic_name, row.partition_index): row.delete_partition
            for topic in request.topic_states
            for row in topic.partition_states
        }
        here = [key for key in stopped if key in self._broker.manager.logs]
        kept = set() if own else await self._checks.still_ours(here)
        errors = []
        for key, delete in stopped.items():
            code = ErrorCode.INVALID_REQUEST if key in kept else name_error(key)
            if not code:
                self._broker.stop_partition(key, delete=delete)
            errors.append(
                StopReplicaPartitionError(
                    topic_name=key[0], partition_index=key[1], error_code=code
                )
            )
        return errors

    # -- metadata for clients ------------------------------------------------------

    async def update_metadata(
        self, request: UpdateMetadataRequest, *, own: bool = False
    ) -> UpdateMetadataResponse:
        try:
            async with self._admitted(request, own):
                await self._update(request, own)
                return UpdateMetadataResponse(error_code=0)
        except ApiError as error:
            return UpdateMetadataResponse(error_code=error.code)

    async def _update(self, request: UpdateMetadataRequest, own: bool) -> None:
        before = self._broker.metadata
        whole = request.type in (FULL, PART)
        topics = self._topics if whole else dict(before.topics)
        larger: dict[str, tuple[bytes, int]] = {}  # than we know them: their id and highest index
        for state in request.topic_states:
            name, highest = state.topic_name, _highest(state)
            known = topics.get(name) or before.topics.get(name)
            if known is not None and known.topic_id != state.topic_id:
                known = None
            if not _is_deleted(state) and (known is None or highest >= len(known.partitions)):
                larger[name] = state.topic_id, highest
        missing = set() if own else await self._checks.missing(larger)
        await self._know_configs(larger.keys() - missing)
        for state in request.topic_states:
            name = state.topic_name
            known = topics.get(name) or before.topics.get(name)
            if _is_deleted(state):
                if known is None or known.topic_id == state.topic_id:
                    topics.pop(name, None)
                    self.topic_configs.pop(name, None)
                continue
            if name in missing:
                continue
            if known is not None and known.topic_id != state.topic_id:
                known = None
                self.topic_configs.pop(name, None)
            await self._know_configs([name])
            topics[name] = _merge(known, state, self.topic_configs[name])
        if request.type == PART:
            return  # clients must not see half of it
        if whole:
            self._topics = {}
            self.topic_configs = {n: c for n, c in self.topic_configs.items() if n in topics}
        # Even our own controller may have left out what it could not read; but the end of a
        # topic is the end of its committed offsets.
        unnamed = {n: t.topic_id for n, t in before.topics.items() if n not in topics}
        for name in sorted(await self._checks.existing(unnamed)):
            topics[name] = before.topics[name]
            self.topic_configs[name] = dict(topics[name].config)
        brokers = {
            row.id: BrokerInfo(
                row.id, row.endpoints[0].host or None, row.endpoints[0].port, row.rack
            )
            for row in request.live_brokers
            if row.endpoints
        }
        if not own and brokers != before.brokers:
            brokers = await self._checks.live(brokers.keys() | before.brokers.keys())
        self._broker.publish(_with(before, request.controller_id, brokers, topics))
        self.informed.set()

    async def config_changed(self, entity: str) -> None:
        """Settings have changed: of ``topics/name``, ``brokers/id`` or ``groups/id``."""
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


def _is_deleted(state: UpdateMetadataTopicState) -> bool:
    return any(row.leader == DELETED for row in state.partition_states)


def _highest(state: UpdateMetadataTopicState) -> int:
    """The highest index among the partitions of a topic; ApiError if one cannot be."""
    check_name(state.topic_name)
    highest = -1
    for row in state.partition_states:
        if code := name_error((state.topic_name, row.partition_index)):
            raise ApiError(code)
        highest = max(highest, row.partition_index)
    return highest


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
