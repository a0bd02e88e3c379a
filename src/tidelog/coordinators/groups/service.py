"""The group coordinator of a broker: finds the shard, checks what needs the cluster.

Handlers call this.  A method raises :class:`ApiError` if this broker cannot serve the group
now (not the coordinator, still loading, no such id); everything else is in the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Protocol

from tidelog.clock import Clock
from tidelog.coordinators.groups.consumer_members import Beat, ConsumerLimits
from tidelog.coordinators.groups.group_manager import Group, GroupManager, Reply
from tidelog.coordinators.groups.members import GroupLimits, Join, Sync
from tidelog.coordinators.groups.memory import GroupMemory
from tidelog.coordinators.groups.offsets import Committed, GroupOffsets, Removal
from tidelog.coordinators.groups.records import SERDE
from tidelog.coordinators.groups.shard import GroupShard
from tidelog.coordinators.groups.states import GroupState
from tidelog.coordinators.runtime import CoordinatorRuntime, create_internal_topic, partition_for
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.keeper import Keeper, KeeperError
from tidelog.keeper.registry import Registry
from tidelog.metadata import OFFSETS_TOPIC, ClusterMetadata, TopicInfo
from tidelog.new_topic import NewTopic
from tidelog.partition.partition import Partition
from tidelog.partition.replicas import Replicas
from tidelog.settings import Settings
from tidelog.settings_table import LONG_MAX

# What a commit asks for: topic, partition, offset, leader epoch, metadata.
CommitRow = tuple[str, int, int, int, str | None]
Codes = dict[tuple[str, int], ErrorCode]


class TopicCreator(Protocol):
    """The controller."""

    async def create_topic(self, new: NewTopic) -> object: ...


class GroupHost(Protocol):
    """What the coordinator needs of the broker that it runs on."""

    @property
    def settings(self) -> Settings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def broker_id(self) -> int: ...
    @property
    def metadata(self) -> ClusterMetadata: ...
    @property
    def replicas(self) -> Replicas: ...
    @property
    def keeper(self) -> Keeper: ...
    @property
    def controller(self) -> TopicCreator: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> object: ...


class GroupCoordinator:
    """See the module."""

    def __init__(self, broker: GroupHost) -> None:
        settings = broker.settings
        self._broker = broker
        self._limits = GroupLimits.of(settings)
        self.consumer_limits = ConsumerLimits.of(settings)
        self.consumer_protocol = "consumer" in settings["group.coordinator.rebalance.protocols"]
        minutes: int | None = settings["offsets.retention.minutes"]
        self._retention_ms = None if minutes is None else minutes * 60_000
        self._max_metadata: int = settings["offset.metadata.max.bytes"]
        self.memory = GroupMemory()
        self._topics: Mapping[str, TopicInfo] = {}
        self._group_configs: Mapping[str, Mapping[str, str]] = {}
        self._missing: set[str] = set()  # topics with offsets, in this round of ``keep_offsets``
        self._gone: set[str] = set()  # of those of the round before, who have no znode either
        self.runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            lambda writer, timer: GroupShard(
                writer, timer, broker.clock, self._limits, self._limits_of, lambda: broker.metadata
            ),
            SERDE,
            clock=broker.clock,
            spawn=broker.spawn,
            open_partition=self._open_partition,
            broker_id=broker.broker_id,
            ack_timeout_ms=settings["offsets.commit.timeout.ms"],
        )

    # -- life -------------------------------------------------------------------

    def apply(self, metadata: ClusterMetadata) -> None:
        """The cluster has changed."""
        self.runtime.apply(metadata, self._broker.replicas.partitions)
        before, self._topics = self._topics, metadata.topics
        gone, changed = _compare(before, metadata.topics)
        configs, self._group_configs = self._group_configs, metadata.group_configs
        for shard in self.runtime.shards.values():
            if configs != metadata.group_configs:
                shard.manager.limits_changed(configs.keys() | metadata.group_configs.keys())
            if gone:
                shard.topics_deleted(gone)
            if changed:
                shard.manager.topics_changed(changed)

    def leadership_changed(self, index: int, partition: Partition) -> None:
        """The controller has changed the leader of a partition of the topic."""
        self.runtime.leadership_changed(index, partition)

    async def keep_offsets(self, interval_ms: int) -> None:
        """Let old offsets go, again and again."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            missing, self._missing = self._missing, set()
            try:
                registry = Registry(self._broker.keeper, self._broker.clock)
                self._gone = await registry.gone(missing)
            except KeeperError:  # the next round knows
                self._gone = set()
            for shard in list(self.runtime.shards.values()):
                shard.expire(self._retention_ms, self._log_start)
                await asyncio.sleep(0)

    def _limits_of(self, group_id: str) -> ConsumerLimits:
        """The limits of a consumer group: the broker's settings, and its own."""
        config = self._broker.metadata.group_configs.get(group_id)
        return self.consumer_limits.with_config(config) if config else self.consumer_limits

    def _log_start(self, topic: str, partition: int) -> int | None:
        if topic not in self._broker.metadata.topics:
            # Deleted while we did not look; or we have just started in a cluster, and have not
            # heard of everything yet; or its znode cannot be read.  The next round knows.
            self._missing.add(topic)
            return None if topic in self._gone else -1
        found = self._broker.replicas.partitions.get((topic, partition))
        return -1 if found is None else found.log.log_start_offset

    def _open_partition(self, topic: str, index: int) -> Partition:
        try:
            return self._broker.replicas.find(topic, index)
        except ApiError as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error

    def close(self) -> None:
        self.runtime.close()

    # -- finding ----------------------------------------------------------------

    async def find(self, group_id: str) -> int:
        """The broker that coordinates a group; the topic is made on first use."""
        if OFFSETS_TOPIC not in self._broker.metadata.topics:
            await self.create_topic()
        topic = self._broker.metadata.topics.get(OFFSETS_TOPIC)
        if topic is None:  # deleted again
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return topic.partitions[partition_for(group_id, len(topic.partitions))].leader

    async def create_topic(self) -> None:
        """Make the topic that is the memory of groups."""
        settings = self._broker.settings
        brokers = len(self._broker.metadata.brokers)
        new = NewTopic(
            OFFSETS_TOPIC,
            settings["offsets.topic.num.partitions"],
            min(settings["offsets.topic.replication.factor"], brokers),
            config={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(settings["offsets.topic.segment.bytes"]),
            },
        )
        await create_internal_topic(self._broker.controller.create_topic, new)

    def shard(self, group_id: str) -> GroupShard:
        return self.runtime.shard(group_id)

    def _manager(self, group_id: str) -> GroupManager:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        return self.shard(group_id).manager

    # -- members ----------------------------------------------------------------

    def join(self, group_id: str, request: Join, reply: Reply) -> None:
        manager = self._manager(group_id)
        protocols = self.memory.protocols(request.protocols)
        manager.join(group_id, replace(request, protocols=protocols), reply)

    def sync(self, group_id: str, request: Sync, reply: Reply) -> None:
        manager = self._manager(group_id)
        assignments = self.memory.assignments(request.assignments)
        manager.sync(group_id, replace(request, assignments=assignments), reply)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        manager = self._manager(group_id)
        return manager.heartbeat(group_id, member_id, instance_id, generation)

    def leave(
        self, group_id: str, members: Iterable[tuple[str, str | None, str]]
    ) -> list[ErrorCode]:
        """Members leave: member id, instance id, reason."""
        manager = self._manager(group_id)
        return [manager.leave(group_id, *member) for member in members]

    def consumer_heartbeat(self, group_id: str, beat: Beat, reply: Reply) -> None:
        """A member of a consumer group (KIP-848)."""
        manager = self._manager(group_id)
        if beat.topics and beat.epoch >= 0:  # who leaves is not held
            beat = replace(beat, topics=self.memory.topics(beat.topics))
        manager.consumer_heartbeat(group_id, beat, reply)

    # -- offsets ----------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        rows: Sequence[CommitRow],
        retention_ms: int,
        reply: Callable[[Codes], None],
        outsider: str = "",
    ) -> None:
        """Commit offsets; the reply has a code for each partition.

        ``outsider`` names the client, if it is no member.
        """
        shard = self.shard(group_id)
        places = (row[:2] for row in rows)
        code = shard.manager.may_commit(
            group_id, member_id, instance_id, generation, version, places
        )
        if code:
            reply({(row[0], row[1]): code for row in rows})
            return
        now_ms = self._broker.clock.now_ms()
        expire_ms = min(now_ms + retention_ms, LONG_MAX) if retention_ms >= 0 else -1
        codes: Codes = {}
        good: list[tuple[str, int, Committed]] = []
        for topic, partition, offset, epoch, metadata in rows:
            code = self._check(topic, partition, metadata or "")
            codes[topic, partition] = code
            if not code:
                committed = Committed(offset, epoch, metadata or "", now_ms, expire_ms)
                good.append((topic, partition, committed))
        if not good:
            reply(codes)
            return

        def done(error: ErrorCode) -> None:
            if error == ErrorCode.UNKNOWN_SERVER_ERROR:
                error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            if error:
                codes.update({(topic, partition): error for topic, partition, _ in good})
            reply(codes)

        shard.commit(group_id, good, done, outsider)

    def _check(self, topic: str, partition: int, metadata: str) -> ErrorCode:
        # Any offset may be committed, as in Kafka: kafkajs commits -1 and -2 to start again.
        known = self._broker.metadata.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(metadata.encode()) > self._max_metadata:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def offsets(self, group_id: str) -> GroupOffsets:
        """What a group has committed; empty if there is no such group."""
        return self.shard(group_id).offsets.get(group_id) or GroupOffsets()

    def pending(self, group_id: str) -> Set[tuple[str, int]]:
        """Partitions for which a group has committed in transactions that are still open."""
        return self.shard(group_id).store.pending.places(group_id)

    def all_committed(self, group_id: str) -> bool:
        """May the coordinator of a group answer as it knows things?  See ``PartitionWriter``."""
        writer = self.runtime.writer(group_id)
        return writer is None or writer.all_committed

    async def when_committed(self, group_id: str) -> ErrorCode:
        """Wait for that.  NOT_COORDINATOR if it does not come: another broker may coordinate."""
        writer = self.runtime.writer(group_id)
        if writer is None:
            return ErrorCode.NONE
        committed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(error: ErrorCode) -> None:
            if not committed.done():  # the client may be gone
                committed.set_result(error)

        writer.when_committed(done)
        return ErrorCode.NOT_COORDINATOR if await committed else ErrorCode.NONE

    def removals(self, group_id: str) -> Mapping[tuple[str, int], Removal]:
        """Offsets that a group does not have any more, and why."""
        offsets = self.shard(group_id).offsets.get(group_id)
        return {} if offsets is None else offsets.removals

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raise if a member of a consumer group is not what it says."""
        code = self.shard(group_id).manager.may_fetch(group_id, member_id, epoch)
        if code:
            raise ApiError(code)

    def delete_offsets(
        self,
        group_id: str,
        places: Iterable[tuple[str, int]],
        reply: Callable[[ErrorCode, Codes], None],
    ) -> None:
        """Forget offsets of topics that the group does not read (OffsetDelete)."""
        shard = self.shard(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            reply(ErrorCode.GROUP_ID_NOT_FOUND, {})
            return
        subscribed = group.subscribed()
        if subscribed is None:
            # Members that are no consumers: who knows what they read.
            reply(ErrorCode.NON_EMPTY_GROUP, {})
            return
        offsets = shard.offsets.get(group_id) or GroupOffsets()
        pending = shard.store.pending.places(group_id)
        codes: Codes = {}
        gone: list[tuple[str, int, str]] = []
        for topic, partition in places:
            known = self._broker.metadata.topics.get(topic)
            if topic in subscribed:
                codes[topic, partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif offsets.get(topic, partition) is not None or (topic, partition) in pending:
                codes[topic, partition] = ErrorCode.NONE
                gone.append((topic, partition, "a client deleted it (OffsetDelete)"))
            elif known is None or not 0 <= partition < len(known.partitions):
                codes[topic, partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                codes[topic, partition] = ErrorCode.NONE
        if not gone:
            reply(ErrorCode.NONE, codes)
            return
        shard.remove_offsets(group_id, gone, lambda error: reply(error, codes))

    # -- looking ----------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        return self.shard(group_id).groups.get(group_id)

    def groups(self) -> list[Group]:
        """Every group of this broker.  Raises while a shard is still loading."""
        if self.runtime.loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [
            group
            for shard in self.runtime.shards.values()
            for group in shard.groups.values()
            if group.state is not GroupState.DEAD
        ]

    def delete(self, group_id: str, done: Callable[[ErrorCode], None]) -> None:
        self._manager(group_id)
        self.shard(group_id).delete(group_id, done)


def _compare(
    before: Mapping[str, TopicInfo], after: Mapping[str, TopicInfo]
) -> tuple[set[str], set[str]]:
    """The topics that are gone (another one may have the name), and all with other partitions."""
    gone: set[str] = set()
    changed = set(after.keys() - before.keys())
    for name, old in before.items():
        new = after.get(name)
        if new is old:
            continue  # one of ten thousand has changed, as a rule
        if new is None or new.topic_id != old.topic_id:
            gone.add(name)
        elif len(new.partitions) != len(old.partitions):
            changed.add(name)
    return gone, changed | gone
