"""The broker: everything that makes one node, started and stopped in order.

async with Broker({"log.dirs": "data", "listeners": "PLAINTEXT://:9092"}) as broker:
    print(broker.port)
    await broker.stopped()
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any

from tidelog.broker import handlers
from tidelog.broker.cleaner import LogCleaner
from tidelog.broker.connection import Connection
from tidelog.broker.fetch_sessions import FetchSessions
from tidelog.broker.replicas import Replicas
from tidelog.broker.server import Server
from tidelog.clock import Clock, SystemClock
from tidelog.coordination.controller import Controller
from tidelog.coordination.embedded import EmbeddedKeeper
from tidelog.coordination.metadata import (
    INTERNAL_TOPICS,
    BrokerInfo,
    ClusterMetadata,
    TopicInfo,
)
from tidelog.coordination.paths import DEFAULT_ENTITY
from tidelog.coordinators.service import GroupCoordinator
from tidelog.errors import ApiError, SettingError
from tidelog.log.manager import LogManager, Opened
from tidelog.settings import LogConfig, Settings, check_broker_config, parse_listener
from tidelog.wire.uuids import random_uuid

log = logging.getLogger(__name__)

handlers.load_all()

KEEPER_JOURNAL = "tidelog-keeper.journal"
_MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of answers that are kept, with their requests
_ANSWER_OVERHEAD = 500
# Topic settings are not on disk; without this one, retention would drop committed offsets.
_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
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
        self.fetch_sessions = FetchSessions(
            self.settings["max.incremental.fetch.session.cache.slots"], self.clock
        )
        self.manager = LogManager(self.settings["log.dirs"], self.clock)
        self.replicas = Replicas(self.manager, self.log_config, self.broker_id, self.clock)
        self.groups = GroupCoordinator(self)
        self.server = Server(self, self.settings)
        self.keeper: EmbeddedKeeper
        self.controller: Controller
        self._producer_ids = iter(range(0))
        self._producer_id_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._started = False

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
        self.server.start()
        self._started = True
        settings = self.settings
        self.spawn(self.server.reap_idle())
        self.spawn(self.groups.keep_offsets(settings["offsets.retention.check.interval.ms"]))
        self.spawn(
            self.replicas.keep_retention(
                settings["log.retention.check.interval.ms"], settings["producer.id.expiration.ms"]
            )
        )
        if settings["log.cleaner.enable"]:
            self.spawn(LogCleaner(self.replicas, lambda: self.settings, self.clock).run())
        self.spawn(
            self.replicas.keep_checkpoints(
                min(
                    settings["log.flush.offset.checkpoint.interval.ms"],
                    settings["log.flush.start.offset.checkpoint.interval.ms"],
                )
            )
        )

    async def _open(self) -> None:
        self.keeper = EmbeddedKeeper.open(self._find_journal())
        self.controller = Controller(self.keeper, self.settings, self.clock, self._publish)
        cluster_id = await self.controller.find_cluster_id(self.manager.cluster_id())
        self.manager.identify(self.broker_id, cluster_id)
        await self.controller.elect(self._own_info(), cluster_id)
        self.metadata = self.controller.metadata
        self._apply_broker_configs(self.metadata)
        found = self.manager.load(self._config_by_name, self._report_progress)
        await self._settle_unknown_logs(found)
        await self._catch_up()
        self._publish(self.controller.metadata)

    def _find_journal(self) -> str:
        """The keeper's journal, whichever data directory it is in; a new one in the first."""
        paths = [os.path.join(path, KEEPER_JOURNAL) for path in self.manager.directories]
        found = [path for path in paths if os.path.exists(path)]
        if len(found) > 1:
            raise SettingError(
                f"log.dirs: {found[0]} and {found[1]} are both journals of a keeper; "
                "these directories belong to different brokers"
            )
        return found[0] if found else paths[0]

    def _own_info(self) -> BrokerInfo:
        advertised = self.settings["advertised.listeners"]
        if advertised:
            host, port = parse_listener(advertised[0], "advertised.listeners")
            return BrokerInfo(self.broker_id, host or None, port, self.settings["broker.rack"])
        return BrokerInfo(self.broker_id, None, self.server.port, self.settings["broker.rack"])

    async def _settle_unknown_logs(self, found: dict[tuple[str, int], Opened]) -> None:
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
        doomed = await self.controller.deleted_topics()
        for topic, indexes in unknown.items():
            known = self.metadata.topics.get(topic)
            if self.controller.first_start and topic not in doomed and known is None:
                topic_id = found[topic, indexes[0]].topic_id or random_uuid()
                try:
                    await self.controller.create_topic(
                        topic,
                        max(indexes) + 1,
                        1,
                        config=_INTERNAL_CONFIG if topic in INTERNAL_TOPICS else _KEEP_ALL,
                        topic_id=topic_id,
                    )
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
                    shutil.rmtree(path or "", ignore_errors=True)
                else:
                    self.manager.set_aside(topic, index)
        await self.controller.settled()

    async def _catch_up(self) -> None:
        """Another broker (Kafka, or one whose journal is lost) may have written these logs."""
        logs = self.manager.logs
        epochs = {key: found.epochs.latest for key, found in logs.items()}
        producer_ids = (i for found in logs.values() for i in found.producers.producers)
        await self.controller.catch_up(epochs, max(producer_ids, default=-1))

    def _report_progress(self, done: int, total: int) -> None:
        if total >= 100 and done % 100 == 0:
            log.info("opened %d of %d logs", done, total)

    async def stop(self) -> None:
        """Stop cleanly: no new requests, flush, snapshots, the mark of a clean stop."""
        if not self._started:
            return
        self._started = False
        self.server.stop_accepting()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.5)
        self.server.close()
        self.groups.close()
        self.replicas.close()
        await self.keeper.close()
        self._stopped.set()

    async def stopped(self) -> None:
        """Wait until the broker is stopped."""
        await self._stopped.wait()

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

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background; a failure is never silent."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    # -- metadata and settings --------------------------------------------------

    def _publish(self, metadata: ClusterMetadata) -> None:
        """The cluster has changed: act on it."""
        if metadata.broker_configs != self.metadata.broker_configs:
            self._apply_broker_configs(metadata)
        self.metadata = metadata
        self._forget_answers()
        self.replicas.apply(metadata)
        self.groups.apply(metadata)

    def _apply_broker_configs(self, metadata: ClusterMetadata) -> None:
        changes: dict[str, Any] = {}
        for entity in (DEFAULT_ENTITY, str(self.broker_id)):
            changes.update(check_broker_config(metadata.broker_configs.get(entity, {})))
        self.settings = self.static_settings.with_changes(changes)

    def log_config(self, topic: TopicInfo) -> LogConfig:
        """What the logs of a topic go by: its own settings over the broker's."""
        own = {**self.settings.topic_overrides.get(topic.name, {}), **topic.config}
        return LogConfig.of(self.settings, own)

    def _config_by_name(self, name: str) -> LogConfig:
        topic = self.metadata.topics.get(name)
        return self.log_config(topic) if topic else LogConfig.of(self.settings)

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
