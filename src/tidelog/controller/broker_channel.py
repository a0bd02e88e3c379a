"""The channel from the controller to one broker: LeaderAndIsr, StopReplica, UpdateMetadata.

A channel does not hold requests but what has changed: which partitions, which topics are gone.  Its
task makes requests from the controller's newest metadata and sends them until the broker has taken
them.  So a slow or unreachable broker costs nothing but its own delay, a hundred changes become one
request, and what arrives is never older than what arrived before.

The order is StopReplica, LeaderAndIsr, UpdateMetadata: no client is sent to a leader before it
knows that it leads.  A partition that the broker has (again) is not stopped: StopReplica names
no topic id, and must not hit a topic that was deleted and created again.  LeaderAndIsr does, and
the broker drops what is older.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from tidelog.client.connection import BrokerUnreachable
from tidelog.client.peer import Peer
from tidelog.controller.elections import NO_LEADER
from tidelog.controller.store import Key
from tidelog.errors import ErrorCode
from tidelog.keeper.keeper import KeeperError
from tidelog.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.wire.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from tidelog.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from tidelog.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from tidelog.wire.schema import Message

if TYPE_CHECKING:
    from tidelog.controller.propagation import Propagation

log = logging.getLogger(__name__)

LEADER_AND_ISR_VERSION = 7
STOP_REPLICA_VERSION = 4
UPDATE_METADATA_VERSION = 8
FULL = 2  # UpdateMetadata and LeaderAndIsr: this is all there is
INCREMENTAL = 1
PART = 3  # ours: a part of all there is, which is too much for a request; the last part is FULL
DELETED = -2  # as leader: the topic is gone
AT_ONCE = 2500  # partitions in one request: a broker takes a mebibyte
_RETRY_SECONDS = 0.25
_AGAIN_SECONDS = 5.0  # to a broker whose disk did not let it open a partition
_PLAINTEXT = 0

A = TypeVar("A", bound=Message)
LocalCall = Callable[[Message], Awaitable[Message]]


class Channel:
    """What is still to be sent to one broker."""

    def __init__(
        self, owner: Propagation, info: BrokerInfo, peer: Peer, local: LocalCall | None
    ) -> None:
        self.info = info
        self.task: asyncio.Task[None] | None = None
        self._owner = owner
        self._peer = peer
        self._local = local
        self._full = True
        self._changed: set[Key] = set()
        self._stop: dict[Key, bool] = {}  # with its files, or only for now
        self._deleted: dict[str, TopicInfo] = {}
        self._news = asyncio.Event()
        self._sending = False
        self._refused = False  # it accepts nothing from us any more
        self._complained = False
        self._failed: set[Key] = set()  # to be sent again, when the timer fires
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        return not self._refused and (self._sending or self._news.is_set())

    def note(
        self,
        changed: set[Key],
        moved_away: dict[Key, set[int]],
        deleted: dict[str, TopicInfo],
        brokers_changed: bool,
    ) -> None:
        for name, topic in deleted.items():
            self._changed = {key for key in self._changed if key[0] != name}
            self._deleted[name] = topic
            for i, row in enumerate(topic.partitions):
                if self.info.broker_id in row.replicas:
                    self._stop[name, i] = True
        for key, brokers in moved_away.items():
            if self.info.broker_id in brokers:
                self._stop[key] = True
        self._changed |= changed
        if changed or deleted or moved_away or brokers_changed:
            self._news.set()

    def note_all(self, metadata: ClusterMetadata) -> None:
        """A new channel: everything is sent."""
        self._changed = {
            (name, i)
            for name, topic in metadata.topics.items()
            for i in range(len(topic.partitions))
        }
        self._full = True
        self._news.set()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()
        self._peer.close()

    # -- sending ----------------------------------------------------------------

    async def run(self) -> None:
        """Send what has changed, again and again."""
        while True:
            self._sending = False
            await self._news.wait()
            self._news.clear()
            self._sending = True
            stop, self._stop = self._stop, {}
            deleted, self._deleted = self._deleted, {}
            changed, self._changed = self._changed, set()
            full, self._full = self._full, False
            try:
                await self._send_stop(stop)
                await self._send_leaders(changed, full)
                await self._send_metadata(changed, deleted, full)
                self._complained = False
            except _Refused as error:
                log.warning("%s", error)
                self._refused = True
                return  # it knows a later controller, or is a later broker
            except (BrokerUnreachable, KeeperError) as error:
                self._stop = {**stop, **self._stop}
                self._deleted = {**deleted, **self._deleted}
                self._changed |= changed
                self._full |= full
                self._news.set()
                if not self._complained:
                    self._complained = True
                    log.warning("broker %d cannot be reached: %s", self.info.broker_id, error)
                await asyncio.sleep(_RETRY_SECONDS)

            except Exception:
                # A bug of ours: without this task nothing would ever be sent to the broker again.
                log.exception("sending to broker %d", self.info.broker_id)
                self.note_all(self._owner.metadata)
                await asyncio.sleep(_AGAIN_SECONDS)

    def send_again(self, keys: set[Key]) -> None:
        self._changed |= keys
        self._news.set()

    def _send_failed_again(self) -> None:
        self._timer = None
        failed, self._failed = self._failed, set()
        self.send_again(failed)

    async def _send_stop(self, stop: dict[Key, bool]) -> None:
        states: dict[str, list[StopReplicaPartitionState]] = {}
        now = self._owner.metadata
        here = {
            (topic.name, i)
            for topic, i in _existing(now, set(stop))
            if self.info.broker_id in topic.partitions[i].replicas
        }
        for (name, i), delete in stop.items():
            if (name, i) in here:
                continue
            row = StopReplicaPartitionState(
                partition_index=i, leader_epoch=DELETED, delete_partition=delete
            )
            states.setdefault(name, []).append(row)
        if not states:
            return
        request = StopReplicaRequest(
            controller_id=now.controller_id,
            controller_epoch=self._owner.epoch,
            broker_epoch=self.info.epoch,
            topic_states=[
                StopReplicaTopicState(topic_name=name, partition_states=rows)
                for name, rows in states.items()
            ],
        )
        answer = await self._call(request, StopReplicaResponse, STOP_REPLICA_VERSION)
        _check(answer.error_code, "StopReplica", self.info)

    async def _send_leaders(self, changed: set[Key], full: bool) -> None:
        """Everything of this broker's own; a new broker gets one even if it has nothing."""
        metadata = self._owner.metadata
        mine = [
            (topic, i, topic.partitions[i])
            for topic, i in _existing(metadata, changed)
            if self.info.broker_id in topic.partitions[i].replicas
            and topic.partitions[i].partition_epoch >= 0
        ]
        for start in range(0, max(len(mine), 1 if full else 0), AT_ONCE):
            part = mine[start : start + AT_ONCE]
            states: dict[str, LeaderAndIsrTopicState] = {}
            for topic, i, row in part:
                state = states.get(topic.name)
                if state is None:
                    state = states[topic.name] = LeaderAndIsrTopicState(
                        topic_name=topic.name, topic_id=topic.topic_id, partition_states=[]
                    )
                state.partition_states.append(self._leader_state(i, row))
            leaders = {row.leader for _, _, row in part if row.leader != NO_LEADER}
            request = LeaderAndIsrRequest(
                controller_id=metadata.controller_id,
                controller_epoch=self._owner.epoch,
                broker_epoch=self.info.epoch,
                type=_type(full, start + AT_ONCE >= len(mine)),
                topic_states=list(states.values()),
                live_leaders=[
                    LeaderAndIsrLiveLeader(
                        broker_id=info.broker_id, host_name=info.host or "", port=info.port
                    )
                    for info in metadata.brokers.values()
                    if info.broker_id in leaders
                ],
            )
            answer = await self._call(request, LeaderAndIsrResponse, LEADER_AND_ISR_VERSION)
            _check(answer.error_code, "LeaderAndIsr", self.info)
            self._note_errors(
                {
                    (metadata.topic_names[topic_error.topic_id], row_error.partition_index): code
                    for topic_error in answer.topics
                    for row_error in topic_error.partition_errors
                    if (code := row_error.error_code)
                },
                {(topic.name, i) for topic, i, _ in part},
            )

    def _note_errors(self, failed: dict[Key, int], sent: set[Key]) -> None:
        """Partitions that the broker could not open; of the rest we know now that it can."""
        storage = {key for key, code in failed.items() if code == ErrorCode.KAFKA_STORAGE_ERROR}
        self._owner.storage_answered(self.info, storage, sent - failed.keys())
        self._failed |= failed.keys()
        if failed and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_AGAIN_SECONDS, self._send_failed_again)

    def _leader_state(self, index: int, row: PartitionInfo) -> LeaderAndIsrPartitionState:
        return LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=self._owner.epoch,
            leader=row.leader,
            leader_epoch=row.leader_epoch,
            isr=list(row.isr),
            partition_epoch=row.partition_epoch,
            replicas=list(row.replicas),
            adding_replicas=list(row.adding),
            removing_replicas=list(row.removing),
        )

    async def _send_metadata(
        self, changed: set[Key], deleted: dict[str, TopicInfo], full: bool
    ) -> None:
        metadata = self._owner.metadata
        rows = list(_existing(metadata, changed))
        gone = [
            UpdateMetadataTopicState(
                topic_name=name,
                topic_id=topic.topic_id,
                partition_states=[self._metadata_state(0, topic.partitions[0], DELETED)],
            )
            for name, topic in deleted.items()
        ]
        for start in range(0, max(len(rows), 1), AT_ONCE):
            last = start + AT_ONCE >= len(rows)
            states: dict[str, UpdateMetadataTopicState] = {}
            for topic, i in rows[start : start + AT_ONCE]:
                state = states.get(topic.name)
                if state is None:
                    state = states[topic.name] = UpdateMetadataTopicState(
                        topic_name=topic.name, topic_id=topic.topic_id, partition_states=[]
                    )
                row = topic.partitions[i]
                state.partition_states.append(self._metadata_state(i, row, row.leader))
            request = UpdateMetadataRequest(
                controller_id=metadata.controller_id,
                controller_epoch=self._owner.epoch,
                broker_epoch=self.info.epoch,
                type=_type(full, last),
                topic_states=(gone if last else []) + list(states.values()),
                live_brokers=[
                    UpdateMetadataBroker(
                        id=info.broker_id,
                        endpoints=[
                            UpdateMetadataEndpoint(
                                port=info.port,
                                host=info.host or "",
                                listener="PLAINTEXT",
                                security_protocol=_PLAINTEXT,
                            )
                        ],
                        rack=info.rack,
                    )
                    for info in metadata.brokers.values()
                ],
            )
            answer = await self._call(request, UpdateMetadataResponse, UPDATE_METADATA_VERSION)
            _check(answer.error_code, "UpdateMetadata", self.info)

    def _metadata_state(
        self, index: int, row: PartitionInfo, leader: int
    ) -> UpdateMetadataPartitionState:
        live = self._owner.metadata.brokers
        return UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=self._owner.epoch,
            leader=leader,
            leader_epoch=row.leader_epoch,
            isr=list(row.isr),
            zk_version=row.partition_epoch,
            replicas=list(row.replicas),
            offline_replicas=[broker for broker in row.replicas if broker not in live],
        )

    async def _call(self, request: Message, answer: type[A], version: int) -> A:
        if self._local is not None:
            local = await self._local(request)
            assert isinstance(local, answer)
            return local
        return await self._peer.request(request, answer, version)


def _type(full: bool, last: bool) -> int:
    if not full:
        return INCREMENTAL
    return FULL if last else PART


class _Refused(Exception):
    """The broker accepts no requests from us."""


def _check(code: int, what: str, info: BrokerInfo) -> None:
    if not code:
        return
    message = f"broker {info.broker_id} refuses {what}: {ErrorCode(code).name}"
    if code in (ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH):
        raise _Refused(message)
    raise BrokerUnreachable(message)  # it cannot ask ZooKeeper about us just now, say


def _existing(metadata: ClusterMetadata, keys: set[Key]) -> list[tuple[TopicInfo, int]]:
    """The partitions among ``keys`` that there are now, in order."""
    found = []
    for name, i in sorted(keys):
        topic = metadata.topics.get(name)
        if topic is not None and i < len(topic.partitions):
            found.append((topic, i))
    return found
