"""The replica fetcher: fetch from a leader, append, truncate what has diverged.

There is one fetcher for each broker that leads something we follow (``fetcher_manager.py``).  It
fetches all these partitions together, in an incremental session (KIP-227): a request names only
those that have changed.  The leader delays its answer until there is something new.

A fetch names the end of our log and the epoch in which its last batch was written.  If that epoch
ends earlier in the leader's log, the answer has the diverging epoch (KIP-595), and we truncate our
log and fetch again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidelog.client.connection import BrokerUnreachable
from tidelog.client.peer import Peer
from tidelog.clock import Clock
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import BrokerInfo, ClusterMetadata
from tidelog.partition.follower import Follower
from tidelog.partition.partition import Partition
from tidelog.partition.replicas import Replicas
from tidelog.partition.throttle import Throttle
from tidelog.settings import Settings
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

log = logging.getLogger(__name__)

VERSION = 16
_LIST_OFFSETS_VERSION = 7
_LATEST, _EARLIEST = -1, -2
_RETRY_SECONDS = 0.1  # after an error of one partition
_AFTER_BUG_SECONDS = 1.0
_COALESCE_SECONDS = 0.03
_THROTTLED_SECONDS = 0.5  # the longest wait of a throttled replica before it looks again
_AT_ONCE = 1 << 20  # bytes appended before other work has its turn

Key = tuple[bytes, int]


def _retrieve_exception(asked: asyncio.Future[FetchResponse]) -> None:
    """A request that was broken off may fail: asyncio is not to report that."""
    if not asked.cancelled():
        asked.exception()


class FollowingBroker(Protocol):
    """What a fetcher needs of the broker that it fetches for."""

    @property
    def broker_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def metadata(self) -> ClusterMetadata: ...
    @property
    def known_brokers(self) -> Mapping[int, BrokerInfo]: ...
    @property
    def follower_throttle(self) -> Throttle: ...
    @property
    def replicas(self) -> Replicas: ...

    def peer(self, info: BrokerInfo, /) -> Peer: ...
    def spawn(self, work: Coroutine[Any, Any, None], /) -> asyncio.Task[None]: ...


@dataclass(slots=True)
class _Followed:
    partition: Partition
    not_before: float = 0.0
    sent: tuple[int, int, int, int] | None = None  # what the leader's session knows


class LeaderFetcher:
    """Fetches from one leader."""

    def __init__(self, broker: FollowingBroker, leader: int) -> None:
        self.leader = leader
        self.partitions: dict[Key, _Followed] = {}
        self.task: asyncio.Task[None] | None = None
        self._broker = broker
        self._settings = broker.settings
        self._clock = broker.clock
        self._peer: Peer | None = None
        self._info: BrokerInfo | None = None
        self._changed = asyncio.Event()
        self._session_id = 0
        self._session_epoch = 0
        self._forgotten: list[Key] = []
        self._complained = False
        self._added = False

    def add(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        known = self.partitions.get(key)
        if (
            known is not None
            and known.partition is partition
            and known.sent is not None
            and known.sent[0] == partition.leader_epoch
        ):
            return  # only the in-sync set is another: the fetch that is under way goes on
        self.partitions[key] = _Followed(partition)
        self._added = True

    def go_on(self) -> None:
        """Fetch what was added."""
        if self._added:
            self._added = False
            self._changed.set()

    def remove(self, key: Key) -> None:
        followed = self.partitions.pop(key, None)
        if followed is not None and followed.sent is not None:
            self._forgotten.append(key)
        self._changed.set()

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
        if self._peer is not None:
            self._peer.close()

    # -- rounds -----------------------------------------------------------------

    async def run(self) -> None:
        while True:
            ready = self._ready()
            if not ready:
                await self._pause(self._next_due())
                continue
            try:
                await self._round(ready)
                self._complained = False
            except BrokerUnreachable as error:
                self._end_session()
                if not self._complained:
                    self._complained = True
                    log.warning("cannot fetch from broker %d: %s", self.leader, error.message)
                await self._pause(_RETRY_SECONDS)
            except Exception:
                # A bug of ours, or an answer without sense; without this task nothing is
                # replicated from that leader ever again.
                log.exception("fetching from broker %d", self.leader)
                self._end_session()
                await asyncio.sleep(_AFTER_BUG_SECONDS)

    def _ready(self) -> list[tuple[Key, _Followed]]:
        now = self._clock.monotonic()
        wait = self._broker.follower_throttle.wait_seconds
        for followed in self.partitions.values() if wait else ():
            follower = followed.partition.follower
            in_sync = follower is not None and follower.in_sync
            if followed.partition.throttled_follower and not in_sync:
                # Not for long: the rate may be raised meanwhile.
                soon = now + min(wait, _THROTTLED_SECONDS)
                followed.not_before = max(followed.not_before, soon)
        return [item for item in self.partitions.items() if item[1].not_before <= now]

    def _next_due(self) -> float | None:
        if not self.partitions:
            return None
        due = min(followed.not_before for followed in self.partitions.values())
        return max(0.001, due - self._clock.monotonic())

    async def _pause(self, seconds: float | None) -> None:
        """Wait for a while, or until something changes."""
        self._changed.clear()
        self._added = False
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _connection(self) -> Peer:
        info = self._broker.metadata.brokers.get(self.leader) or self._broker.known_brokers.get(
            self.leader
        )
        if info is None:
            raise BrokerUnreachable(f"broker {self.leader} is not there")
        if self._peer is None or info != self._info:
            if self._peer is not None:
                self._peer.close()
            self._end_session()
            self._session_id = 0
            self._peer, self._info = self._broker.peer(info), info
        return self._peer

    async def _round(self, ready: list[tuple[Key, _Followed]]) -> None:
        peer = self._connection()
        self._changed.clear()
        self._added = False
        request = self._request(ready)
        wait: int = self._settings["replica.fetch.wait.max.ms"]
        asking = asyncio.ensure_future(peer.request(request, FetchResponse, VERSION, wait))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({asking, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                # A thousand partitions come one by one: they share the next request.
                await asyncio.wait({asking}, timeout=_COALESCE_SECONDS)
            if not asking.done():
                # There are other partitions to fetch now: the leader need not keep us waiting.
                peer.close()
                self._end_session()
                return
            answer = asking.result()
        finally:
            changed.cancel()
            asking.cancel()
            asking.add_done_callback(_retrieve_exception)
        if answer.error_code:
            self._end_session()
            return
        self._session_id = answer.session_id
        self._session_epoch = self._session_epoch + 1 if answer.session_id else 0
        await self._append_all(answer)

    def _end_session(self) -> None:
        self._session_epoch = 0  # the next request opens one and closes the one it names
        self._forgotten.clear()
        for followed in self.partitions.values():
            followed.sent = None

    def _request(self, ready: list[tuple[Key, _Followed]]) -> FetchRequest:
        topics: dict[bytes, FetchTopic] = {}
        active = {key for key, _ in ready}
        most: int = self._settings["replica.fetch.max.bytes"]
        for key, followed in ready:
            partition = followed.partition
            source = partition.log
            start = source.log_start_offset
            state = (partition.leader_epoch, source.end_offset, source.last_epoch, start)
            if state == followed.sent and self._session_epoch:
                continue
            followed.sent = state
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(topic_id=key[0], partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=key[1],
                    current_leader_epoch=state[0],
                    fetch_offset=state[1],
                    last_fetched_epoch=state[2],
                    log_start_offset=start,
                    partition_max_bytes=most,
                )
            )
        forgotten: dict[bytes, list[int]] = {}
        if self._session_epoch:
            for key, followed in self.partitions.items():
                if key not in active and followed.sent is not None:
                    followed.sent = None
                    self._forgotten.append(key)
            for topic_id, index in self._forgotten:
                # One that was forgotten and followed again is named with its new state.
                if (topic_id, index) not in active:
                    forgotten.setdefault(topic_id, []).append(index)
        self._forgotten.clear()
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=self._broker.broker_id, replica_epoch=self._broker.broker_epoch
            ),
            max_wait_ms=self._settings["replica.fetch.wait.max.ms"],
            min_bytes=self._settings["replica.fetch.min.bytes"],
            max_bytes=self._settings["replica.fetch.response.max.bytes"],
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in forgotten.items()
            ],
        )

    # -- answers ----------------------------------------------------------------

    async def _append_all(self, answer: FetchResponse) -> None:
        done = 0
        for topic in answer.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                followed = self.partitions.get(key)
                follower = None if followed is None else followed.partition.follower
                if followed is None or follower is None:
                    continue
                if followed.sent is None or followed.sent[0] != followed.partition.leader_epoch:
                    continue  # an answer from before the leader's latest change
                try:
                    await self._append(follower, data)
                except (ApiError, OSError) as error:
                    self._back_off(followed, error)
                done += len(data.records) if data.records else 0
                if done >= _AT_ONCE:
                    done = 0
                    await asyncio.sleep(0)

    async def _append(self, follower: Follower, data: PartitionData) -> None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._reposition(follower.partition)
        elif data.error_code:
            code = ErrorCode(data.error_code)
            raise ApiError(code)
        elif data.diverging_epoch is not None:
            follower.truncate_diverged(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
        else:
            records = None if data.records is None else memoryview(data.records)
            if records is not None and follower.partition.throttled_follower:
                self._broker.follower_throttle.took(len(records))
            now_ms = self._clock.now_ms()
            follower.append(records, data.high_watermark, data.log_start_offset, now_ms)

    def _back_off(self, followed: _Followed, error: ApiError | OSError) -> None:
        """Fetch one partition again after a while; the others go on."""
        partition = followed.partition
        followed.not_before = self._clock.monotonic() + _RETRY_SECONDS
        if isinstance(error, OSError):
            self._broker.replicas.write_failed(partition.log.directory, error)
        else:
            log.debug("%s-%d: %s", partition.topic, partition.index, error.message)

    async def _reposition(self, partition: Partition) -> None:
        """Our end is not within the leader's log."""
        epoch = partition.leader_epoch
        start = await self._leader_offset(partition, _EARLIEST)
        end = await self._leader_offset(partition, _LATEST)
        log.warning(
            "%s-%d: our log ends at %d, the leader's goes from %d to %d",
            partition.topic,
            partition.index,
            partition.log.end_offset,
            start,
            end,
        )
        if partition.leader_epoch == epoch and partition.follower is not None:
            partition.follower.reposition(start, end)  # else another leader's log counts

    async def _leader_offset(self, partition: Partition, timestamp: int) -> int:
        request = ListOffsetsRequest(
            replica_id=self._broker.broker_id,
            topics=[
                ListOffsetsTopic(
                    name=partition.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=partition.index,
                            current_leader_epoch=partition.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        answer = await self._connection().request(
            request, ListOffsetsResponse, _LIST_OFFSETS_VERSION
        )
        result = answer.topics[0].partitions[0]
        if result.error_code:
            raise ApiError(ErrorCode(result.error_code))
        return result.offset
