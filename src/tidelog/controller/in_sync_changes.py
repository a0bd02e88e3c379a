"""AlterPartition: may a leader change the in-sync set of its partition?  No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tidelog.errors import ErrorCode
from tidelog.metadata import BrokerInfo, PartitionInfo


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader asks for: these replicas are in sync now."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    broker_epochs: Mapping[int, int]  # of those in sync; one that is added must have its own


def check(
    info: PartitionInfo,
    change: IsrChange,
    broker_id: int,
    brokers: Mapping[int, BrokerInfo],
    eligible: Collection[int],
) -> ErrorCode:
    """NONE, or why not.  Only brokers that are ``eligible`` may come into sync."""
    if info.leader != broker_id or change.leader_epoch < info.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if change.leader_epoch > info.leader_epoch:
        return ErrorCode.NOT_CONTROLLER  # it knows a later decision than we do
    if change.partition_epoch != info.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = set(change.isr)
    if broker_id not in isr or not isr <= set(info.replicas) or len(isr) < len(change.isr):
        return ErrorCode.INVALID_REQUEST
    for added in sorted(isr - set(info.isr)):
        if added not in eligible:
            return ErrorCode.INELIGIBLE_REPLICA
        if change.broker_epochs.get(added, -1) != brokers[added].epoch:
            return ErrorCode.INELIGIBLE_REPLICA  # restarted since it had everything (KIP-903)
    return ErrorCode.NONE
