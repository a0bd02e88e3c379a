"""Leader election: which replica leads a partition.  No I/O.

A decision takes the state of a partition and the live brokers, and returns the new state, or the
same value if nothing changes.  The rules:

- Only a live member of the in-sync set may lead; the first of the replicas that is one, so
  that the preferred leader (the first replica) is taken where possible.
- With ``unclean`` any live replica may, if no member of the in-sync set lives: records that only
  the others had are lost.
- Dead brokers leave the in-sync set, but not the last of them: it is the one that has everything.
- The leader epoch grows when the leader changes, and only then: it fences the old one.  Any
  other change shows in the partition epoch, which grows with each write of the znode.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tidelog.metadata import PartitionInfo

NO_LEADER = -1


def settle(
    info: PartitionInfo,
    live: Collection[int],
    *,
    unclean: bool = False,
    avoid: Collection[int] = (),
) -> PartitionInfo:
    """What a partition becomes when brokers have come or gone.

    ``avoid``: brokers that live, but are about to stop or cannot write; they keep what no other
    broker can lead.
    """
    alive = [broker for broker in info.isr if broker in live]
    others = [broker for broker in alive if broker not in avoid]
    if avoid and not others:
        return info
    isr = tuple(others) if others else _last(info)
    leader = info.leader
    if leader not in others:
        leader = next((broker for broker in info.replicas if broker in others), NO_LEADER)
    if leader == NO_LEADER and not alive and unclean:
        leader = next((broker for broker in info.replicas if broker in live), NO_LEADER)
        if leader != NO_LEADER:
            isr = (leader,)
    if (leader, isr) == (info.leader, info.isr):
        return info
    epoch = info.leader_epoch + (leader != info.leader)
    return replace(info, leader=leader, isr=isr, leader_epoch=epoch)


def _last(info: PartitionInfo) -> tuple[int, ...]:
    """No member of the in-sync set lives: the leader stays in it, as it has everything."""
    return (info.leader,) if info.leader in info.isr else info.isr


def prefer(info: PartitionInfo, live: Collection[int]) -> PartitionInfo:
    """Elect the preferred leader, if it lives and is in sync."""
    preferred = preferred_leader(info)
    if preferred == info.leader or preferred not in live or preferred not in info.isr:
        return info
    return replace(info, leader=preferred, leader_epoch=info.leader_epoch + 1)


def preferred_leader(info: PartitionInfo) -> int:
    """The first of the replicas that are to stay."""
    return target(info)[0]


def target(info: PartitionInfo) -> tuple[int, ...]:
    """The replicas when a reassignment that is in progress has ended."""
    return tuple(broker for broker in info.replicas if broker not in info.removing)
