"""The broker: everything that makes one node, started and stopped in order.

async with Broker({"log.dirs": "data", "listeners": "PLAINTEXT://:9092"}) as broker:
    print(broker.port)
    await broker.stopped()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar

from tidelog.broker import handlers, standalone
from tidelog.broker.connection import Connection
from tidelog.broker.controller_requests import ControllerRequests
from tidelog.broker.dispatch import serve_own
from tidelog.broker.server import Server
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.peer import Peer
from tidelog.clock import Clock, SystemClock
from tidelog.controller.admin import Admin
from tidelog.controller.election import Election
from tidelog.controller.membership import Membership
from tidelog.coordinators.groups.service import GroupCoordinator
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.keeper import Keeper
from tidelog.keeper.paths import DEFAULT_ENTITY
from tidelog.keeper.registry import Registry, retry
from tidelog.keeper.zookeeper import ZooKeeper
from tidelog.log.manager import LogManager, WrongCluster
from tidelog.metadata import (
    OFFSETS_TOPIC,
    BrokerInfo,
    ClusterMetadata,
    PartitionInfo,
    TopicInfo,
)
from tidelog.partition.appending import Appender
from tidelog.partition.cleaner import LogCleaner
from tidelog.partition.fetch_sessions import FetchSessions
from tidelog.partition.fetcher_manager import Fetchers
from tidelog.partition.isr_changes import IsrChanges
from tidelog.partition.log_dir_moves import LogDirMoves
from tidelog.partition.offload import Offload
from tidelog.partition.reading import PartitionReader
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

_MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of answers that are kept, with their requests
_ANSWER_OVERHEAD = 500
_MAX_LOG_CONFIGS = 1000
_CONTROLLED_SHUTDOWN_VERSION = 3
_HAND_OVER_SECONDS = 15


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
        self.standalone = not self.settings["zookeeper.connect"]  # the only one of its cluster
        self.keeper: Keeper
        self.registry: Registry
        self.controller_requests: ControllerRequests
        self.member: Membership
        self.election: Election
        self.controller: Admin
        self.known_brokers: dict[int, BrokerInfo] = {}  # leaders that clients do not know yet
        self.leader_throttle = Throttle(self.clock)
        self.follower_throttle = Throttle(self.clock)
        self.fetchers = Fetchers(self)
        self.offload = Offload()
        self.appender = Appender(self.replicas, self.clock, self.offload)
        self.reader = PartitionReader(
            self.replicas,
            self.clock,
            FetchSessions(self.settings["max.incremental.fetch.session.cache.slots"], self.clock),
            self.leader_throttle,
            lambda: self.settings,
            lambda: self.metadata,
        )
        self.isr_changes = IsrChanges(self)
        self._metadata_waiters: list[asyncio.Future[None]] = []
        self._log_configs: dict[frozenset[tuple[str, str]], LogConfig] = {}
        self._log_configs_of = self.settings
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
        if not self.standalone:  # else the high watermark is the end of the log
            intervals.append(settings["replica.high.watermark.checkpoint.interval.ms"])
        self.spawn(self.replicas.keep_checkpoints(min(intervals)))

    async def _open(self) -> None:
        """Open the logs, and join the cluster: its controller decides what becomes of them."""
        keeper = self.keeper = await self._open_keeper()
        registry = self.registry = Registry(keeper, self.clock)
        requests = self.controller_requests = ControllerRequests(self, registry)
        self.member = Membership(self, keeper, registry, requests, self._log_epochs)
        self.election = self.member.election
        self.controller = Admin(self, registry, requests, self.election)
        try:
            cluster_id = await self._find_cluster_id()
            self.manager.identify(self.broker_id, cluster_id)
            await retry(self.member.prepare)
            self.metadata = ClusterMetadata(
                cluster_id=cluster_id,
                broker_configs=await retry(registry.broker_configs),
                group_configs=await retry(registry.group_configs),
            )
            self._apply_broker_configs(self.metadata)
            self.manager.load(
                lambda name: self._log_config(name, requests.topic_configs.get(name, {})),
                self._report_progress,
            )
            self.replicas.propose_isr = self.isr_changes.propose
            self.replicas.let_go = self.fetchers.forget
            self.spawn(self.isr_changes.run())
            if self.standalone:
                await self._join_alone()
            else:
                await self._join()
        except BaseException:
            await self._abandon()
            await keeper.close()
            raise
        self.spawn(self.replicas.keep_in_sync_sets(self.settings["replica.lag.time.max.ms"]))

    async def _open_keeper(self) -> Keeper:
        if self.standalone:
            return standalone.open_keeper(self.manager)
        session: int = self.settings["zookeeper.session.timeout.ms"]
        return await ZooKeeper.connect(
            self.settings["zookeeper.connect"],
            session,
            self.settings["zookeeper.connection.timeout.ms"] or session,
        )

    async def _find_cluster_id(self) -> str:
        known = self.manager.cluster_id()
        if self.standalone:
            return await self.registry.find_cluster_id(known)
        if known is not None and await retry(self.registry.cluster_id) is None:
            # Its topics would be unknown, and their logs quarantined.
            raise WrongCluster(
                f"the data belongs to cluster {known}, but ZooKeeper at "
                f"{self.settings['zookeeper.connect']} knows of no cluster: is zookeeper.connect "
                "right, and is it started on its own data? If these are lost for good, remove "
                "meta.properties from log.dirs: a new cluster sets the old logs aside"
            )
        return await retry(lambda: self.registry.find_cluster_id(None))

    def _log_epochs(self) -> Mapping[tuple[str, int], int]:
        return standalone.log_epochs(self.manager) if self.standalone else {}

    async def _join_alone(self) -> None:
        await standalone.reconcile(
            self.keeper, self.registry, self.manager, self.own_info(), self.settings
        )
        await self.member.join()
        self.server.start()

    async def _join(self) -> None:
        self.reader.is_registered = self.member.is_registered
        # The controller's requests come as soon as we are registered.
        self.server.start(clients=False)
        self.spawn(self.replicas.log_dirs.watch(self.member.log_dirs_changed))
        await self.member.join()
        # The first now: idempotent producers also come while ZooKeeper is away.
        ids = await retry(lambda: self.registry.allocate_producer_ids(self.broker_id))
        self._producer_ids = iter(ids)
        self.server.let_clients_in()

    async def _abandon(self) -> None:
        """Joining has failed: nothing may go on in the background."""
        self.fetchers.close()
        self.member.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.5)
        self.server.close()

    def own_info(self) -> BrokerInfo:
        """How we register.  Without a host, clients are given the address that they used."""
        advertised = self.settings["advertised.listeners"]
        rack = self.settings["broker.rack"]
        if advertised:
            host, port = parse_listener(advertised[0], "advertised.listeners")
            return BrokerInfo(self.broker_id, host or None, port, rack)
        if not self.standalone:
            host, _ = parse_listener(self.settings["listeners"][0])
            known = host if host not in ("", "0.0.0.0", "::") else _host_name()
            return BrokerInfo(self.broker_id, known, self.server.port, rack)
        return BrokerInfo(self.broker_id, None, self.server.port, rack)

    def _report_progress(self, done: int, total: int) -> None:
        if total >= 100 and done % 100 == 0:
            log.info("opened %d of %d logs", done, total)

    async def stop(self) -> None:
        """Stop cleanly: no new requests, flush, snapshots, the mark of a clean stop."""
        if not self._started:
            return
        self._started = False
        settings = self.settings
        shutdown = settings["controlled.shutdown.enable"] and not self.standalone
        if shutdown and not self._failure:
            await self._hand_over()
        self.server.stop_accepting()
        self.fetchers.close()
        self.member.close()
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
        self._apply_configs(before, metadata)
        self.groups.apply(metadata)
        if metadata.brokers.keys() != before.brokers.keys():
            for partition in list(self.replicas.partitions.values()):
                partition.watchers.wake()  # a replica on a dead broker is not waited for
        waiters, self._metadata_waiters = self._metadata_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def _apply_configs(self, before: ClusterMetadata, metadata: ClusterMetadata) -> None:
        """Settings only: the partitions themselves go by the controller's requests."""
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
        return self._log_config(topic.name, topic.config)

    def _log_config(self, name: str, config: Mapping[str, str]) -> LogConfig:
        """One value for all topics of the same settings: there are thousands, as a rule."""
        own = {**self.settings.topic_overrides.get(name, {}), **config}
        if self._log_configs_of is not self.settings or len(self._log_configs) > _MAX_LOG_CONFIGS:
            self._log_configs_of, self._log_configs = self.settings, {}
        key = frozenset(own.items())
        known = self._log_configs.get(key)
        if known is None:
            known = self._log_configs[key] = LogConfig.of(self.settings, own)
        return known

    # -- in a cluster -------------------------------------------------------------

    @property
    def broker_epoch(self) -> int:
        return self.controller_requests.broker_epoch

    def peer(self, info: BrokerInfo) -> Peer:
        """A new connection to another broker."""
        timeout: int = self.settings["controller.socket.timeout.ms"]
        return Peer(info.host or "localhost", info.port, f"broker-{self.broker_id}", timeout)

    def take_partition(
        self, topic: TopicInfo, index: int, info: PartitionInfo, *, defer: bool = False
    ) -> ErrorCode:
        """Lead or follow, as the controller says."""
        try:
            partition = self.replicas.take(topic, index, info, defer=defer)
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
        if self.election.controller is None:
            return await self.controller.ask(request, answer, version)
        response = await serve_own(self, request, version)
        assert isinstance(response, answer)
        return response

    async def _hand_over(self) -> None:
        """Before we stop, other brokers lead what we lead, so that no client has to wait, and
        another is elected controller.  The time for that is limited."""
        try:
            await self.election.reachable()
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await self._move_leaders_away()
        except ApiError as error:
            log.warning("stopping without moving leaders away: %s", error.message)
        except TimeoutError:
            log.warning(
                "stopping without moving leaders away: the controller has not answered in %d s",
                _HAND_OVER_SECONDS,
            )
        await self.election.leave()

    async def _move_leaders_away(self) -> None:
        request = ControlledShutdownRequest(
            broker_id=self.broker_id, broker_epoch=self.broker_epoch
        )
        for _ in range(1 + self.settings["controlled.shutdown.max.retries"]):
            await self.election.reachable()
            with contextlib.suppress(ApiError, BrokerUnreachable):
                answer = await self.ask_controller(
                    request, ControlledShutdownResponse, _CONTROLLED_SHUTDOWN_VERSION
                )
                if not answer.error_code and not answer.remaining_partitions:
                    return
                if answer.remaining_partitions and len(self.metadata.brokers) == 1:
                    return  # there is no other broker
            await asyncio.sleep(
                min(self.settings["controlled.shutdown.retry.backoff.ms"] / 1000, 0.5)
            )
        log.warning("stopping with leaders that no other broker has taken over")

    # -- what handlers ask ------------------------------------------------------

    def keep_answer(self, key: object, answer: bytes, size: int) -> None:
        """Keep an encoded answer for the same question; ``size`` counts the question too."""
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
        await self.election.reachable()
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
