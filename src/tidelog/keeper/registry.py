"""The registry: what any broker reads from the tree of znodes, and may write to it.

Leaders and in-sync sets are written by the controller alone (``controller/store.py``); the rest
(registrations, settings, blocks of producer ids) by any broker, guarded by the versions of the
znodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from tidelog.clock import Clock
from tidelog.errors import SettingError
from tidelog.ids import random_uuid
from tidelog.keeper import paths
from tidelog.keeper import znodes as decoding
from tidelog.keeper.keeper import (
    BadVersion,
    ConnectionLost,
    Create,
    Delete,
    Keeper,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    Set,
    Stat,
    Unreachable,
    Watch,
)
from tidelog.keeper.znodes import UnreadableZnode
from tidelog.metadata import BrokerInfo, PartitionInfo, TopicInfo
from tidelog.wire.uuids import uuid_text

log = logging.getLogger(__name__)

T = TypeVar("T")
_RETRY_SECONDS = 0.2

PRODUCER_ID_BLOCK = 1000
CHANGE_LIVES_MS = (
    15 * 60_000
)  # a notification of changed settings; by then every broker has read it


async def retry(work: Callable[[], Awaitable[T]]) -> T:
    """Until it works, for what may be done in any session: one that ends costs only time."""
    while True:
        try:
            return await work()
        except Unreachable:  # the keeper logs it, now and then
            await asyncio.sleep(_RETRY_SECONDS)
        except (ConnectionLost, SessionExpired) as error:
            log.warning("ZooKeeper: %s (%s); trying again", error, type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)


class Registry:
    """See the module."""

    def __init__(self, keeper: Keeper, clock: Clock) -> None:
        self._keeper = keeper
        self._clock = clock
        self.unreadable: frozenset[str] = frozenset()  # topics, when all were last read
        self._passed_over: frozenset[str] = frozenset()  # what was wrong with brokers, likewise

    # -- the cluster ------------------------------------------------------------

    async def cluster_id(self) -> str | None:
        """The cluster's id, if there is a cluster."""
        try:
            data, _ = await self._keeper.get(paths.CLUSTER_ID)
        except NoNode:
            return None
        found: str = paths.from_json(data)["id"]
        return found

    async def find_cluster_id(self, on_disk: str | None) -> str:
        """The cluster's id; the first broker of a cluster writes it down."""
        while True:
            found = await self.cluster_id()
            if found is not None:
                return found
            new = on_disk or uuid_text(random_uuid())
            value = paths.to_json({"version": "1", "id": new})
            try:
                await self._keeper.multi([Create(paths.CLUSTER_ID, value)])
                return new
            except NodeExists:  # another broker was the first
                continue

    async def controller(self) -> tuple[int, int]:
        """The epoch of the newest controller and its broker id, -1 if it is gone."""
        epoch, broker_id = 0, -1
        await self._keeper.sync()
        with suppress(NoNode):
            # In this order: a controller that is elected in between has a higher epoch.
            epoch = int((await self._keeper.get(paths.CONTROLLER_EPOCH))[0])
            broker_id = int(
                paths.from_json((await self._keeper.get(paths.CONTROLLER))[0])["brokerid"]
            )
        return epoch, broker_id

    async def sync(self) -> None:
        """See :meth:`Keeper.sync`."""
        await self._keeper.sync()

    async def make_paths(self) -> None:
        """The znodes that are always there."""
        for path in paths.PERSISTENT:
            if await self._keeper.exists(path) is None:
                try:
                    await self._keeper.multi([Create(path)])
                except NodeExists:
                    continue

    # -- brokers ----------------------------------------------------------------

    async def register(self, broker: BrokerInfo) -> int:
        """Register a broker; returns the epoch of this registration."""
        path = paths.broker(broker.broker_id)
        value = paths.broker_value(broker.host, broker.port, broker.rack, self._clock.now_ms())
        try:
            await self._keeper.multi([Create(path, value, ephemeral=True)])
        except NodeExists:
            raise SettingError(
                f"broker.id={broker.broker_id}: a broker with this id is running already"
            ) from None
        _, stat = await self._keeper.get(path)
        return stat.czxid

    async def registration(
        self, broker_id: int, watch: Watch | None = None
    ) -> tuple[BrokerInfo, Stat] | None:
        """The registration of a broker; Unreadable if it makes no sense."""
        try:
            data, stat = await self._keeper.get(paths.broker(broker_id), watch)
        except NoNode:
            return None
        return decoding.broker_info(str(broker_id), data, stat), stat

    async def forget(self, broker_id: int, stat: Stat) -> None:
        """Remove the registration of a dead broker, before its session is over."""
        await self._keeper.multi([Delete(paths.broker(broker_id), stat.version)])

    async def forget_controller(self, broker_id: int) -> None:
        """If this broker was controller too, remove that znode before its session is over."""
        with suppress(NoNode, BadVersion):
            data, stat = await self._keeper.get(paths.CONTROLLER)
            if paths.from_json(data)["brokerid"] == broker_id and not stat.own:
                await self._keeper.multi([Delete(paths.CONTROLLER, stat.version)])

    async def brokers(self, watch: Watch | None = None) -> dict[int, BrokerInfo]:
        """The registered brokers, without those whose registration makes no sense."""
        names = await self._keeper.children(paths.BROKER_IDS, watch)
        found = await self._keeper.get_many([f"{paths.BROKER_IDS}/{name}" for name in names])
        brokers, bad = {}, set()
        for name, row in zip(names, found, strict=True):
            if row is not None:
                try:
                    info = decoding.broker_info(name, *row)
                    brokers[info.broker_id] = info
                except UnreadableZnode as error:
                    bad.add(str(error))
        for problem in sorted(bad - self._passed_over):  # each is logged once
            log.warning("%s; this broker counts as absent until it registers again", problem)
        self._passed_over = frozenset(bad)
        return brokers

    async def notify_log_dir_event(self, broker_id: int) -> None:
        """Notify the controller that some log directory has failed, or works again."""
        value = paths.to_json({"version": 1, "broker": broker_id, "event": 1})
        await self._keeper.multi([Create(paths.LOG_DIR_EVENT, value, sequential=True)])

    async def log_dir_events(self, watch: Watch) -> tuple[set[int], list[str]]:
        """Brokers with notifications of log directories, and the znodes of these."""
        names = await self._keeper.children(paths.LOG_DIR_EVENTS, watch)
        notes = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        brokers = set()
        for note, row in zip(notes, await self._keeper.get_many(notes), strict=True):
            if row is not None:
                try:
                    brokers.add(decoding.event_broker(note, row[0]))
                except UnreadableZnode as error:
                    log.error("%s; it is passed over", error)
        return brokers, notes

    # -- topics -----------------------------------------------------------------

    async def topics(self) -> dict[str, TopicInfo]:
        """Every topic."""
        found, self.unreadable = await self._topics(await self._keeper.children(paths.TOPICS))
        return found

    async def topic(self, name: str) -> TopicInfo | None:
        return (await self._topics([name]))[0].get(name)

    async def assignments(
        self, names: Sequence[str]
    ) -> tuple[dict[str, decoding.TopicValue], set[str]]:
        """The ids and replicas of topics, and the names of those that cannot be read."""
        values: dict[str, decoding.TopicValue] = {}
        bad: set[str] = set()
        found = await self._keeper.get_many([paths.topic(name) for name in names])
        for name, row in zip(names, found, strict=True):
            if row is not None:
                with _left_out(name, bad):
                    values[name] = decoding.topic_value(name, row[0])
        return values, bad

    async def gone(self, names: Collection[str]) -> set[str]:
        """The names that no topic has; a znode that cannot be read is no deletion."""
        if not names:
            return set()
        await self.sync()
        found, unreadable = await self.assignments(sorted(names))
        return set(names) - found.keys() - unreadable

    async def partition_states(
        self, keys: Sequence[tuple[str, int]], topics: Mapping[str, decoding.TopicValue]
    ) -> list[PartitionInfo | None]:
        """The states of partitions of these topics; None for one that cannot be read."""
        nodes = [paths.partition_state(*key) for key in keys]
        states: list[PartitionInfo | None] = []
        for (name, i), row in zip(keys, await self._keeper.get_many(nodes), strict=True):
            states.append(None)
            with suppress(UnreadableZnode):
                states[-1] = decoding.partition_info(name, i, topics[name], row)
        return states

    async def _topics(self, names: Sequence[str]) -> tuple[dict[str, TopicInfo], frozenset[str]]:
        """What is known of topics, and the names of those that cannot be read.

        All znodes of one kind at once: there may be thousands of partitions.
        """
        values, bad = await self.assignments(names)
        configs = await self.configs([paths.topic_config(name) for name in values])
        keys = [(name, i) for name, value in values.items() for i in range(len(value.replicas))]
        states = await self._keeper.get_many([paths.partition_state(*key) for key in keys])
        rows: dict[str, list[PartitionInfo]] = {name: [] for name in values}
        for (name, i), state in zip(keys, states, strict=True):
            with _left_out(name, bad):
                rows[name].append(decoding.partition_info(name, i, values[name], state))
        topics = {
            name: TopicInfo(name, value.topic_id, tuple(rows[name]), config)
            for (name, value), config in zip(values.items(), configs, strict=True)
            if name not in bad
        }
        return topics, frozenset(bad)

    # -- settings ---------------------------------------------------------------

    async def config(self, path: str) -> dict[str, str]:
        """The settings in a znode; none if there is no such znode."""
        return (await self.configs([path]))[0]

    async def configs(self, nodes: Sequence[str]) -> list[dict[str, str]]:
        """The settings in many znodes."""
        found = await self._keeper.get_many(nodes)
        return [
            decoding.config(node, row[0] if row else b"")
            for node, row in zip(nodes, found, strict=True)
        ]

    async def broker_configs(self) -> dict[str, dict[str, str]]:
        """The dynamic settings of brokers: by id, and ``<default>`` for all."""
        entities = await self._keeper.children(paths.CONFIG_BROKERS)
        found = await self.configs([paths.broker_config(entity) for entity in entities])
        return dict(zip(entities, found, strict=True))

    async def group_configs(self) -> dict[str, dict[str, str]]:
        """The settings of groups that have some."""
        names = await self._keeper.children(paths.CONFIG_GROUPS)
        groups = [paths.group_of_config(name) for name in names]
        found = await self.configs([paths.group_config(group) for group in groups])
        return dict(zip(groups, found, strict=True))

    async def topic_configs(self) -> dict[str, dict[str, str]]:
        """The settings of every topic that has some."""
        names = await self._keeper.children(paths.CONFIG_TOPICS)
        found = await self.configs([paths.topic_config(name) for name in names])
        return dict(zip(names, found, strict=True))

    async def write_config(self, path: str, config: Mapping[str, str]) -> None:
        """Replace settings, and notify all brokers."""
        value = paths.config_value(dict(config))
        exists = await self._keeper.exists(path)
        await self._change_config(path, Set(path, value) if exists else Create(path, value))

    async def write_group_config(self, group_id: str, config: Mapping[str, str]) -> None:
        """Replace the settings of a group; without any, there is no znode."""
        path = paths.group_config(group_id)
        if config:
            await self.write_config(path, config)
        elif await self._keeper.exists(path):
            await self._change_config(path, Delete(path))

    async def _change_config(self, path: str, operation: Operation) -> None:
        entity = path.removeprefix("/config/")
        value = paths.to_json({"version": 2, "entity_path": entity})
        notification = Create(paths.CONFIG_CHANGE, value, sequential=True)
        await self._keeper.multi([operation, notification])

    async def config_change_names(self) -> list[str]:
        """The notifications of changed settings."""
        return await self._keeper.children(paths.CONFIG_CHANGES)

    async def remove_config_changes(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(NoNode):
                await self._keeper.multi([Delete(f"{paths.CONFIG_CHANGES}/{name}")])

    async def config_changes(self, after: str, watch: Watch | None = None) -> dict[str, str]:
        """Notifications later than ``after``: their name and the entity, as ``topics/name``."""
        names = await self._keeper.children(paths.CONFIG_CHANGES, watch)
        new = {name: f"{paths.CONFIG_CHANGES}/{name}" for name in names if name > after}
        found = await self._keeper.get_many(list(new.values()))
        changes = {}
        for (name, path), row in zip(new.items(), found, strict=True):
            if row is not None:
                try:
                    changes[name] = decoding.changed_entity(path, row[0])
                except UnreadableZnode as error:
                    log.error("%s; whatever it was about, the settings stay as they are", error)
        return changes

    # -- producer ids -----------------------------------------------------------

    async def allocate_producer_ids(self, broker_id: int) -> range:
        """The next block of producer ids, never given out before."""
        while True:
            end, version = await self.producer_ids_given_out()
            ids = range(end + 1, end + 1 + PRODUCER_ID_BLOCK)
            try:
                await self.write_producer_ids(broker_id, ids, version)
                return ids
            except (BadVersion, NodeExists):  # another broker was faster
                continue

    async def producer_ids_given_out(self) -> tuple[int, int | None]:
        """The highest producer id given out, and the version of the znode that says so."""
        try:
            data, stat = await self._keeper.get(paths.PRODUCER_IDS)
        except NoNode:
            return -1, None
        if not data:  # as Kafka makes it
            return -1, stat.version
        return int(paths.from_json(data)["block_end"]), stat.version

    async def skip_producer_ids(self, broker_id: int, highest: int) -> None:
        """Give out no id up to this one: the logs have it, though the tree may not."""
        end, version = await self.producer_ids_given_out()
        if highest > end:
            await self.write_producer_ids(broker_id, range(end + 1, highest + 1), version)

    async def write_producer_ids(self, broker_id: int, ids: range, version: int | None) -> None:
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


@contextmanager
def _left_out(topic: str, bad: set[str]) -> Iterator[None]:
    try:
        yield
    except UnreadableZnode as error:
        if topic not in bad:
            log.error("%s; topic %s is left out until it is put right", error, topic)
        bad.add(topic)
