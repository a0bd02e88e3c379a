"""The controller of a cluster: who leads which partition, as brokers come and go.

It knows the whole tree (``metadata``), decides with the pure functions of ``elections.py``,
writes the znodes, and only then publishes (``partition_states.py``); replicas that move from
broker to broker are in ``reassignments.py``.  Every write is fenced by the controller's epoch:
once another broker has taken office, ours fail with ``BadVersion`` and we resign.  A partition
state is also guarded by its own version, so that nothing is decided on old knowledge.

One decision at a time: everything that changes something holds the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tidelog.controller import elections
from tidelog.controller.elections import NOBODY
from tidelog.controller.partition_states import Key
from tidelog.controller.reassignments import Moves
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.keeper import Delete, Watch
from tidelog.metadata import (
    BrokerInfo,
    ClusterMetadata,
    PartitionInfo,
    TopicInfo,
)
from tidelog.text import plural

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader asks for: these replicas are in sync now."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    broker_epochs: Mapping[int, int]  # of those in sync; who is added must have its own


class ClusterController(Moves):
    """See the module.  In office after :meth:`take_office` and :meth:`load`."""

    _stopping: frozenset[tuple[int, int]] = frozenset()  # brokers with their epochs: about to stop
    # What brokers say they cannot write.  Not in the tree: whoever takes office asks them anew.
    _cannot_write: Mapping[int, frozenset[Key]] = MappingProxyType({})

    # -- office -----------------------------------------------------------------

    async def take_office(self, broker_id: int) -> None:
        """Become controller; NodeExists or BadVersion if another broker is."""
        await self._take_office(broker_id)

    async def load(self, cluster_id: str, controller_id: int) -> None:
        """Read the tree, and settle what happened while nobody was in office."""
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
            marks = await self.deleted_topics()
            await self._write_in_parts([Delete(paths.deletion(name)) for name in sorted(marks)])
            await self._make_missing_states()
            await self._settle(self.metadata.topics.values(), first=True)
            await self._finish_moves(self.metadata.topics.values())
            await self._fill_up_offsets()

    # -- brokers ----------------------------------------------------------------

    async def live_brokers(self, watch: Watch) -> dict[int, BrokerInfo]:
        """Who is there now, for :meth:`brokers_changed`."""
        return await self._registry.brokers(watch)

    async def brokers_changed(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Brokers have come, gone, or been restarted in between."""
        async with self._lock:
            before = self.metadata.brokers
            bounced = {
                broker_id
                for broker_id, info in brokers.items()
                if broker_id in before and before[broker_id].epoch != info.epoch
            }
            gone = (before.keys() - brokers.keys()) | bounced
            come = (brokers.keys() - before.keys()) | bounced
            if not gone and not come:
                return
            for words, who in (("gone", gone), ("there", come)):
                if who:
                    log.info("%s %s", plural(len(who), "broker"), f"{words}: {_names(who)}")
            # First without those that are gone, even if they are back already: a broker that
            # was restarted has to catch up before it leads again.
            still = {i: info for i, info in brokers.items() if i not in come}
            self._cannot_write = {
                broker: keys for broker, keys in self._cannot_write.items() if broker not in gone
            }
            self.metadata = replace(self.metadata, brokers=still)
            if gone:
                await self._settle(self._with_replicas_on(gone))
            self.metadata = replace(self.metadata, brokers=dict(brokers))
            await self._make_missing_states()
            await self._settle(self._with_replicas_on(come))
            await self._fill_up_offsets()
            self._publish(self.metadata)

    async def _settle(self, topics: Iterable[TopicInfo], *, first: bool = False) -> None:
        """Elect where it is needed; ``first`` of all after the tree was read."""
        live = self.metadata.brokers.keys()
        changes: dict[Key, PartitionInfo] = {}
        for topic in list(topics):
            unclean = self._unclean(topic)
            for i, row in enumerate(topic.partitions):
                if row.partition_epoch < 0:
                    continue
                there = self._not_restarted(row) if first else live
                after = elections.settle(row, there or live, unclean=unclean)
                if after is not row:
                    changes[topic.name, i] = after
                    _warn_if_unclean((topic.name, i), row, after)
        await self._commit(changes)

    def _not_restarted(self, row: PartitionInfo) -> set[int]:
        """Who of the in-sync set was registered when it was written down, and still is.

        A broker that was restarted while nobody was in office may have come back with less
        than it had.  It must not lead if another has everything.
        """
        brokers = self.metadata.brokers
        return {b for b in row.isr if b in brokers and brokers[b].epoch < row.written}

    def _unclean(self, topic: TopicInfo) -> bool:
        own = topic.config.get("unclean.leader.election.enable")
        if own is not None:
            return own.lower() == "true"
        found: bool = self._settings["unclean.leader.election.enable"]
        return found

    # -- what leaders ask for -----------------------------------------------------

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, asked: Sequence[IsrChange]
    ) -> list[tuple[ErrorCode, PartitionInfo | None]]:
        """Change in-sync sets for the leader of the partitions: a code and what is now."""
        async with self._lock:
            known = self.metadata.brokers.get(broker_id)
            if known is None or known.epoch != broker_epoch:
                raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
            answers: list[tuple[ErrorCode, PartitionInfo | None]] = []
            changes: dict[Key, PartitionInfo] = {}
            for change in asked:
                topic = self.metadata.topic_by_id(change.topic_id)
                if topic is None or not 0 <= change.partition < len(topic.partitions):
                    answers.append((ErrorCode.UNKNOWN_TOPIC_ID, None))
                    continue
                row = topic.partitions[change.partition]
                code = self._check((topic.name, change.partition), row, change, broker_id)
                if code:
                    answers.append((code, row))
                    continue
                after = replace(row, isr=change.isr)
                if after != row:
                    changes[topic.name, change.partition] = after
                    after = replace(after, partition_epoch=row.partition_epoch + 1)
                answers.append((ErrorCode.NONE, after))
            await self._commit(changes)
            await self._spare(changes)
            await self._finish_moves(self._topics_of(changes))
            return answers

    def _check(self, key: Key, row: PartitionInfo, change: IsrChange, broker_id: int) -> ErrorCode:
        if row.leader != broker_id or change.leader_epoch < row.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.leader_epoch > row.leader_epoch:
            return ErrorCode.NOT_CONTROLLER  # it knows a later decision than we do
        if change.partition_epoch != row.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        isr = set(change.isr)
        if broker_id not in isr or not isr <= set(row.replicas) or len(isr) < len(change.isr):
            return ErrorCode.INVALID_REQUEST
        fit = self._fit(key)
        for added in sorted(set(change.isr) - set(row.isr)):
            if added not in fit:
                return ErrorCode.INELIGIBLE_REPLICA
            if change.broker_epochs.get(added, -1) != self.metadata.brokers[added].epoch:
                return ErrorCode.INELIGIBLE_REPLICA  # restarted since it had everything (KIP-903)
        return ErrorCode.NONE

    def _fit(self, key: Key) -> set[int]:
        """Brokers that are there, not about to stop, and can write this partition."""
        return {
            b
            for b, info in self.metadata.brokers.items()
            if (b, info.epoch) not in self._stopping and key not in self._cannot_write.get(b, ())
        }

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[Key]:
        """Move the leaders away from a broker that is about to stop; returns those that
        nobody else can lead."""
        async with self._lock:
            known = self.metadata.brokers.get(broker_id)
            if known is None:
                raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED)
            if known.epoch != broker_epoch:
                raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
            live = self.metadata.brokers.keys()
            # It still fetches: it must not come back into sync, and then be missed.
            self._stopping |= {(broker_id, broker_epoch)}
            changes: dict[Key, PartitionInfo] = {}
            for topic in self.metadata.topics.values():
                for i, row in enumerate(topic.partitions):
                    if broker_id in row.isr:
                        after = elections.settle(row, live, avoid=(broker_id,))
                        if after is not row:
                            changes[topic.name, i] = after
            await self._commit(changes)
            return [
                (topic.name, i)
                for topic in self.metadata.topics.values()
                for i, row in enumerate(topic.partitions)
                if row.leader == broker_id and len(row.replicas) > 1
            ]

    # -- disks ----------------------------------------------------------------------

    async def log_dir_events_taken(self, notes: Iterable[str]) -> None:
        """Notes of log directories have been acted on: nobody need read them again."""
        await self._write_in_parts([Delete(note) for note in notes])

    def storage_news(self, broker: BrokerInfo, failed: set[Key], well: set[Key]) -> bool:
        """Is it another answer than we know already?"""
        known = self._cannot_write.get(broker.broker_id, frozenset())
        return bool(failed - known or well & known)

    async def storage_told(self, broker: BrokerInfo, failed: set[Key], well: set[Key]) -> None:
        """A broker has said which of its partitions it can write, and which not."""
        async with self._lock:
            known = self.metadata.brokers.get(broker.broker_id)
            if known is None or known.epoch != broker.epoch:
                return
            before = self._cannot_write.get(broker.broker_id, frozenset())
            after = (before | failed) - well
            self._cannot_write = {**self._cannot_write, broker.broker_id: after}
            if after and not before:
                log.warning("broker %d cannot write: others lead what they have", broker.broker_id)
            elif before and not after:
                log.warning("broker %d can write again", broker.broker_id)
            await self._spare(after - before)

    async def _spare(self, keys: Iterable[Key]) -> None:
        """Those who cannot write a partition neither lead it nor are in sync, if another can."""
        if not any(self._cannot_write.values()):
            return
        live = self.metadata.brokers.keys()
        changes: dict[Key, PartitionInfo] = {}
        for key in keys:
            topic = self.metadata.topics.get(key[0])
            if topic is None or key[1] >= len(topic.partitions):
                continue
            row = topic.partitions[key[1]]
            sick = [b for b in row.isr if key in self._cannot_write.get(b, ())]
            after = elections.settle(row, live, avoid=sick) if sick else row
            if after is not row:
                changes[key] = after
        await self._commit(changes)

    # -- elections on demand --------------------------------------------------------

    async def elect_leaders(
        self, keys: Iterable[Key] | None, *, unclean: bool = False
    ) -> dict[Key, ApiError | None]:
        """Elect preferred leaders, or with ``unclean`` any leader where there is none."""
        async with self._lock:
            live = self.metadata.brokers.keys()
            wanted = list(keys) if keys is not None else self._all_partitions()
            results: dict[Key, ApiError | None] = {}
            changes: dict[Key, PartitionInfo] = {}
            for name, i in wanted:
                topic = self.metadata.topics.get(name)
                if topic is None or not 0 <= i < len(topic.partitions):
                    results[name, i] = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    continue
                row = topic.partitions[i]
                if unclean:
                    needed = row.leader == NOBODY
                    after = elections.settle(row, live, unclean=True)
                    failure = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
                else:
                    needed = row.leader != elections.preferred_leader(row)
                    after = elections.prefer(row, self._fit((name, i)))
                    failure = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
                if not needed:
                    results[name, i] = ApiError(ErrorCode.ELECTION_NOT_NEEDED)
                elif after is row:
                    results[name, i] = ApiError(failure)
                else:
                    results[name, i] = None
                    changes[name, i] = after
                    _warn_if_unclean((name, i), row, after)
            await self._commit(changes)
            return results

    def _all_partitions(self) -> list[Key]:
        return [
            (topic.name, i)
            for topic in self.metadata.topics.values()
            for i in range(len(topic.partitions))
        ]

    async def balance_leaders(self, percentage: int) -> None:
        """Give brokers the leads back that are theirs by preference, if too many are not."""
        mine: dict[int, list[Key]] = {}
        astray: dict[int, list[Key]] = {}
        for topic in self.metadata.topics.values():
            for i, row in enumerate(topic.partitions):
                preferred = elections.preferred_leader(row)
                mine.setdefault(preferred, []).append((topic.name, i))
                if row.leader != preferred and preferred in row.isr:
                    astray.setdefault(preferred, []).append((topic.name, i))
        for broker_id, keys in astray.items():
            if broker_id in self.metadata.brokers:
                share = 100 * len(keys) / len(mine[broker_id])
                if share > percentage:
                    log.info("broker %d leads %s again", broker_id, plural(len(keys), "partition"))
                    await self.elect_leaders(keys)

    # -- settings ---------------------------------------------------------------

    async def topic_config_changed(self, name: str, config: Mapping[str, str]) -> None:
        """A topic's settings are other ones; maybe any replica may lead now."""
        async with self._lock:
            topic = self.metadata.topics.get(name)
            if topic is not None:
                changed = replace(topic, config=dict(config))
                self.metadata = self.metadata.with_topic(changed)
                await self._settle([changed])


def _names(brokers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))


def _warn_if_unclean(key: Key, before: PartitionInfo, after: PartitionInfo) -> None:
    if after.leader not in (NOBODY, *before.isr):
        message = "%s-%d: broker %d leads, which was not in sync: records may be lost"
        log.warning(message, *key, after.leader)
