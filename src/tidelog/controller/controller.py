"""The controller: the one broker that decides which topics exist and which replicas lead.

It holds the metadata of the whole cluster and decides with functions that do no I/O
(``topics.py``, ``partition_changes.py``, ``in_sync_changes.py``).  A decision is written first
(``store.py``, fenced by the controller's epoch), then it is in the metadata, then it is published,
and so sent to the brokers.  What the keeper did not accept has not happened.

One decision at a time: everything that changes something holds the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tidelog.clock import Clock
from tidelog.controller import in_sync_changes, partition_changes
from tidelog.controller.coalescing import Coalescing
from tidelog.controller.in_sync_changes import IsrChange
from tidelog.controller.partition_changes import Changes
from tidelog.controller.store import Key, Store
from tidelog.controller.topics import plan_partitions, plan_topic
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.keeper import Keeper, Watch
from tidelog.keeper.registry import Registry
from tidelog.metadata import (
    OFFSETS_TOPIC,
    BrokerInfo,
    ClusterMetadata,
    PartitionInfo,
    TopicInfo,
)
from tidelog.new_topic import NewTopic
from tidelog.settings import Settings
from tidelog.text import plural

log = logging.getLogger(__name__)


class Controller:
    """See the module.  It decides after :meth:`elect` and :meth:`load`."""

    def __init__(
        self,
        keeper: Keeper,
        settings: Settings,
        clock: Clock,
        publish: Callable[[ClusterMetadata], None],
    ) -> None:
        self._settings = settings
        self._publish = publish
        self._registry = Registry(keeper, clock)
        self._store = Store(keeper, clock)
        self._lock = asyncio.Lock()
        self._create = Coalescing(self._lock, self._create_topics)
        self._delete = Coalescing(self._lock, self._delete_topics)
        self._stopping: frozenset[tuple[int, int]] = frozenset()  # brokers with their epochs
        # Partitions that brokers cannot write.  Not in the tree: a new controller asks them again.
        self._cannot_write: dict[int, frozenset[Key]] = {}
        self.metadata = ClusterMetadata()
        # Waits until the broker that the controller runs on has done what was published.
        self.carried_out_here: Callable[[], Awaitable[None]] = _at_once

    @property
    def epoch(self) -> int:
        return self._store.epoch

    # -- election -----------------------------------------------------------------

    async def elect(self, broker_id: int) -> None:
        """Become controller; NodeExists or BadVersion if another broker is."""
        await self._store.elect(broker_id)

    async def load(
        self, cluster_id: str, controller_id: int, log_epochs: Mapping[Key, int] | None = None
    ) -> None:
        """Read the tree, and decide what is due since the last controller.

        ``log_epochs`` are the latest leader epochs in logs that the tree may be behind of.
        """
        async with self._lock:
            brokers = await self._registry.brokers()
            topics = await self._registry.topics()
            self.metadata = ClusterMetadata(
                cluster_id=cluster_id,
                controller_id=controller_id,
                brokers=brokers,
                topics=topics,
                topic_names={topic.topic_id: name for name, topic in topics.items()},
            )
            await self._finish_deletions()
            await self._create_missing_states()
            if log_epochs:
                epochs = partition_changes.behind_the_logs(self.metadata, log_epochs)
                await self._write_states(epochs)
            await self._elect_leaders(self.metadata.topics.values(), first=True)
            await self._finish_reassignments(self.metadata.topics.values())
            await self._add_offsets_replicas()

    async def _finish_deletions(self) -> None:
        """The controller before us was interrupted: what is marked is deleted."""
        marks = await self._store.deletion_marks()
        doomed = {name: t for name, t in self.metadata.topics.items() if name in marks}
        if doomed:
            await self._store.delete_topics(doomed)
            self.metadata = self.metadata.without_topics(doomed.keys())
        await self._store.remove_deletion_marks(marks)

    async def _create_missing_states(self) -> None:
        """The controller before us was interrupted after it had written a topic."""
        for topic, partitions in partition_changes.missing_states(self.metadata):
            await self._store.create_states(topic, partitions)
            self.metadata = self.metadata.with_topic(topic)

    # -- topics -------------------------------------------------------------------

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> TopicInfo:
        """Create a topic, or raise exactly why not."""
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
            await self._store.create_topics(topics.values())
            self._change(self.metadata.with_topics(topics.values()))
        return answers

    def _plan_topic(self, wanted: NewTopic, existing: Mapping[str, TopicInfo]) -> TopicInfo:
        if wanted.name in self._registry.unreadable:
            message = f"what the registry has of topic {wanted.name!r} cannot be read; see the logs"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        return plan_topic(wanted, existing, self.metadata.brokers, self._settings)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its settings; the brokers then delete its logs."""
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
            await self._store.delete_topics(doomed)
            self._change(self.metadata.without_topics(doomed.keys()))
            # After a crash in between, the next start deletes the logs of what is marked.
            await self.carried_out_here()
            await self._store.remove_deletion_marks(doomed)
        return answers

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
            topic = self.metadata.topics.get(name)
            grown = plan_partitions(name, topic, count, assignment, self.metadata.brokers)
            if topic is not None and not validate_only:
                await self._store.add_partitions(grown, len(topic.partitions))
                self._change(self.metadata.with_topic(grown))

    async def topic_config_changed(self, name: str, config: Mapping[str, str]) -> None:
        """A topic has other settings: unclean elections may be allowed now."""
        async with self._lock:
            topic = self.metadata.topics.get(name)
            if topic is not None:
                changed = replace(topic, config=dict(config))
                self.metadata = self.metadata.with_topic(changed)
                await self._elect_leaders([changed])

    # -- brokers ------------------------------------------------------------------

    async def live_brokers(self, watch: Watch) -> dict[int, BrokerInfo]:
        """The registered brokers, for :meth:`brokers_changed`."""
        return await self._registry.brokers(watch)

    async def brokers_changed(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Brokers have come, gone, or been restarted in between."""
        async with self._lock:
            before = self.metadata.brokers
            restarted = {
                broker_id
                for broker_id, info in brokers.items()
                if broker_id in before and before[broker_id].epoch != info.epoch
            }
            gone = (before.keys() - brokers.keys()) | restarted
            come = (brokers.keys() - before.keys()) | restarted
            if not gone and not come:
                return
            for words, which in (("gone", gone), ("there", come)):
                if which:
                    log.info("%s %s", plural(len(which), "broker"), f"{words}: {_names(which)}")
            # First without those that are gone, even if they are back already: a broker that
            # was restarted has to catch up before it leads again.
            self._cannot_write = {
                broker: keys for broker, keys in self._cannot_write.items() if broker not in gone
            }
            stayed = {i: info for i, info in brokers.items() if i not in come}
            self.metadata = replace(self.metadata, brokers=stayed)
            if gone:
                await self._elect_leaders(self._with_replicas_on(gone))
            self.metadata = replace(self.metadata, brokers=dict(brokers))
            await self._create_missing_states()
            await self._elect_leaders(self._with_replicas_on(come))
            await self._add_offsets_replicas()
            self._publish(self.metadata)

    async def _elect_leaders(self, topics: Iterable[TopicInfo], *, first: bool = False) -> None:
        """Elect leaders where it is needed; ``first`` after the tree was read."""
        await self._write_states(
            partition_changes.brokers_changed(
                self.metadata, list(topics), self._allows_unclean, first=first
            )
        )

    def _allows_unclean(self, topic: TopicInfo) -> bool:
        own = topic.config.get("unclean.leader.election.enable")
        if own is not None:
            return own.lower() == "true"
        usual: bool = self._settings["unclean.leader.election.enable"]
        return usual

    def _with_replicas_on(self, brokers: Collection[int]) -> list[TopicInfo]:
        return [
            topic
            for topic in self.metadata.topics.values()
            if any(not set(info.replicas).isdisjoint(brokers) for info in topic.partitions)
        ]

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[Key]:
        """Move the leaders away from a broker that is about to stop; returns those that no other
        broker can lead."""
        async with self._lock:
            known = self.metadata.brokers.get(broker_id)
            if known is None:
                raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED)
            if known.epoch != broker_epoch:
                raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
            # It still fetches: it must not come back into sync, and then be missed.
            self._stopping |= {(broker_id, broker_epoch)}
            await self._write_states(partition_changes.broker_stops(self.metadata, broker_id))
            return [
                (topic.name, i)
                for topic in self.metadata.topics.values()
                for i, info in enumerate(topic.partitions)
                if info.leader == broker_id and len(info.replicas) > 1
            ]

    # -- in-sync sets -------------------------------------------------------------

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, asked: Sequence[IsrChange]
    ) -> list[tuple[ErrorCode, PartitionInfo | None]]:
        """Change in-sync sets for the leader of the partitions: a code, and the state then."""
        async with self._lock:
            known = self.metadata.brokers.get(broker_id)
            if known is None or known.epoch != broker_epoch:
                raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
            answers: list[tuple[ErrorCode, PartitionInfo | None]] = []
            changes: Changes = {}
            for change in asked:
                topic = self.metadata.topic_by_id(change.topic_id)
                if topic is None or not 0 <= change.partition < len(topic.partitions):
                    answers.append((ErrorCode.UNKNOWN_TOPIC_ID, None))
                    continue
                key = (topic.name, change.partition)
                before = topic.partitions[change.partition]
                code = in_sync_changes.check(
                    before, change, broker_id, self.metadata.brokers, self._eligible(key)
                )
                after = before if code else replace(before, isr=change.isr)
                if after != before:
                    changes[key] = after
                    after = replace(after, partition_epoch=before.partition_epoch + 1)
                answers.append((code, after))
            await self._write_states(changes)
            await self._avoid_failed_disks(changes)
            await self._finish_reassignments(self._topics_of(changes))
            return answers

    def _eligible(self, key: Key) -> set[int]:
        """Brokers that are registered, not about to stop, and can write this partition."""
        return {
            b
            for b, info in self.metadata.brokers.items()
            if (b, info.epoch) not in self._stopping and key not in self._cannot_write.get(b, ())
        }

    # -- disks --------------------------------------------------------------------

    async def remove_log_dir_events(self, nodes: Iterable[str]) -> None:
        """Notifications of log directories have been acted on."""
        await self._store.remove_log_dir_events(nodes)

    def is_storage_news(self, broker: BrokerInfo, failed: set[Key], works: set[Key]) -> bool:
        """Is it another answer than we know already?"""
        known = self._cannot_write.get(broker.broker_id, frozenset())
        return bool(failed - known or works & known)

    async def storage_changed(self, broker: BrokerInfo, failed: set[Key], works: set[Key]) -> None:
        """A broker has answered which of its partitions it can write, and which not."""
        async with self._lock:
            known = self.metadata.brokers.get(broker.broker_id)
            if known is None or known.epoch != broker.epoch:
                return
            before = self._cannot_write.get(broker.broker_id, frozenset())
            after = (before | failed) - works
            self._cannot_write[broker.broker_id] = after
            if len(self.metadata.brokers) > 1:
                if after and not before:
                    message = "broker %d cannot write: others lead what they have"
                    log.warning(message, broker.broker_id)
                elif before and not after:
                    log.warning("broker %d can write again", broker.broker_id)
            await self._avoid_failed_disks(after - before)

    async def _avoid_failed_disks(self, keys: Iterable[Key]) -> None:
        if any(self._cannot_write.values()):
            await self._write_states(
                partition_changes.cannot_write(self.metadata, keys, self._cannot_write)
            )

    # -- elections on demand, reassignments -----------------------------------------

    async def elect_leaders(
        self, keys: Iterable[Key] | None, *, unclean: bool = False
    ) -> dict[Key, ApiError | None]:
        """Elect preferred leaders, or with ``unclean`` any leader where there is none."""
        async with self._lock:
            results, changes = partition_changes.elect(
                self.metadata, keys, unclean=unclean, eligible=self._eligible
            )
            await self._write_states(changes)
            return results

    async def balance_leaders(self, percentage: int) -> None:
        """Elect the preferred leaders of brokers that too few of their partitions are led by."""
        for broker_id, keys in partition_changes.imbalance(self.metadata, percentage).items():
            log.info("broker %d leads %s again", broker_id, plural(len(keys), "partition"))
            await self.elect_leaders(keys)

    async def reassign(
        self, wanted: Mapping[Key, tuple[int, ...] | None]
    ) -> dict[Key, ApiError | None]:
        """Begin reassignments of replicas, or with None cancel one that is in progress."""
        async with self._lock:
            results, changes = partition_changes.reassign(self.metadata, wanted)
            await self._write_assignments(changes)
            await self._finish_reassignments(self._topics_of(changes))
            return results

    async def _finish_reassignments(self, topics: Iterable[TopicInfo]) -> None:
        await self._write_assignments(
            partition_changes.finished_reassignments(self.metadata, topics)
        )

    async def _add_offsets_replicas(self) -> None:
        factor: int = self._settings["offsets.topic.replication.factor"]
        changes = partition_changes.missing_replicas(self.metadata, OFFSETS_TOPIC, factor)
        if changes:
            log.info("%s gets more replicas", OFFSETS_TOPIC)
        await self._write_assignments(changes)

    def _topics_of(self, keys: Iterable[Key]) -> list[TopicInfo]:
        return [self.metadata.topics[name] for name in dict.fromkeys(name for name, _ in keys)]

    # -- writing, then publishing ---------------------------------------------------

    async def _write_states(self, changes: Changes) -> None:
        if changes:
            self._change_partitions(await self._store.write_states(changes))

    async def _write_assignments(self, changes: Changes) -> None:
        if changes:
            written = await self._store.write_assignments(changes, self.metadata.topics)
            self._change_partitions(written)

    def _change_partitions(self, changes: Changes) -> None:
        by_topic: dict[str, dict[int, PartitionInfo]] = {}
        for (name, i), info in changes.items():
            by_topic.setdefault(name, {})[i] = info
        topics = []
        for name, changed in by_topic.items():
            topic = self.metadata.topics[name]
            partitions = tuple(changed.get(i, info) for i, info in enumerate(topic.partitions))
            topics.append(replace(topic, partitions=partitions))
        self._change(self.metadata.with_topics(topics))

    def _change(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        self._publish(metadata)


def _names(brokers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))


async def _at_once() -> None:
    """There is nothing to wait for."""
