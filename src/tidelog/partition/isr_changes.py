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
from tidelog.partition.partition import Partition
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
        self._pending: dict[Partition, tuple[int, ...]] = {}
        self._proposed = asyncio.Event()

    def propose(self, partition: Partition, isr: tuple[int, ...]) -> None:
        """Ask for another in-sync set; the partition gets the answer."""
        assert partition.in_sync_state is not None
        partition.in_sync_state.propose(isr)
        self._pending[partition] = isr
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
        for partition, isr in list(self._pending.items()):
            state = partition.in_sync_state
            if state is None or state.proposed != isr or partition.deleted:
                del self._pending[partition]

    async def _ask(self, proposals: dict[Partition, tuple[int, ...]]) -> None:
        self._drop_stale()
        topics: dict[bytes, TopicChange] = {}
        asked: dict[tuple[bytes, int], tuple[Partition, tuple[int, int], tuple[int, ...]]] = {}
        for partition, isr in proposals.items():
            if partition not in self._pending:
                continue
            state = partition.in_sync_state
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
                    leader_epoch=partition.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=broker, broker_epoch=epochs.get(broker, -1))
                        for broker in isr
                    ],
                    partition_epoch=state.partition_epoch,
                )
            )
            key = (partition.topic_id, partition.index)
            asked[key] = partition, (partition.leader_epoch, state.partition_epoch), isr
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
        if any(partition in self._pending for partition, *_ in asked.values()):
            await asyncio.sleep(_RETRY_SECONDS)  # LeaderAndIsr is on its way, or another controller

    def _answered(
        self,
        partition: Partition,
        epochs: tuple[int, int],
        isr: tuple[int, ...],
        result: ChangedPartition,
    ) -> None:
        state = partition.in_sync_state
        if (
            partition.deleted
            or not partition.leads
            or state is None
            or (partition.leader_epoch, state.partition_epoch) != epochs
        ):
            return  # a LeaderAndIsr was faster, and has more
        if result.error_code == ErrorCode.NONE:
            self._pending.pop(partition, None)
            partition.isr_decided(isr, tuple(result.isr), result.partition_epoch)
            log.debug("%s-%d: in sync: %s", partition.topic, partition.index, isr)
            return
        code = ErrorCode(result.error_code)
        log.debug("%s-%d: no new in-sync set: %s", partition.topic, partition.index, code.name)
        if code in _SURELY_NOT:
            self._pending.pop(partition, None)
            partition.isr_refused(isr)
