"""Moving replicas from broker to broker (a reassignment).

A move adds the new replicas beside the old ones, waits until all the new ones are in sync, and
then lets the old ones go.  The first half of this file is pure, as ``elections.py``: what a
partition becomes.  The second is the controller's part: when, and what is written.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tidelog.controller import elections
from tidelog.controller.elections import NOBODY, target
from tidelog.controller.partition_states import Key, PartitionStates
from tidelog.controller.placement import fill_up
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import OFFSETS_TOPIC, PartitionInfo, TopicInfo

log = logging.getLogger(__name__)


def begin_move(info: PartitionInfo, wanted: tuple[int, ...]) -> PartitionInfo:
    """Begin to move to ``wanted``: old and new replicas side by side, the new ones first.

    What a move before this one was adding, and is not wanted any more, goes at once.
    """
    origin = tuple(broker for broker in info.replicas if broker not in info.adding)
    kept = tuple(broker for broker in info.replicas if broker not in wanted)
    adding = tuple(broker for broker in wanted if broker not in origin)
    removing = tuple(broker for broker in kept if broker in origin)
    replicas = (*wanted, *removing)
    isr = tuple(broker for broker in info.isr if broker in replicas)
    return replace(info, replicas=replicas, isr=isr, adding=adding, removing=removing)


def cancel_move(info: PartitionInfo) -> PartitionInfo:
    """Back to the replicas from before the move.  Maybe none of them is in sync."""
    origin = tuple(broker for broker in info.replicas if broker not in info.adding)
    isr = tuple(broker for broker in info.isr if broker in origin)
    return replace(info, replicas=origin, isr=isr, adding=(), removing=())


def can_finish_move(info: PartitionInfo) -> bool:
    """Are all replicas that are to stay in sync?"""
    return bool(info.adding or info.removing) and set(target(info)) <= set(info.isr)


def finish_move(info: PartitionInfo, live: Collection[int]) -> PartitionInfo:
    """The old replicas go; if the leader is among them, another is elected."""
    stay = target(info)
    isr = tuple(broker for broker in info.isr if broker in stay)
    moved = replace(info, replicas=stay, isr=isr, adding=(), removing=())
    if info.leader in stay:
        return moved
    leader = next((broker for broker in stay if broker in isr and broker in live), NOBODY)
    return replace(moved, leader=leader, leader_epoch=info.leader_epoch + 1)


def plan_move(
    info: PartitionInfo, wanted: tuple[int, ...] | None, live: Collection[int]
) -> PartitionInfo:
    """Begin a move to ``wanted``, or with None cancel the one under way; or say why not."""
    if wanted is None:
        if not info.adding and not info.removing:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return _still_led(info, cancel_move(info), live)
    problem = ""
    if not wanted:
        problem = "a partition needs a replica"
    elif len(set(wanted)) != len(wanted):
        problem = f"{list(wanted)} names a broker twice"
    elif gone := set(wanted) - set(live) - set(info.replicas):
        problem = f"there is no broker {min(gone)}"
    if problem:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return _still_led(info, begin_move(info, wanted), live)


def _still_led(before: PartitionInfo, after: PartitionInfo, live: Collection[int]) -> PartitionInfo:
    """Some replicas go at once; maybe only these are in sync, and must not be deleted."""
    settled = elections.settle(after, live)
    if not after.isr or (settled.leader == NOBODY and before.leader != NOBODY):
        stay = ", ".join(map(str, after.replicas))
        message = f"of the replicas that would stay ({stay}) none is alive and in sync"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return settled


class Moves(PartitionStates):
    """The controller's part of it."""

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
                    changes[key] = plan_move(row, replicas, self.metadata.brokers.keys())
                    results[key] = None
                except ApiError as error:
                    results[key] = error
            await self._rewrite(changes)
            await self._finish_moves(self._topics_of(changes))
            return results

    async def _fill_up_offsets(self) -> None:
        """The topic of committed offsets is made by the first consumer, maybe before all brokers
        were there: those that come later get the replicas that are missing."""
        topic = self.metadata.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return
        rows = topic.partitions
        current = {i: target(r) for i, r in enumerate(rows) if r.partition_epoch >= 0}
        factor: int = self._settings["offsets.topic.replication.factor"]
        found = fill_up(current, factor, sorted(self.metadata.brokers), self._racks())
        if found:
            log.info("%s gets more replicas", topic.name)
        await self._rewrite({(topic.name, i): begin_move(rows[i], r) for i, r in found.items()})

    async def _finish_moves(self, topics: Iterable[TopicInfo]) -> None:
        """Let the old replicas go where all the new ones are in sync."""
        live = self.metadata.brokers.keys()
        await self._rewrite(
            {
                (topic.name, i): finish_move(row, live)
                for topic in topics
                for i, row in enumerate(topic.partitions)
                if can_finish_move(row)
            }
        )
