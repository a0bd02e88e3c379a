"""A leader's side: who falls behind leaves the in-sync set, who catches up comes back.

The controller decides (AlterPartition); many partitions go into one request.  While it has
not answered, a partition proposes nothing else.

A refusal does not say that the controller has not agreed: it may have, and the answer was
lost, so that it finds our second question old.  Until its order arrives and says how things
are, the proposal stands, and the high watermark waits for whoever is in it (KIP-497).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

VERSION = 3
_RETRY_SECONDS = 0.1
_AFTER_BUG_SECONDS = 1.0
_AT_ONCE = 2000
# The controller knows the partition as we do, and has not done what we ask.
_SURELY_NOT = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)


class IsrChanges:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pending: dict[Partition, tuple[int, ...]] = {}
        self._news = asyncio.Event()

    def propose(self, partition: Partition, isr: tuple[int, ...]) -> None:
        """Ask for another in-sync set; the partition hears the answer."""
        assert partition.in_sync_state is not None
        partition.in_sync_state.propose(isr)
        self._pending[partition] = isr
        self._news.set()

    async def run(self) -> None:
        """Send proposals to the controller, as long as the broker runs."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._pending:
                part = dict(list(self._pending.items())[:_AT_ONCE])
                try:
                    await self._ask(part)
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

    async def _ask(self, part: dict[Partition, tuple[int, ...]]) -> None:
        self._drop_stale()
        topics: dict[bytes, TopicChange] = {}
        asked: dict[tuple[bytes, int], tuple[Partition, tuple[int, int], tuple[int, ...]]] = {}
        for partition, isr in part.items():
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
            for row in changed.partitions:
                self._answered(*asked[changed.topic_id, row.partition_index], row)
        if any(partition in self._pending for partition, *_ in asked.values()):
            await asyncio.sleep(_RETRY_SECONDS)  # an order is on its way, or another controller

    def _answered(
        self,
        partition: Partition,
        epochs: tuple[int, int],
        isr: tuple[int, ...],
        row: ChangedPartition,
    ) -> None:
        state = partition.in_sync_state
        if (
            partition.deleted
            or not partition.leads
            or state is None
            or (partition.leader_epoch, state.partition_epoch) != epochs
        ):
            return  # an order was faster, and has said more
        if row.error_code == ErrorCode.NONE:
            self._pending.pop(partition, None)
            partition.isr_decided(isr, tuple(row.isr), row.partition_epoch)
            log.debug("%s-%d: in sync: %s", partition.topic, partition.index, isr)
            return
        code = ErrorCode(row.error_code)
        log.debug("%s-%d: no new in-sync set: %s", partition.topic, partition.index, code.name)
        if code in _SURELY_NOT:
            self._pending.pop(partition, None)
            partition.isr_refused(isr)
