"""The controller of a cluster: who leads which partition, as brokers come and go.

It knows the whole tree (``metadata``), decides with the pure functions of ``elections.py``,
writes the znodes, and only then publishes.  Every write is fenced by the controller's epoch:
once another broker has taken office, ours fail with ``BadVersion`` and we resign.  A partition
state is also guarded by its own version, so that nothing is decided on old knowledge.

One decision at a time: everything that changes something holds the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.coordination import elections, paths
from tidelog.coordination.controller import Controller
from tidelog.coordination.elections import NOBODY
from tidelog.coordination.keeper import Create, Delete, Operation, Set
from tidelog.coordination.metadata import (
    OFFSETS_TOPIC,
    BrokerInfo,
    ClusterMetadata,
    PartitionInfo,
    TopicInfo,
)
from tidelog.coordination.placement import fill_up
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural

log = logging.getLogger(__name__)

_AT_ONCE = 500  # states in one transaction
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader asks for: these replicas are in sync now."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int


class ClusterController(Controller):
    """See the module.  In office after :meth:`take_office` and :meth:`load`."""

    _stopping: tuple[tuple[int, int], ...] = ()  # brokers with their epochs: about to stop

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
            await self._write_in_parts([Delete(paths.deletion(name)) for name in marks])
            await self._make_missing_states()
            await self._settle(self.metadata.topics.values(), first=True)
            await self._finish_moves(self.metadata.topics.values())
            await self._fill_up_offsets()

    async def _make_missing_states(self) -> None:
        """The controller before us died after it had written the topic."""
        for topic in self.metadata.topics.values():
            rows = list(topic.partitions)
            missing = [i for i, row in enumerate(rows) if row.partition_epoch < 0]
            operations: list[Operation] = []
            for i in missing:
                live = tuple(b for b in rows[i].replicas if b in self.metadata.brokers)
                if not live:
                    continue  # made when one of them comes
                rows[i] = PartitionInfo(live[0], 0, rows[i].replicas, live)
                state = paths.partition_state(topic.name, i)
                operations.append(Create(state, self._state_value(rows[i])))
            for start in range(0, len(operations), _AT_ONCE):
                await self._write(operations[start : start + _AT_ONCE])
            if operations:
                changed = replace(topic, partitions=tuple(rows))
                self.metadata = self.metadata.with_topic(changed)

    # -- brokers ----------------------------------------------------------------

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
            self.metadata = replace(self.metadata, brokers=still)
            if gone:
                await self._settle(self._with_replicas_on(gone))
            self.metadata = replace(self.metadata, brokers=dict(brokers))
            await self._make_missing_states()
            await self._settle(self._with_replicas_on(come))
            await self._fill_up_offsets()
            self._publish(self.metadata)

    def _with_replicas_on(self, brokers: Collection[int]) -> list[TopicInfo]:
        return [
            topic
            for topic in self.metadata.topics.values()
            if any(not set(row.replicas).isdisjoint(brokers) for row in topic.partitions)
        ]

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
                    if after.leader not in (NOBODY, *row.isr):
                        log.warning(
                            "%s-%d: broker %d leads, which was not in sync: records may be lost",
                            topic.name,
                            i,
                            after.leader,
                        )
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

    async def _commit(self, changes: Mapping[Key, PartitionInfo]) -> None:
        """Write partition states, then act on them."""
        if not changes:
            return
        rows = list(changes.items())
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            await self._write([self._state_set(key, info) for key, info in part])
        self._adopt(
            {
                key: replace(info, partition_epoch=info.partition_epoch + 1)
                for key, info in changes.items()
            }
        )

    def _state_set(self, key: Key, info: PartitionInfo) -> Set:
        return Set(paths.partition_state(*key), self._state_value(info), info.partition_epoch)

    def _adopt(self, changes: Mapping[Key, PartitionInfo]) -> None:
        """Take into the metadata what is written, and tell the brokers."""
        by_topic: dict[str, dict[int, PartitionInfo]] = {}
        for (name, i), info in changes.items():
            by_topic.setdefault(name, {})[i] = info
        metadata = self.metadata
        for name, rows in by_topic.items():
            topic = metadata.topics[name]
            partitions = tuple(rows.get(i, row) for i, row in enumerate(topic.partitions))
            metadata = metadata.with_topic(replace(topic, partitions=partitions))
        self._change(metadata)

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
                code = self._check(row, change, broker_id)
                if code:
                    answers.append((code, row))
                    continue
                after = replace(row, isr=change.isr)
                if after != row:
                    changes[topic.name, change.partition] = after
                    after = replace(after, partition_epoch=row.partition_epoch + 1)
                answers.append((ErrorCode.NONE, after))
            await self._commit(changes)
            await self._finish_moves(self._topics_of(changes))
            return answers

    def _check(self, row: PartitionInfo, change: IsrChange, broker_id: int) -> ErrorCode:
        if row.leader != broker_id or change.leader_epoch < row.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.leader_epoch > row.leader_epoch:
            return ErrorCode.NOT_CONTROLLER  # it knows a later decision than we do
        if change.partition_epoch != row.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if broker_id not in change.isr or not set(change.isr) <= set(row.replicas):
            return ErrorCode.INVALID_REQUEST
        lasting = self._lasting()
        if any(b not in lasting for b in change.isr if b not in row.isr):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _lasting(self) -> set[int]:
        """Brokers that are there and not about to stop."""
        brokers = self.metadata.brokers.items()
        return {b for b, info in brokers if (b, info.epoch) not in self._stopping}

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
            self._stopping = (*self._stopping, (broker_id, broker_epoch))
            changes: dict[Key, PartitionInfo] = {}
            for topic in self.metadata.topics.values():
                for i, row in enumerate(topic.partitions):
                    if broker_id in row.isr:
                        after = elections.settle(row, live, avoid=broker_id)
                        if after is not row:
                            changes[topic.name, i] = after
            await self._commit(changes)
            return [
                (topic.name, i)
                for topic in self.metadata.topics.values()
                for i, row in enumerate(topic.partitions)
                if row.leader == broker_id and len(row.replicas) > 1
            ]

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
                    after = elections.prefer(row, self._lasting())
                    failure = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
                if not needed:
                    results[name, i] = ApiError(ErrorCode.ELECTION_NOT_NEEDED)
                elif after is row:
                    results[name, i] = ApiError(failure)
                else:
                    results[name, i] = None
                    changes[name, i] = after
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

    # -- moving replicas ------------------------------------------------------------

    async def reassign(
        self, wanted: Mapping[Key, tuple[int, ...] | None]
    ) -> dict[Key, ApiError | None]:
        """Begin to move replicas, or with None stop a move that is under way."""
        async with self._lock:
            results: dict[Key, ApiError | None] = {}
            changes: dict[Key, PartitionInfo] = {}
            for key, replicas in wanted.items():
                try:
                    row = self._known_partition(key)
                    changes[key] = self._plan_move(row, replicas)
                    results[key] = None
                except ApiError as error:
                    results[key] = error
            await self._rewrite(changes)
            await self._finish_moves(self._topics_of(changes))
            return results

    def _topics_of(self, keys: Iterable[Key]) -> list[TopicInfo]:
        return [self.metadata.topics[name] for name in {name for name, _ in keys}]

    def _known_partition(self, key: Key) -> PartitionInfo:
        topic = self.metadata.topics.get(key[0])
        if topic is None or not 0 <= key[1] < len(topic.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.partitions[key[1]]

    def _plan_move(self, row: PartitionInfo, replicas: tuple[int, ...] | None) -> PartitionInfo:
        if replicas is None:
            if not row.adding and not row.removing:
                raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            return self._still_led(row, elections.cancel_move(row))
        problem = ""
        if not replicas:
            problem = "a partition needs a replica"
        elif len(set(replicas)) != len(replicas):
            problem = f"{list(replicas)} names a broker twice"
        elif gone := set(replicas) - self.metadata.brokers.keys() - set(row.replicas):
            problem = f"there is no broker {min(gone)}"
        if problem:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
        return self._still_led(row, elections.begin_move(row, replicas))

    def _still_led(self, row: PartitionInfo, after: PartitionInfo) -> PartitionInfo:
        """Some replicas go at once; maybe only these are in sync, and must not be deleted."""
        settled = elections.settle(after, self.metadata.brokers.keys())
        if not after.isr or (settled.leader == NOBODY and row.leader != NOBODY):
            stay = ", ".join(map(str, after.replicas))
            message = f"of the replicas that would stay ({stay}) none is alive and in sync"
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        return settled

    async def _fill_up_offsets(self) -> None:
        """The topic of committed offsets is made by the first consumer, maybe before all brokers
        were there: those that come later get the replicas that are missing."""
        topic = self.metadata.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return
        rows = topic.partitions
        current = {i: elections.target(r) for i, r in enumerate(rows) if r.partition_epoch >= 0}
        factor: int = self._settings["offsets.topic.replication.factor"]
        found = fill_up(current, factor, sorted(self.metadata.brokers), self._racks())
        if found:
            log.info("%s gets more replicas", topic.name)
        await self._rewrite(
            {(topic.name, i): elections.begin_move(rows[i], r) for i, r in found.items()}
        )

    async def _finish_moves(self, topics: Iterable[TopicInfo]) -> None:
        """Let the old replicas go where all the new ones are in sync."""
        live = self.metadata.brokers.keys()
        await self._rewrite(
            {
                (topic.name, i): elections.finish_move(row, live)
                for topic in topics
                for i, row in enumerate(topic.partitions)
                if elections.can_finish_move(row)
            }
        )

    async def _rewrite(self, changes: Mapping[Key, PartitionInfo]) -> None:
        """Write states and assignments, which change together when replicas move.

        If they are too many for one transaction, the assignment comes last: whoever takes
        office in between goes on with the move as it was.
        """
        if not changes:
            return
        written = {
            key: replace(info, partition_epoch=info.partition_epoch + 1)
            for key, info in changes.items()
        }
        for name in {name for name, _ in changes}:
            topic = self.metadata.topics[name]
            rows = tuple(written.get((name, i), row) for i, row in enumerate(topic.partitions))
            states = [self._state_set(key, info) for key, info in changes.items() if key[0] == name]
            await self._write_in_parts([*states, self._topic_set(replace(topic, partitions=rows))])
        self._adopt(written)

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
