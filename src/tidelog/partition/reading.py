"""Read what consumers and followers fetch: many partitions, within the limits of a request.

A fetch is answered at once if it has ``min_bytes``, an error, a better replica to name, or no
time to wait.  Otherwise each append wakes it, and at the latest its timer does.

A fetch that names a replica moves the high watermark.  It counts only with the broker epoch of
that broker's live registration (KIP-903, version 15): with -1, in older versions or after a new
registration it is NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.clock import Clock
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata
from tidelog.partition.fetch_sessions import FetchSession, FetchSessions
from tidelog.partition.leader import Leader
from tidelog.partition.partition import Partition
from tidelog.partition.purgatory import DelayedOperation
from tidelog.partition.replicas import Replicas
from tidelog.partition.throttle import Throttle
from tidelog.settings import Settings
from tidelog.wire.hot import Fetched, FetchHead, FetchRow, TopicRef, diverging_tag

_NEAR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_SEVERAL_SEGMENTS = -1
_READ_COMMITTED = 1


class PartitionReader:
    """Reads the partitions of this broker."""

    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        sessions: FetchSessions,
        throttle: Throttle,
        settings_of: Callable[[], Settings],
        metadata_of: Callable[[], ClusterMetadata],
    ) -> None:
        self.replicas = replicas
        self.clock = clock
        self.sessions = sessions
        self.throttle = throttle
        self.settings_of = settings_of
        self.metadata_of = metadata_of
        # Whether a follower is registered with a broker epoch; in a cluster only.
        self.is_registered: Callable[[int, int], bool] | None = None

    def fetch(self, request: FetchHead, *, by_id: bool, leader_only: bool) -> Fetch:
        """Begin a fetch, in its session if it has one.  Raises what is wrong with the session.

        ``by_id``: topics are named by id.  ``leader_only``: followers do not serve it.
        """
        session, incremental = self.sessions.resolve(request, by_id)
        wanted = list(session.partitions.values()) if session and incremental else request.rows
        return Fetch(self, request, wanted, session, incremental, leader_only)

    def nearest(self, leader: Leader, rack: str, offset: int) -> int:
        """A follower in the consumer's rack that has what it asks for (KIP-392); -1: none."""
        brokers = self.metadata_of().brokers
        own = brokers.get(self.replicas.broker_id)
        state = leader.in_sync_set
        if state is None or (own is not None and own.rack == rack):
            return -1
        near = {
            broker
            for broker in state.isr
            if (info := brokers.get(broker)) is not None and info.rack == rack
        }
        return state.furthest(near, offset)


class Fetch:
    """One request, from its first read to its answer."""

    __slots__ = (
        "_bytes",
        "_committed_only",
        "_ends",
        "_failed",
        "_follower",
        "_incremental",
        "_leader_only",
        "_limit",
        "_operation",
        "_partitions",
        "_rack",
        "_reader",
        "_request",
        "_results",
        "_session",
        "_sizes",
        "_wanted",
    )

    def __init__(
        self,
        reader: PartitionReader,
        request: FetchHead,
        wanted: list[FetchRow],
        session: FetchSession | None,
        incremental: bool,
        leader_only: bool,
    ) -> None:
        self._reader = reader
        self._request = request
        self._wanted = wanted
        self._session = session
        self._incremental = incremental
        self._leader_only = leader_only
        self._partitions: list[Partition | None] = [None] * len(wanted)
        self._results: list[Fetched] = []
        self._sizes: list[int | None] = [None] * len(wanted)  # see _available
        self._bytes = 0
        self._failed = False  # there is something to answer at once
        self._committed_only = request.isolation_level == _READ_COMMITTED
        self._operation: DelayedOperation | None = None
        settings, in_cluster = reader.settings_of(), reader.is_registered is not None
        # A follower of ours: it reads up to the log end, and its fetch says what it has.
        self._follower = request.replica_id if request.replica_id >= 0 and in_cluster else None
        self._ends = [-1] * len(wanted) if self._follower is not None else []
        # Where the consumer is, if it may be sent to a replica that is near (KIP-392).
        self._rack = ""
        if request.rack and self._follower is None and in_cluster:
            self._rack = request.rack if settings["replica.selector.class"] == _NEAR else ""
        self._limit = min(request.max_bytes, settings["fetch.max.bytes"])

    # -- reading ----------------------------------------------------------------

    def read(self) -> bool:
        """Read all partitions; is that enough for an answer?

        When a fetch that waits is woken, only partitions that have changed are read again: one
        of a thousand has, as a rule.
        """
        before, self._results = self._results, []
        request, reader = self._request, self._reader
        if self._follower is not None and not (
            reader.is_registered is not None
            and reader.is_registered(self._follower, request.replica_epoch)
        ):
            # As Kafka answers a broker that was restarted since (KIP-903).
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._results = [Fetched(wanted.partition, code) for wanted in self._wanted]
            return True
        left = self._limit
        self._bytes = 0
        for i, wanted in enumerate(self._wanted):
            result = before[i] if before else None
            if result is None or self._has_changed(i, result):
                result = self._read(i, wanted, left)
                self._sizes[i] = None
            self._results.append(result)
            if result.records is not None:
                size = len(result.records)
                self._bytes += size
                left -= size
            if result.error or result.tags != b"\0":
                self._failed = True
        least = min(request.min_bytes, self._limit)  # more than the limit will never come
        return (
            self._failed
            or self._bytes >= least
            or (self._bytes > 0 and self._available(least) >= least)
            or request.max_wait_ms <= 0
            or not self._wanted
        )

    def _available(self, least: int) -> int:
        """How many bytes there are, whether or not they fit into this answer.

        As in Kafka (DelayedFetch): what the limit of the whole answer cuts off counts too, and a
        partition with more than one segment to read is reason enough to answer.
        """
        total = 0
        for i, partition in enumerate(self._partitions):
            if partition is None or (self._follower is not None and self._is_throttled(partition)):
                continue
            size = self._sizes[i]
            if size is None:
                size = self._sizes[i] = self._size(partition, self._wanted[i])
            if size == _SEVERAL_SEGMENTS:
                return least
            total += size
        return total

    def _size(self, partition: Partition, wanted: FetchRow) -> int:
        """How many bytes of a partition could be read."""
        log = partition.log
        if self._follower is not None:
            end = log.end_offset
        else:
            end = log.last_stable_offset if self._committed_only else log.high_watermark
        size = log.available(wanted.offset, end, wanted.max_bytes)
        return _SEVERAL_SEGMENTS if size is None else size

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
            or (not partition.leads and partition.leader_epoch != self._wanted[i].leader_epoch)
            or partition.log.high_watermark != result.high_watermark
            or partition.log.log_start_offset != result.log_start_offset
        )

    def _read(self, i: int, wanted: FetchRow, left: int) -> Fetched:
        topic, index, epoch, offset, last_epoch, max_bytes, log_start = wanted
        partition = self._partitions[i]
        if partition is None or partition.deleted:
            if partition is not None:
                # Deleted while we waited, and maybe there is a topic of that name again, which
                # this fetch does not watch: answer now.
                self._failed = True
            try:
                partition = self._reader.replicas.find(topic, index)
            except ApiError as error:
                return Fetched(index, error.code)
            self._partitions[i] = partition
        log = partition.log
        follower = self._follower
        aborted: list[tuple[int, int]] | None = [] if self._committed_only else None
        try:
            if follower is None and not self._leader_only:
                partition.check_epoch(epoch)  # any replica serves consumers (KIP-392)
            else:
                partition.check_leader(epoch)
            if last_epoch >= 0 and (parts := partition.diverging(offset, last_epoch)):
                high, stable = log.high_watermark, log.last_stable_offset
                start, tag = log.log_start_offset, diverging_tag(*parts)
                return Fetched(index, 0, high, stable, start, None, aborted, tags=tag)
            if self._rack and partition.leader is not None:
                near = self._reader.nearest(partition.leader, self._rack, offset)
                if near >= 0:
                    self._failed = True  # at once: there is a better replica to ask
                    high, stable = log.high_watermark, log.last_stable_offset
                    return Fetched(
                        index, 0, high, stable, log.log_start_offset, None, aborted, near
                    )
            if follower is not None:
                self._ends[i] = log.end_offset
                partition.require_leader().follower_fetched(
                    follower,
                    offset,
                    self._reader.clock.now_ms(),
                    log_start,
                    self._request.replica_epoch,
                )
            records = None
            if follower is not None and self._is_throttled(partition):
                pass  # an empty answer: the next fetch may have more
            elif left > 0 or self._bytes == 0:
                # The first batch of an answer is sent whatever its size (KIP-74).
                most, whole = min(max_bytes, left), self._bytes == 0
                if follower is not None:
                    records = partition.read_as_follower(offset, most, at_least_one=whole)
                elif self._committed_only:
                    records, aborted = partition.read_committed(offset, most, at_least_one=whole)
                else:
                    records = partition.read(offset, most, at_least_one=whole)
        except ApiError as error:
            code = error.code
            if code == ErrorCode.OFFSET_OUT_OF_RANGE and not partition.leads:
                # Only the leader can say so.  A consumer that names no epoch may be here by
                # mistake (KAFKA-14255), and looks for the leader; one that does was sent here
                # (KIP-392).
                behind = epoch >= 0 and offset > log.end_offset
                code = (
                    ErrorCode.OFFSET_NOT_AVAILABLE if behind else ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
            return Fetched(index, code, -1, -1, log.log_start_offset)
        except OSError as error:
            self._reader.replicas.storage_failed(log.directory, error)
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

    def _is_throttled(self, partition: Partition) -> bool:
        """Is a replica copied that is not in sync, and too much was sent already?"""
        assert self._follower is not None
        leader = partition.leader
        return (
            leader is not None
            and leader.holds_up(self._follower)
            and self._reader.throttle.wait_seconds > 0
        )

    # -- waiting ----------------------------------------------------------------

    def wait(self, complete: Callable[[], None]) -> None:
        """Wait until there is enough for an answer, or time is up."""
        self._operation = DelayedOperation(self.read, complete)
        watched = {partition: None for partition in self._partitions if partition is not None}
        self._operation.watch(
            watched, self._request.max_wait_ms, log_end=self._follower is not None
        )

    def cancel(self) -> None:
        """The client is gone before its answer was sent."""
        if self._operation is not None:
            self._operation.cancel()
        if self._session is not None and not self._incremental:
            # The client does not know of this session.  A follower hangs up whenever it gets
            # other partitions to follow: such sessions would fill the cache.
            self._reader.sessions.close(self._session.session_id)

    # -- answering --------------------------------------------------------------

    def answer(self) -> tuple[int, list[tuple[TopicRef, list[Fetched]]]]:
        """The id of the session, and what to send: in a session only what is news."""
        topics: list[tuple[TopicRef, list[Fetched]]] = []
        session = self._session
        for i, (wanted, result) in enumerate(zip(self._wanted, self._results, strict=True)):
            if self._follower is not None and result.records is not None:
                partition = self._partitions[i]
                if partition is not None and partition.throttled_leader:
                    self._reader.throttle.took(len(result.records))
            if session is not None:
                if self._incremental and not session.has_news(wanted.topic, result):
                    continue
                session.note_sent(wanted.topic, result)
            if topics and topics[-1][0] == wanted.topic:
                topics[-1][1].append(result)
            else:
                topics.append((wanted.topic, [result]))
        return session.session_id if session is not None else 0, topics
