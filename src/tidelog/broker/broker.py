"""The broker: everything that makes one node, started and stopped in order.

async with Broker({"log.dirs": "data", "listeners": "PLAINTEXT://:9092"}) as broker:
    print(broker.port)
    await broker.stopped()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

from tidelog import files
from tidelog.broker import handlers
from tidelog.broker.connection import Connection
from tidelog.broker.dispatch import serve_own
from tidelog.broker.server import Server
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.peer import Peer
from tidelog.clock import Clock, SystemClock
from tidelog.controller.admin import ClusterAdmin
from tidelog.controller.admin_protocol import Admin
from tidelog.controller.controller import Controller
from tidelog.controller.membership import Membership
from tidelog.coordinators.groups.service import GroupCoordinator
from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.ids import random_uuid
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import Keeper
from tidelog.keeper.paths import DEFAULT_ENTITY
from tidelog.keeper.registry import patiently
from tidelog.keeper.znodes import KEEP_ALL
from tidelog.keeper.zookeeper import ZooKeeper
from tidelog.log.manager import LogManager, Opened, WrongCluster
from tidelog.metadata import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    BrokerInfo,
    ClusterMetadata,
    PartitionInfo,
    TopicInfo,
)
from tidelog.new_topic import NewTopic
from tidelog.partition.appending import Appender
from tidelog.partition.cleaner import LogCleaner
from tidelog.partition.fetch_sessions import FetchSessions
from tidelog.partition.fetcher_manager import Fetchers
from tidelog.partition.isr_changes import IsrChanges
from tidelog.partition.log_dir_moves import LogDirMoves
from tidelog.partition.offload import Offload
from tidelog.partition.reading import Reader
from tidelog.partition.replicas import Replicas
from tidelog.partition.throttle import FOLLOWER_RATE, LEADER_RATE, Throttle
from tidelog.settings import LogConfig, Settings, check_broker_config, parse_listener
from tidelog.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from tidelog.wire.schema import Message

R = TypeVar("R", bound=Message)

log = logging.getLogger(__name__)

handlers.load_all()

KEEPER_JOURNAL = "tidelog-keeper.journal"
_MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of answers that are kept, with their requests
_ANSWER_OVERHEAD = 500
_CONTROLLED_SHUTDOWN_VERSION = 3
_HAND_OVER_SECONDS = 15  # who stops us does not wait for ever
# Topic settings are not on disk; without this one, retention would drop committed offsets.
_INTERNAL_CONFIG = {"cleanup.policy": "compact"}


class Broker:
    """One node; see the module."""

    def __init__(
        self, settings: Settings | Mapping[str, Any] | None = None, clock: Clock | None = None
    ) -> None:
        self.static_settings = settings if isinstance(settings, Settings) else Settings.of(settings)
        self.settings = self.static_settings  # with dynamic broker settings on top
        self.clock = clock or SystemClock()
        self.broker_id: int = self.settings["broker.id"]
        self.metadata = ClusterMetadata()
        self.answers: dict[object, bytes] = {}  # encoded, good until the cluster changes
        self._answer_bytes = 0
        self.manager = LogManager(self.settings["log.dirs"], self.clock)
        self.replicas = Replicas(
            self.manager, self.log_config, self.broker_id, self.clock, lambda: self.metadata
        )
        self.log_dir_moves = LogDirMoves(
            self.replicas,
            self.spawn,
            lambda: self.settings["replica.alter.log.dirs.io.max.bytes.per.second"],
        )
        self.groups = GroupCoordinator(self)
        self.server = Server(self, self.settings)
        self.keeper: Keeper
        self.controller: Admin
        self.member: Membership | None = None  # of a cluster; None with the embedded keeper
        self.known_brokers: dict[int, BrokerInfo] = {}  # leaders that clients do not know yet
        self.leader_throttle = Throttle(self.clock)
        self.follower_throttle = Throttle(self.clock)
        self.fetchers = Fetchers(self)
        self.offload = Offload()
        self.appender = Appender(self.replicas, self.clock, self.offload)
        self.reader = Reader(
            self.replicas,
            self.clock,
            FetchSessions(self.settings["max.incremental.fetch.session.cache.slots"], self.clock),
            self.leader_throttle,
            lambda: self.settings,
            lambda: self.metadata,
        )
        self.isr_changes = IsrChanges(self)
        self._metadata_waiters: list[asyncio.Future[None]] = []
        self._last_config: tuple[TopicInfo, Settings, LogConfig] | None = None
        self._producer_ids = iter(range(0))
        self._producer_id_lock = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self._stopped = asyncio.Event()
        self._failure: Exception | None = None
        self._started = False
        self.unflushed: dict[str, OSError] = {}  # after a stop: what is not on disk, and why

    # -- start and stop ---------------------------------------------------------

    async def start(self) -> None:
        """Take the port and the data, recover, and begin to serve."""
        _raise_descriptor_limit()
        for note in self.settings.notes:
            log.warning("%s", note)
        self.manager.open()  # first: a second broker here learns who is the first
        try:
            self.server.bind()
            await self._open()
        except BaseException:
            self.server.stop_accepting()
            self.manager.release()
            raise
        if self.member is None:
            self.server.start()
        self._started = True
        settings = self.settings
        self.spawn(self.server.reap_idle())
        self.spawn(self.replicas.keep_maps())
        self.spawn(self.groups.keep_offsets(settings["offsets.retention.check.interval.ms"]))
        self.spawn(
            self.replicas.keep_retention(
                settings["log.retention.check.interval.ms"], settings["producer.id.expiration.ms"]
            )
        )
        if settings["log.cleaner.enable"]:
            self.spawn(LogCleaner(self.replicas, lambda: self.settings, self.clock).run())
        intervals = [
            settings["log.flush.offset.checkpoint.interval.ms"],
            settings["log.flush.start.offset.checkpoint.interval.ms"],
        ]
        if self.member is not None:
            intervals.append(settings["replica.high.watermark.checkpoint.interval.ms"])
        self.spawn(self.replicas.keep_checkpoints(min(intervals)))

    async def _open(self) -> None:
        if self.settings["zookeeper.connect"]:
            await self._open_in_cluster()
        else:
            await self._open_alone()

    async def _open_alone(self) -> None:
        keeper = EmbeddedKeeper.open(self._find_journal())
        self.keeper = keeper
        controller = Controller(keeper, self.settings, self.clock, self.publish)
        self.controller = controller
        cluster_id = await controller.find_cluster_id(self.manager.cluster_id())
        self.manager.identify(self.broker_id, cluster_id)
        await controller.elect(self.own_info(), cluster_id)
        self.metadata = controller.metadata
        self._apply_broker_configs(self.metadata)
        found = self.manager.load(self._config_by_name, self._report_progress)
        await self._settle_unknown_logs(controller, found)
        await self._catch_up(controller)
        self.publish(controller.metadata)

    async def _open_in_cluster(self) -> None:
        """Open the logs; what to do with them the controller says, once we have joined."""
        settings = self.settings
        session: int = settings["zookeeper.session.timeout.ms"]
        keeper = await ZooKeeper.connect(
            settings["zookeeper.connect"],
            session,
            settings["zookeeper.connection.timeout.ms"] or session,
        )
        self.keeper = keeper
        try:
            member = Membership(self, keeper)
            registry, known = member.registry, self.manager.cluster_id()
            if known is not None and await patiently(registry.cluster_id) is None:
                # Its topics would be unknown, and their logs set aside.
                raise WrongCluster(
                    f"the data belongs to cluster {known}, but ZooKeeper at "
                    f"{settings['zookeeper.connect']} knows of no cluster: is zookeeper.connect "
                    "right, and is it started on its own data? If these are lost for good, remove "
                    "meta.properties from log.dirs: a new cluster sets the old logs aside"
                )
            cluster_id = await patiently(lambda: registry.find_cluster_id(None))
            self.manager.identify(self.broker_id, cluster_id)
            await patiently(member.prepare)
            self.metadata = ClusterMetadata(
                cluster_id=cluster_id,
                broker_configs=await patiently(registry.broker_configs),
                group_configs=await patiently(registry.group_configs),
            )
            self._apply_broker_configs(self.metadata)
            self.manager.load(
                lambda name: self._log_config(name, member.orders.topic_configs.get(name, {})),
                self._report_progress,
            )
            self.member = member
            self.controller = ClusterAdmin(self, member)
            self.replicas.propose_isr = self.isr_changes.propose
            self.replicas.let_go = self.fetchers.forget
            self.reader.is_registered = member.is_registered
            # The controller's orders come as soon as we are registered.
            self.server.start(clients=False)
            self.spawn(self.isr_changes.run())
            await member.join()
            # The first now: idempotent producers also come while ZooKeeper is away.
            ids = await patiently(lambda: registry.allocate_producer_ids(self.broker_id))
            self._producer_ids = iter(ids)
            self.server.let_clients_in()
        except BaseException:
            await self._abandon()
            await keeper.close()
            raise
        self.spawn(self.replicas.keep_in_sync_sets(settings["replica.lag.time.max.ms"]))

    async def _abandon(self) -> None:
        """Joining has failed: nothing may go on in the background."""
        self.fetchers.close()
        if self.member is not None:
            self.member.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.5)
        self.server.close()

    def _find_journal(self) -> str:
        """The keeper's journal, whichever data directory it is in; a new one in the first."""
        paths = [os.path.join(path, KEEPER_JOURNAL) for path in self.manager.directories]
        found = [path for path in paths if files.exists(path)]
        if len(found) > 1:
            raise SettingError(
                f"log.dirs: {found[0]} and {found[1]} are both journals of a keeper; "
                "these directories belong to different brokers"
            )
        return found[0] if found else paths[0]

    def own_info(self) -> BrokerInfo:
        """What others are told of us."""
        advertised = self.settings["advertised.listeners"]
        rack = self.settings["broker.rack"]
        if advertised:
            host, port = parse_listener(advertised[0], "advertised.listeners")
            return BrokerInfo(self.broker_id, host or None, port, rack)
        if self.settings["zookeeper.connect"]:
            host, _ = parse_listener(self.settings["listeners"][0])
            known = host if host not in ("", "0.0.0.0", "::") else _host_name()
            return BrokerInfo(self.broker_id, known, self.server.port, rack)
        return BrokerInfo(self.broker_id, None, self.server.port, rack)

    async def _settle_unknown_logs(
        self, controller: Controller, found: dict[tuple[str, int], Opened]
    ) -> None:
        """Logs on disk that the registry does not know.

        With a registry that was never used (a directory that Kafka wrote, a lost journal)
        they are taken in.  After an interrupted deletion they go.  Otherwise they are set
        aside, never deleted.
        """
        unknown: dict[str, list[int]] = {}
        for (topic, index), opened in found.items():
            known = self.metadata.topics.get(topic)
            if (
                known is None
                or index >= len(known.partitions)
                or opened.topic_id not in (None, known.topic_id)  # an older topic of the same name
            ):
                unknown.setdefault(topic, []).append(index)
        doomed = await controller.deleted_topics()
        for topic, indexes in unknown.items():
            known = self.metadata.topics.get(topic)
            if controller.first_start and topic not in doomed and known is None:
                topic_id = found[topic, indexes[0]].topic_id or random_uuid()
                try:
                    config = _INTERNAL_CONFIG if topic in INTERNAL_TOPICS else KEEP_ALL
                    new = NewTopic(topic, max(indexes) + 1, 1, config=config, topic_id=topic_id)
                    await controller.create_topic(new)
                    log.warning(
                        "%s: taken in, %d partitions; its settings are not known, so it keeps "
                        "everything until retention.ms and retention.bytes are set",
                        topic,
                        max(indexes) + 1,
                    )
                    continue
                except ApiError as error:
                    log.warning("%s cannot be taken in: %s", topic, error.message)
            for index in indexes:
                if topic in doomed and known is None:
                    path = self.manager.delete(topic, index)
                    files.remove_tree(path or "")
                else:
                    self.manager.set_aside(topic, index)
        await controller.settled()

    async def _catch_up(self, controller: Controller) -> None:
        """Another broker (Kafka, or one whose journal is lost) may have written these logs."""
        logs = self.manager.logs
        epochs = {key: found.epochs.latest for key, found in logs.items()}
        producer_ids = (i for found in logs.values() for i in found.producers.producers)
        await controller.catch_up(epochs, max(producer_ids, default=-1))

    def _report_progress(self, done: int, total: int) -> None:
        if total >= 100 and done % 100 == 0:
            log.info("opened %d of %d logs", done, total)

    async def stop(self) -> None:
        """Stop cleanly: no new requests, flush, snapshots, the mark of a clean stop."""
        if not self._started:
            return
        self._started = False
        settings = self.settings
        if self.member is not None and settings["controlled.shutdown.enable"] and not self._failure:
            await self._hand_over()
        self.server.stop_accepting()
        self.fetchers.close()
        if self.member is not None:
            self.member.close()
            assert isinstance(self.controller, ClusterAdmin)
            self.controller.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.5)
        await self.offload.close()
        self.server.close()
        self.groups.close()
        self.unflushed = self.replicas.close()
        await self.keeper.close()
        self._stopped.set()

    def fail(self, error: Exception) -> None:
        """Serve no more, from this moment on; :meth:`stopped` raises the error, and then the logs
        are still to be closed with :meth:`stop`."""
        self._failure = error
        self.server.stop_accepting()
        self.server.hang_up()
        self.fetchers.close()
        self._stopped.set()

    async def stopped(self) -> None:
        """Wait until the broker is stopped; raises why, if it could not go on."""
        await self._stopped.wait()
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something in the background; a failure is never silent."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    # -- metadata and settings --------------------------------------------------

    def publish(self, metadata: ClusterMetadata) -> None:
        """The cluster has changed: act on it."""
        before = self.metadata
        if metadata.broker_configs != before.broker_configs:
            self._apply_broker_configs(metadata)
        self.metadata = metadata
        self._forget_answers()
        if self.member is None:
            self.replicas.apply(metadata)
        else:
            self._apply_configs(before, metadata)
        self.groups.apply(metadata)
        if metadata.brokers.keys() != before.brokers.keys():
            for partition in list(self.replicas.partitions.values()):
                partition.watchers.wake()  # nobody waits for a replica on a dead broker
        waiters, self._metadata_waiters = self._metadata_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def _apply_configs(self, before: ClusterMetadata, metadata: ClusterMetadata) -> None:
        """Settings only: in a cluster the partitions themselves go by the controller's orders."""
        everything = before.broker_configs != metadata.broker_configs
        for name, topic in metadata.topics.items():
            old = before.topics.get(name)
            if everything or (old is not topic and (old is None or old.config != topic.config)):
                self.replicas.configure(topic)

    async def next_metadata(self) -> None:
        """Wait until the cluster has changed."""
        future = asyncio.get_running_loop().create_future()
        self._metadata_waiters.append(future)
        await future

    def _apply_broker_configs(self, metadata: ClusterMetadata) -> None:
        changes: dict[str, Any] = {}
        for entity in (DEFAULT_ENTITY, str(self.broker_id)):
            changes.update(check_broker_config(metadata.broker_configs.get(entity, {})))
        self.settings = self.static_settings.with_changes(changes)
        self.leader_throttle.limit(self.settings[LEADER_RATE])
        self.follower_throttle.limit(self.settings[FOLLOWER_RATE])

    def log_config(self, topic: TopicInfo) -> LogConfig:
        """What the logs of a topic go by: its own settings over the broker's."""
        known = self._last_config  # a thousand partitions of a topic come one after the other
        if known is None or known[0] is not topic or known[1] is not self.settings:
            config = self._log_config(topic.name, topic.config)
            known = self._last_config = topic, self.settings, config
        return known[2]

    def _log_config(self, name: str, config: Mapping[str, str]) -> LogConfig:
        own = {**self.settings.topic_overrides.get(name, {}), **config}
        return LogConfig.of(self.settings, own)

    def _config_by_name(self, name: str) -> LogConfig:
        topic = self.metadata.topics.get(name)
        return self.log_config(topic) if topic else LogConfig.of(self.settings)

    # -- in a cluster -------------------------------------------------------------

    @property
    def broker_epoch(self) -> int:
        return self.member.orders.broker_epoch if self.member is not None else -1

    def peer(self, info: BrokerInfo) -> Peer:
        """A new connection to another broker."""
        timeout: int = self.settings["controller.socket.timeout.ms"]
        return Peer(info.host or "localhost", info.port, f"broker-{self.broker_id}", timeout)

    def take_partition(self, topic: TopicInfo, index: int, info: PartitionInfo) -> ErrorCode:
        """Lead or follow, as the controller says."""
        try:
            partition = self.replicas.take(topic, index, info)
        except ApiError as error:
            return error.code
        except OSError as error:
            self.replicas.write_failed(error.filename or f"{topic.name}-{index}", error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if partition is not None:
            if info.leader in (-1, self.broker_id):
                self.fetchers.forget(partition)
            else:
                self.fetchers.follow(partition, info.leader)
            if topic.name == OFFSETS_TOPIC:
                self.groups.leadership_changed(index, partition)
        return self.replicas.storage_code((topic.name, index))

    def stop_partition(self, key: tuple[str, int], *, delete: bool) -> None:
        """We have a partition no longer."""
        partition = self.replicas.partitions.get(key)
        if delete:
            self.replicas.drop(key)
        elif partition is not None:
            self.fetchers.forget(partition)

    async def ask_controller(self, request: Message, answer: type[R], version: int) -> R:
        """Ask the controller of the cluster, here or on another broker."""
        assert self.member is not None
        assert isinstance(self.controller, ClusterAdmin)
        if self.member.controller is None:
            return await self.controller.ask(request, answer, version)
        response = await serve_own(self, request, version)
        assert isinstance(response, answer)
        return response

    async def _hand_over(self) -> None:
        """Before we stop, others lead what we lead, so that no client has to wait; and govern.

        This takes no longer than it may, whoever does not answer.
        """
        assert self.member is not None
        try:
            await self.member.reachable()
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await self._move_leaders_away()
        except ApiError as error:
            log.warning("stopping without moving leaders away: %s", error.message)
        except TimeoutError:
            log.warning(
                "stopping without moving leaders away: the controller has not answered in %d s",
                _HAND_OVER_SECONDS,
            )
        await self.member.retire()

    async def _move_leaders_away(self) -> None:
        request = ControlledShutdownRequest(
            broker_id=self.broker_id, broker_epoch=self.broker_epoch
        )
        assert self.member is not None
        for _ in range(1 + self.settings["controlled.shutdown.max.retries"]):
            await self.member.reachable()
            with contextlib.suppress(ApiError, BrokerUnreachable):
                answer = await self.ask_controller(
                    request, ControlledShutdownResponse, _CONTROLLED_SHUTDOWN_VERSION
                )
                if not answer.error_code and not answer.remaining_partitions:
                    return
                if answer.remaining_partitions and len(self.metadata.brokers) == 1:
                    return  # there is nobody who could
            await asyncio.sleep(
                min(self.settings["controlled.shutdown.retry.backoff.ms"] / 1000, 0.5)
            )
        log.warning("stopping with leaders that nobody has taken over")

    # -- what handlers ask ------------------------------------------------------

    def keep_answer(self, key: object, answer: bytes, size: int) -> None:
        """Keep an encoded answer for whoever asks the same; ``size`` counts the question too."""
        if self._answer_bytes + size > _MAX_ANSWER_BYTES:
            self._forget_answers()
        if size <= _MAX_ANSWER_BYTES // 4:
            self._answer_bytes += size + _ANSWER_OVERHEAD
            self.answers[key] = answer

    def _forget_answers(self) -> None:
        self.answers.clear()
        self._answer_bytes = 0

    def address_of(self, info: BrokerInfo, connection: Connection) -> tuple[str, int]:
        """Where this client reaches a broker: as advertised, or as it reached us."""
        if info.host is not None:
            return info.host, info.port
        return connection.local_host, connection.local_port

    async def next_producer_id(self) -> int:
        """A producer id that no producer ever had."""
        for producer_id in self._producer_ids:
            return producer_id
        if self.member is not None:
            await self.member.reachable()  # all who wait hear at the same time that it is not
        async with self._producer_id_lock:
            for producer_id in self._producer_ids:
                return producer_id
            self._producer_ids = iter(await self.controller.allocate_producer_ids(self.broker_id))
            return next(self._producer_ids)

    @property
    def port(self) -> int:
        return self.server.port


def _raise_descriptor_limit() -> None:
    """Thousands of connections and segments need as many descriptors as we may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _host_name() -> str:
    """How other machines may find this one."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
