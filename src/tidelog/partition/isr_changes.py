"""Changes of the in-sync set: the leader proposes, the controller decides (AlterPartition).

Many partitions go into one request.  While the controller has not answered, a partition proposes
nothing else.

A refusal does not mean that the controller has not agreed: it may have, and the answer was lost,
so that our second request is out of date for it.  Until its LeaderAndIsr arrives, the proposal
stands, and the high watermark waits for all replicas in it (KIP-497).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from tidelog.client.connection import BrokerUnreachable
from tidelog.errors import ApiError, ErrorCode
from tidelog.partition.leader import Leader
from tidelog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ChangedPartition,
    PartitionChange,
    TopicChange,
)
from tidelog.wire.schema import Message

log = logging.getLogger(__name__)

VERSION = 3
_RETRY_SECONDS = 0.1
_AFTER_BUG_SECONDS = 1.0
_AT_ONCE = 2000
# The controller knows the partition as we do, and has not done what we ask.
_SURELY_NOT = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)


class LeadingBroker(Protocol):
    """The broker that leads, and its way to the controller."""

    @property
    def broker_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...

    async def ask_controller(
        self, request: Message, answer: type[AlterPartitionResponse], version: int, /
    ) -> AlterPartitionResponse: ...


class IsrChanges:
    """See the module."""

    def __init__(self, broker: LeadingBroker) -> None:
        self._broker = broker
        self._pending: dict[Leader, tuple[int, ...]] = {}
        self._proposed = asyncio.Event()

    def propose(self, leader: Leader, isr: tuple[int, ...]) -> None:
        """Ask for another in-sync set; the leader gets the answer."""
        assert leader.in_sync_set is not None
        leader.in_sync_set.propose(isr)
        self._pending[leader] = isr
        self._proposed.set()

    async def run(self) -> None:
        """Send proposals to the controller, as long as the broker runs."""
        while True:
            await self._proposed.wait()
            self._proposed.clear()
            while self._pending:
                some = dict(list(self._pending.items())[:_AT_ONCE])
                try:
                    await self._ask(some)
                except (BrokerUnreachable, ApiError) as error:
                    log.debug("the in-sync sets cannot be changed yet: %s", error)
                    self._drop_stale()
                    await asyncio.sleep(_RETRY_SECONDS)
                except Exception:
                    log.exception("asking for other in-sync sets")  # a bug of ours
                    self._drop_stale()
                    await asyncio.sleep(_AFTER_BUG_SECONDS)

    def _drop_stale(self) -> None:
        for leader, isr in list(self._pending.items()):
            state = leader.in_sync_set
            if state is None or state.proposed != isr or not leader.leads:
                del self._pending[leader]

    async def _ask(self, proposals: dict[Leader, tuple[int, ...]]) -> None:
        self._drop_stale()
        topics: dict[bytes, TopicChange] = {}
        asked: dict[tuple[bytes, int], tuple[Leader, int, tuple[int, ...]]] = {}
        for leader, isr in proposals.items():
            if leader not in self._pending:
                continue
            partition, state = leader.partition, leader.in_sync_set
            assert state is not None
            epochs = {state.leader: self._broker.broker_epoch, **state.proposed_epochs}
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = TopicChange(
                    topic_id=partition.topic_id, partitions=[]
                )
            topic.partitions.append(
                PartitionChange(
                    partition_index=partition.index,
                    leader_epoch=leader.epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=broker, broker_epoch=epochs.get(broker, -1))
                        for broker in isr
                    ],
                    partition_epoch=state.partition_epoch,
                )
            )
            key = (partition.topic_id, partition.index)
            asked[key] = leader, state.partition_epoch, isr
        if not asked:
            return
        request = AlterPartitionRequest(
            broker_id=self._broker.broker_id,
            broker_epoch=self._broker.broker_epoch,
            topics=list(topics.values()),
        )
        answer = await self._broker.ask_controller(request, AlterPartitionResponse, VERSION)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        for changed in answer.topics:
            for result in changed.partitions:
                self._answered(*asked[changed.topic_id, result.partition_index], result)
        if any(leader in self._pending for leader, *_ in asked.values()):
            await asyncio.sleep(_RETRY_SECONDS)  # LeaderAndIsr is on its way, or another controller

    def _answered(
        self,
        leader: Leader,
        partition_epoch: int,
        isr: tuple[int, ...],
        result: ChangedPartition,
    ) -> None:
        state, partition = leader.in_sync_set, leader.partition
        if not leader.leads or state is None or state.partition_epoch != partition_epoch:
            return  # a LeaderAndIsr was faster, and has more
        if result.error_code == ErrorCode.NONE:
            self._pending.pop(leader, None)
            leader.isr_decided(isr, tuple(result.isr), result.partition_epoch)
            log.debug("%s-%d: in sync: %s", partition.topic, partition.index, isr)
            return
        code = ErrorCode(result.error_code)
        log.debug("%s-%d: no new in-sync set: %s", partition.topic, partition.index, code.name)
        if code in _SURELY_NOT:
            self._pending.pop(leader, None)
            leader.isr_refused(isr)
