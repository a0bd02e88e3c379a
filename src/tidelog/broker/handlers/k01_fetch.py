"""Fetch: whole batches from an offset on, as file ranges.

Versions
    4     isolation level             12    flexible; last fetched epoch
    5     log start offset            13    topic ids instead of names
    7     incremental sessions        15    replica state in a tag
    9     leader epoch                16    node endpoints
    11    rack                        18    (follower's high watermark)

An answer is sent at once if it has ``min_bytes``, an error, or no time to wait.
Otherwise the request is parked: each append wakes it, and at the latest the timer does.

A fetch that names a replica moves the high watermark.  It counts only with the broker epoch of
that broker's live registration (KIP-903, version 15): with -1, in older versions or after a new
registration it is NOT_LEADER_OR_FOLLOWER.  Followers of this release send version 16.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from tidelog.broker.connection import Pending
from tidelog.broker.fetch_sessions import FetchSession
from tidelog.broker.registry import raw_api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.partition.partition import Partition
from tidelog.wire.hot import (
    Fetched,
    FetchHead,
    FetchRow,
    TopicRef,
    decode_fetch,
    encode_fetch_response,
)
from tidelog.wire.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_FIRST_FROM_FOLLOWERS = 11
_FIRST_TOPIC_ID = 13
_NEAR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_READ_COMMITTED = 1
_DIVERGING = struct.Struct(">BBBiqB")  # one tag: number 0, 13 bytes: epoch, end offset, no tags


@raw_api(FetchRequest, versions=(4, 18))
def fetch(broker: Broker, request: Request) -> None:
    """Read record batches; waits for new ones if asked to."""
    head = decode_fetch(request.data, request.start, request.version)
    try:
        by_id = request.version >= _FIRST_TOPIC_ID
        session, incremental = broker.fetch_sessions.resolve(head, by_id)
    except ApiError as error:
        answer = encode_fetch_response(request.version, request.correlation_id, error.code, 0, [])
        request.connection.reply(answer)  # type: ignore[arg-type]
        return
    rows = list(session.rows.values()) if session and incremental else head.rows
    work = _Fetch(broker, request, head, rows, session, incremental)
    work.read()
    if work.ready() or head.max_wait_ms <= 0 or not rows:
        request.connection.reply(work.encode())  # type: ignore[arg-type]
    else:
        request.connection.park(work)
        work.wait()


class _Fetch(Pending):
    """One Fetch while it is served, and parked if need be."""

    __slots__ = (
        "_broker",
        "_bytes",
        "_correlation_id",
        "_ends",
        "_failed",
        "_follower",
        "_head",
        "_incremental",
        "_limit",
        "_loop",
        "_partitions",
        "_rack",
        "_results",
        "_rows",
        "_scheduled",
        "_session",
        "_timer",
        "_version",
        "_watches",
    )

    def __init__(
        self,
        broker: Broker,
        request: Request,
        head: FetchHead,
        rows: list[FetchRow],
        session: FetchSession | None,
        incremental: bool,
    ) -> None:
        super().__init__(request.connection, blocking=True)
        self._broker = broker
        # Not the frame itself: it would keep the connection's buffer alive.
        self._version, self._correlation_id = request.version, request.correlation_id
        self._head = head
        self._rows = rows
        self._session = session
        self._incremental = incremental
        self._partitions: list[Partition | None] = [None] * len(rows)
        self._results: list[Fetched] = []
        self._bytes = 0
        self._failed = False
        # A follower of ours: it reads up to the end of the log, and tells how far it is.
        self._follower = head.replica_id if head.replica_id >= 0 and broker.member else None
        self._ends = [-1] * len(rows) if self._follower is not None else []
        # Where the consumer is, if it may be sent to a replica that is near (KIP-392).
        self._rack = ""
        if head.rack and self._follower is None and broker.member is not None:
            self._rack = head.rack if broker.settings["replica.selector.class"] == _NEAR else ""
        self._timer: asyncio.TimerHandle | None = None
        self._limit = min(head.max_bytes, broker.settings["fetch.max.bytes"])

    # -- reading ----------------------------------------------------------------

    def read(self) -> None:
        """Read every row, within the limits of the request and of the broker.

        When a parked request is woken, only the rows that have changed are read again: one
        of a thousand partitions has news, as a rule.
        """
        before, self._results = self._results, []
        if self._follower is not None and not self._is_registered(self._follower):
            # As Kafka answers a broker that was restarted since (KIP-903).
            self._failed = True
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._results = [Fetched(row.partition, code) for row in self._rows]
            return
        left = self._limit
        self._bytes = 0
        for i, row in enumerate(self._rows):
            result = before[i] if before else None
            if result is None or self._has_changed(i, result):
                result = self._read_row(i, row, left)
            self._results.append(result)
            if result.records is not None:
                size = len(result.records)
                self._bytes += size
                left -= size
            if result.error or result.tags != b"\0":
                self._failed = True

    def _is_registered(self, follower: int) -> bool:
        member = self._broker.member
        return member is not None and member.is_registered(follower, self._head.replica_epoch)

    def _has_changed(self, i: int, result: Fetched) -> bool:
        partition = self._partitions[i]
        if self._ends and partition is not None:
            if partition.log.log_start_offset > result.log_start_offset >= 0:
                self._failed = True  # at once: a DeleteRecords waits for the followers
            if partition.log.end_offset != self._ends[i]:
                return True
        return (
            partition is None
            or partition.deleted
            or (not partition.leads and partition.leader_epoch != self._rows[i].leader_epoch)
            or partition.log.high_watermark != result.high_watermark
            or partition.log.log_start_offset != result.log_start_offset
        )

    def _read_row(self, i: int, row: FetchRow, left: int) -> Fetched:
        topic, index, epoch, offset, last_epoch, max_bytes, log_start = row
        partition = self._partitions[i]
        if partition is None or partition.deleted:
            if partition is not None:
                # Deleted while we waited, and maybe there is a topic of that name again, which
                # nobody watches: answer now.
                self._failed = True
            try:
                partition = self._broker.replicas.find(topic, index, self._broker.metadata)
            except ApiError as error:
                return Fetched(index, error.code)
            self._partitions[i] = partition
        log = partition.log
        committed = self._head.isolation_level == _READ_COMMITTED
        aborted: list[tuple[int, int]] | None = [] if committed else None
        try:
            if self._follower is None and self._version >= _FIRST_FROM_FOLLOWERS:
                partition.check_epoch(epoch)  # any replica serves consumers (KIP-392)
            else:
                partition.check_leader(epoch)
            if last_epoch >= 0 and (tags := self._diverging(partition, offset, last_epoch)):
                high = log.high_watermark
                stable, start = log.last_stable_offset, log.log_start_offset
                return Fetched(index, 0, high, stable, start, None, aborted, tags=tags)
            if self._rack and partition.leads and (near := self._nearest(partition, offset)) >= 0:
                high, stable = log.high_watermark, log.last_stable_offset
                start = log.log_start_offset
                self._failed = True  # at once: there is a better place to ask
                return Fetched(index, 0, high, stable, start, None, aborted, near)
            # The first record of an answer goes out whatever its size (KIP-74).
            records = None
            if self._follower is not None:
                self._ends[i] = log.end_offset
                now_ms = self._broker.clock.now_ms()
                partition.follower_fetched(
                    self._follower, offset, now_ms, log_start, self._head.replica_epoch
                )
            if self._follower is not None and self._must_wait(partition):
                pass  # an empty answer: the next fetch may have more
            elif left > 0 or self._bytes == 0:
                most, whole = min(max_bytes, left), self._bytes == 0
                if self._follower is not None:
                    records = partition.read_as_follower(offset, most, at_least_one=whole)
                elif committed:
                    records, aborted = partition.read_committed(offset, most, at_least_one=whole)
                else:
                    records = partition.read(offset, most, at_least_one=whole)
        except ApiError as error:
            code = error.code
            if code == ErrorCode.OFFSET_OUT_OF_RANGE and not partition.leads:
                # Only the leader can say so.  Who names no epoch may be here by mistake
                # (KAFKA-14255), and looks for the leader; who does was sent here (KIP-392).
                behind = epoch >= 0 and offset > log.end_offset
                code = (
                    ErrorCode.OFFSET_NOT_AVAILABLE if behind else ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
            return Fetched(index, code, -1, -1, log.log_start_offset)
        except OSError as error:
            self._broker.replicas.storage_failed(log.directory, error)
            return Fetched(index, ErrorCode.KAFKA_STORAGE_ERROR)
        return Fetched(
            index,
            0,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            records,
            aborted,
        )

    def _must_wait(self, partition: Partition) -> bool:
        """Is a replica copied that is not in sync, and too much was sent already?"""
        assert self._follower is not None
        held_up = partition.holds_up(self._follower)
        return held_up and self._broker.leader_throttle.wait_seconds > 0

    def _nearest(self, partition: Partition, offset: int) -> int:
        """A follower in the consumer's rack that has what it asks for; -1: stay here."""
        brokers = self._broker.metadata.brokers
        me = brokers.get(self._broker.broker_id)
        state = partition.in_sync_state
        if state is None or (me is not None and me.rack == self._rack):
            return -1
        near = {
            broker
            for broker in state.isr
            if (info := brokers.get(broker)) is not None and info.rack == self._rack
        }
        return state.furthest(near, offset)

    def _diverging(self, partition: Partition, offset: int, last_epoch: int) -> bytes:
        """Did the reader's log part from ours (KIP-595)?  Then the tag that tells it."""
        found = partition.diverging(offset, last_epoch)
        return _DIVERGING.pack(1, 0, 13, *found, 0) if found else b""

    def ready(self) -> bool:
        # More than the limits allow will never come.
        return self._failed or self._bytes >= min(self._head.min_bytes, self._limit)

    # -- waiting ----------------------------------------------------------------

    def wait(self) -> None:
        """Park: be woken by any of the partitions, or by the clock."""
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._timer = self._loop.call_later(self._head.max_wait_ms / 1000, self._finish)
        self._watches = {partition for partition in self._partitions if partition is not None}
        for partition in self._watches:
            partition.watch(self._wake, follower=self._follower is not None)

    def _wake(self) -> None:
        # Not now: the producer that woke us is answered first, and its neighbours count too.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._try)

    def _try(self) -> None:
        self._scheduled = False
        if self.chunks is not None or self.connection.closed:
            return
        self.read()
        if self.ready():
            self._finish()

    def _finish(self) -> None:
        self._stop_waiting()
        self.complete(self.encode())  # type: ignore[arg-type]

    def cancel(self) -> None:
        self._stop_waiting()
        if self._session is not None and not self._incremental and self.chunks is None:
            # Nobody has heard of this session.  A follower hangs up whenever it gets other
            # partitions to follow: such sessions would fill the cache.
            self._broker.fetch_sessions.close(self._session.session_id)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            for partition in self._watches:
                partition.unwatch(self._wake)

    # -- answering --------------------------------------------------------------

    def encode(self) -> object:
        """The response as chunks; in a session only what is news."""
        topics: list[tuple[TopicRef, list[Fetched]]] = []
        session = self._session
        for i, (row, result) in enumerate(zip(self._rows, self._results, strict=True)):
            if self._follower is not None and result.records is not None:
                partition = self._partitions[i]
                if partition is not None and partition.throttled_leader:
                    self._broker.leader_throttle.took(len(result.records))
            if session is not None:
                if self._incremental and not session.has_news(row.topic, result):
                    continue
                session.tell(row.topic, result)
            if topics and topics[-1][0] == row.topic:
                topics[-1][1].append(result)
            else:
                topics.append((row.topic, [result]))
        session_id = session.session_id if session is not None else 0
        return encode_fetch_response(self._version, self._correlation_id, 0, session_id, topics)
