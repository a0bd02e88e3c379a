"""Who leads a partition: the controller's decisions, pure.

A decision takes what is (:class:`PartitionInfo`) and who lives, and returns what is to be, or
the same value if nothing changes.  The rules:

- Only a live member of the in-sync set may lead; the first of the replicas that is one, so
  that the preferred leader (the first replica) is taken where possible.
- With ``unclean`` any live replica may, if no member of the in-sync set lives: what the others
  had and it has not is lost.
- The dead leave the in-sync set, but never the last of them: who has everything is remembered.
- The leader epoch grows when the leader changes, and only then: it fences the old one.  Any
  other change is told by the partition epoch, which grows with each write of the znode.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tidelog.metadata import PartitionInfo

NOBODY = -1


def settle(
    info: PartitionInfo,
    live: Collection[int],
    *,
    unclean: bool = False,
    avoid: Collection[int] = (),
) -> PartitionInfo:
    """What a partition becomes when brokers have come or gone.

    ``avoid``: brokers that live, but are about to stop or cannot write; they keep what nobody
    else can lead.
    """
    alive = [broker for broker in info.isr if broker in live]
    others = [broker for broker in alive if broker not in avoid]
    if avoid and not others:
        return info
    isr = tuple(others) if others else _last(info)
    leader = info.leader
    if leader not in others:
        leader = next((broker for broker in info.replicas if broker in others), NOBODY)
    if leader == NOBODY and not alive and unclean:
        leader = next((broker for broker in info.replicas if broker in live), NOBODY)
        if leader != NOBODY:
            isr = (leader,)
    if (leader, isr) == (info.leader, info.isr):
        return info
    epoch = info.leader_epoch + (leader != info.leader)
    return replace(info, leader=leader, isr=isr, leader_epoch=epoch)


def _last(info: PartitionInfo) -> tuple[int, ...]:
    """Nobody of the in-sync set lives: the leader is remembered as the one who has all."""
    return (info.leader,) if info.leader in info.isr else info.isr


def prefer(info: PartitionInfo, live: Collection[int]) -> PartitionInfo:
    """Give the lead back to the preferred leader, if it lives and is in sync."""
    preferred = preferred_leader(info)
    if preferred == info.leader or preferred not in live or preferred not in info.isr:
        return info
    return replace(info, leader=preferred, leader_epoch=info.leader_epoch + 1)


def preferred_leader(info: PartitionInfo) -> int:
    """The first of the replicas that are to stay."""
    return target(info)[0]


def target(info: PartitionInfo) -> tuple[int, ...]:
    """The replicas when a move that is under way has ended."""
    return tuple(broker for broker in info.replicas if broker not in info.removing)
