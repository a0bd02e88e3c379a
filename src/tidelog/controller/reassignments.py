"""Reassignment of replicas to other brokers: what a partition becomes.  No I/O.

A reassignment adds the new replicas beside the old ones, waits until all the new ones are in sync,
and then removes the old ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tidelog.controller import elections
from tidelog.controller.elections import NO_LEADER, target
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import PartitionInfo


def begin(info: PartitionInfo, wanted: tuple[int, ...]) -> PartitionInfo:
    """Begin a reassignment to ``wanted``: old and new replicas, the new ones first.

    What an earlier reassignment was adding, and is not wanted any more, is removed at once.
    """
    origin = tuple(broker for broker in info.replicas if broker not in info.adding)
    kept = tuple(broker for broker in info.replicas if broker not in wanted)
    adding = tuple(broker for broker in wanted if broker not in origin)
    removing = tuple(broker for broker in kept if broker in origin)
    replicas = (*wanted, *removing)
    isr = tuple(broker for broker in info.isr if broker in replicas)
    return replace(info, replicas=replicas, isr=isr, adding=adding, removing=removing)


def cancel(info: PartitionInfo) -> PartitionInfo:
    """Back to the replicas from before the reassignment.  Maybe none of them is in sync."""
    origin = tuple(broker for broker in info.replicas if broker not in info.adding)
    isr = tuple(broker for broker in info.isr if broker in origin)
    return replace(info, replicas=origin, isr=isr, adding=(), removing=())


def can_finish(info: PartitionInfo) -> bool:
    """Are all replicas that are to stay in sync?"""
    return bool(info.adding or info.removing) and set(target(info)) <= set(info.isr)


def finish(info: PartitionInfo, live: Collection[int]) -> PartitionInfo:
    """Remove the old replicas; if the leader is among them, another is elected."""
    stay = target(info)
    isr = tuple(broker for broker in info.isr if broker in stay)
    after = replace(info, replicas=stay, isr=isr, adding=(), removing=())
    if info.leader in stay:
        return after
    leader = next((broker for broker in stay if broker in isr and broker in live), NO_LEADER)
    return replace(after, leader=leader, leader_epoch=info.leader_epoch + 1)


def plan(
    info: PartitionInfo, wanted: tuple[int, ...] | None, live: Collection[int]
) -> PartitionInfo:
    """Begin a reassignment to ``wanted``, or with None cancel the one in progress; or raise why
    not."""
    if wanted is None:
        if not info.adding and not info.removing:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return _still_led(info, cancel(info), live)
    problem = ""
    if not wanted:
        problem = "a partition needs a replica"
    elif len(set(wanted)) != len(wanted):
        problem = f"{list(wanted)} names a broker twice"
    elif gone := set(wanted) - set(live) - set(info.replicas):
        problem = f"there is no broker {min(gone)}"
    if problem:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return _still_led(info, begin(info, wanted), live)


def _still_led(before: PartitionInfo, after: PartitionInfo, live: Collection[int]) -> PartitionInfo:
    """Some replicas are removed at once; if only these are in sync, they must not be."""
    settled = elections.settle(after, live)
    if not after.isr or (settled.leader == NO_LEADER and before.leader != NO_LEADER):
        stay = ", ".join(map(str, after.replicas))
        message = f"of the replicas that would stay ({stay}) none is alive and in sync"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return settled
