"""One range of offsets, from whichever broker leads, as Arrow batches.

    for batch in read_range(client, part, columns): ...

A task has a connection of its own.  The next fetch is under way while the last one is decoded
and handed out.  A broker that dies and a leader that moves are followed from the same offset
until patience runs out; a range never yields a record twice, and ends at its end even where
the last offsets are holes (compaction, transaction markers).

What only the user can decide is an error that names the offsets, or goes to a callback and is
skipped: ``DataLoss`` (retention overtook the reader, the log was cut, or the topic was deleted
and made again: its id tells) and ``CorruptBatch`` (fetched twice, damaged both times).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from tidelog.client.cluster import LEADER_MOVED, NO_LEADER, TOPIC_GONE, Cluster, error_of
from tidelog.client.connection import BrokerConnection, BrokerUnreachable
from tidelog.client.partitions import EARLIEST_LOCAL, LATEST, extents, list_offsets
from tidelog.clock import Clock, SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.pipeline.decode import TARGET_BYTES, Answer, Decoder
from tidelog.pipeline.loss import CorruptBatch, DataLoss
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import ALL, Columns, OffsetRange
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.wire.schema import ZERO_UUID

POLL_TIMEOUT = 120.0  # kafkaConsumer.pollTimeoutMs: how long nothing may come

_LAST_WITH_NAMES = 12  # from Fetch 13 on, topics go by their ids
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_LARGEST_FETCH = 1 << 30
_READ_COMMITTED = 1
# A broker that has just started may not know its topics yet; a deleted one stays unknown.
_GONE_SECONDS = 10.0
_EMPTY_ANSWERS = 2  # so many in a row: only holes are left
_REMOTE_WAIT_MS = 5_000  # for a broker that must get old records from its remote storage

# Trying again may help; the leader may be another one by then.
_PASSING = LEADER_MOVED | {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CORRUPT_MESSAGE,  # the broker's own check of what it read
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}


def read_range(
    client: ClientOptions,
    part: OffsetRange,
    columns: Columns = ALL,
    *,
    on_loss: Callable[[DataLoss], None] | None = None,
    on_corrupt: Callable[[CorruptBatch], None] | None = None,
    patience: float = POLL_TIMEOUT,
    target_bytes: int = TARGET_BYTES,
    clock: Clock | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records that exist in ``part``, in order, as batches of about ``target_bytes``.

    Without ``on_loss`` and ``on_corrupt`` what cannot be read is raised; with them they are
    called, and reading goes on at the nearest offset that is there.  ``patience``: so many
    seconds may pass without anything new before it is an error.
    """
    reader = _Reader(client, part, columns, patience, target_bytes, clock or SystemClock())
    reader.on_loss = on_loss
    reader.on_corrupt = on_corrupt
    try:
        yield from reader.batches()
    finally:
        reader.close()


class _Reader:
    """See :func:`read_range`."""

    on_loss: Callable[[DataLoss], None] | None = None
    on_corrupt: Callable[[CorruptBatch], None] | None = None

    def __init__(
        self,
        client: ClientOptions,
        part: OffsetRange,
        columns: Columns,
        patience: float,
        target_bytes: int,
        clock: Clock,
    ) -> None:
        self._client = client
        self._part = part
        self._end = part.end
        self._patience = patience
        self._clock = clock
        self._decoder = Decoder(part, columns, target_bytes=target_bytes)
        self._position = part.start
        self._topic_id = part.topic_id
        self._fetch_bytes = client.partition_max_bytes
        self._max_wait_ms = client.fetch_max_wait_ms
        self._cluster: Cluster = client.cluster()
        self._connection: BrokerConnection | None = None
        self._under_way = False
        self._pause = _FIRST_PAUSE
        # Since when nothing new comes.  The time that the caller takes over a batch is his own.
        self._waiting_since: float | None = None
        self._gone_since: float | None = None
        self._empty = 0
        self._damaged_at = -1  # where a batch was damaged when it was fetched before

    def close(self) -> None:
        self._disconnect()
        self._cluster.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._position < self._end:
            data = self._receive()
            if data is not None:
                yield from self._take(data)
        last = self._decoder.flush()
        if last is not None:
            yield last

    # -- asking -----------------------------------------------------------------

    def _receive(self) -> PartitionData | None:
        """The next answer without an error; None if there is reason to look again."""
        try:
            if self._connection is None:
                self._connection = self._connect()
                if self._connection is None:
                    return None
            if not self._under_way:
                self._send(self._position)
            response = self._connection.receive()
            self._under_way = False
        except BrokerUnreachable as error:
            self._try_again(error)
            return None
        assert isinstance(response, FetchResponse)
        if response.error_code:
            self._fail(response.error_code)
            return None
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code:
                    self._fail(data.error_code)
                    return None
                if response.throttle_time_ms and not data.records:
                    self._wait_for_quota()
                    return None
                return data
        self._try_again(BrokerUnreachable("the broker answered without the partition"))
        return None

    def _connect(self) -> BrokerConnection | None:
        """To the leader, if the topic is still the one that was planned."""
        tp = self._part.tp
        topic = self._cluster.metadata([tp.topic]).topics.get(tp.topic)
        if topic is None or topic.error in TOPIC_GONE:
            self._gone("the topic was deleted")
            return None
        if topic.error and topic.error not in _PASSING:
            raise error_of(topic.error, None, f"topic {tp.topic!r}")
        if topic.topic_id not in (ZERO_UUID, self._topic_id):  # old brokers have none
            if self._topic_id != ZERO_UUID:
                self._lose(self._end, "the topic was deleted and made again since it was planned")
                return None
            self._topic_id = topic.topic_id
        leader = NO_LEADER
        if not topic.error:
            if tp.partition not in [view.index for view in topic.partitions]:
                self._gone(f"the topic has no partition {tp.partition} now")
                return None
            leader = topic.leader_of(tp.partition)
        self._gone_since = None
        if leader == NO_LEADER:
            self._try_again(error_of(ErrorCode.LEADER_NOT_AVAILABLE, None, str(tp)))
            return None
        try:
            connection = self._cluster.open(leader)
        except ApiError as error:
            if error.code not in _PASSING:
                raise
            self._try_again(error)
            return None
        connection.reuse_memory = True  # the decoder copies what it keeps
        return connection

    def _send(self, offset: int) -> None:
        assert self._connection is not None
        tp = self._part.tp
        topic = FetchTopic(
            topic=tp.topic,
            topic_id=self._topic_id,
            partitions=[
                FetchPartition(
                    partition=tp.partition,
                    fetch_offset=offset,
                    partition_max_bytes=self._fetch_bytes,
                )
            ],
        )
        request = FetchRequest(
            max_wait_ms=0 if self._empty else self._max_wait_ms,
            min_bytes=1,
            max_bytes=max(self._client.fetch_max_bytes, self._fetch_bytes),
            isolation_level=_READ_COMMITTED if self._client.read_committed else 0,
            topics=[topic],
        )
        by_name = self._topic_id == ZERO_UUID
        at_most = _LAST_WITH_NAMES if by_name else None
        self._connection.send(request, FetchResponse, at_most=at_most)
        self._under_way = True

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._under_way = False

    # -- answers ----------------------------------------------------------------

    def _take(self, data: PartitionData) -> Iterator[pa.RecordBatch]:
        aborted = [
            (row.producer_id, row.first_offset)
            for row in (data.aborted_transactions or ())
            if self._client.read_committed
        ]
        try:
            answer = self._decoder.scan(data.records or b"", self._position, aborted)
            if answer.next_offset == self._position and not answer.damaged:
                self._take_nothing(data, answer)
                return
            self._fetch_ahead(answer)
            yield from self._decoder.decode(answer)
        except CorruptBatch as error:
            self._disconnect()  # with what is under way: it comes after the damage
            self._corrupt(error)
            return
        self._advance(answer.next_offset)

    def _fetch_ahead(self, answer: Answer) -> None:
        """Have the next answer come while this one is decoded."""
        if answer.damaged or answer.next_offset >= self._end:
            return
        try:
            self._send(answer.next_offset)
        except BrokerUnreachable:
            self._disconnect()  # it is noticed when the answer is needed

    def _advance(self, offset: int) -> None:
        self._position = offset
        self._waiting_since = None
        self._pause = _FIRST_PAUSE
        self._empty = 0

    def _take_nothing(self, data: PartitionData, answer: Answer) -> None:
        """No whole batch came: it is larger than a fetch, or none is there (yet)."""
        if answer.records:
            # Brokers send the first batch whole, whatever its size; should one not, ask for more.
            if self._fetch_bytes >= _LARGEST_FETCH:
                lost = self._part.between(self._position, self._end)
                raise CorruptBatch(lost, f"a batch is larger than {_LARGEST_FETCH} bytes")
            self._fetch_bytes = min(4 * self._fetch_bytes, _LARGEST_FETCH)
            return
        committed = self._client.read_committed
        readable = data.last_stable_offset if committed else data.high_watermark
        if readable >= self._end:
            # The log goes on beyond the range and yet nothing came: only holes are left.
            self._empty += 1
            if self._empty >= _EMPTY_ANSWERS and not self._is_remote():
                self._advance(self._end)
            return
        if self._is_patient():
            return  # the broker held the request back for us: ask again at once
        if committed and data.high_watermark >= self._end:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._part.tp}@{self._position}: a transaction is still open after "
                f"{self._patience:g} seconds",
            )
        self._ask_whether_committed()
        self._lose(self._end, f"the log ends at offset {readable}")

    def _ask_whether_committed(self) -> None:
        """Raises if the leader cannot say where the log ends, which is no loss.

        A new leader that too few replicas follow (min.insync.replicas) may not know how much
        is committed, and keeps back the last records that the old one has acknowledged.
        """
        tp = self._part.tp
        try:
            list_offsets(self._cluster, {tp: LATEST})
        except ApiError as error:
            if error.code != ErrorCode.OFFSET_NOT_AVAILABLE:
                raise
            raise ApiError(
                error.code,
                f"{tp}@{self._position}: the leader keeps back what may not be committed, "
                f"since {self._patience:g} seconds: see that min.insync.replicas of its "
                "replicas are there, then read again",
            ) from error

    def _is_remote(self) -> bool:
        """Whether the records may be in a broker's remote storage.

        Kafka (DelayedRemoteFetch) answers without records and without an error if they do not
        come in time, exactly as if there were none.
        """
        tp = self._part.tp
        try:
            local = list_offsets(self._cluster, {tp: EARLIEST_LOCAL})[tp]
        except ApiError as error:
            if error.code not in _PASSING and not isinstance(error, BrokerUnreachable):
                return False  # it does not know the question, and has no such storage
            self._try_again(error)
            return True
        if local is None or local <= self._position:
            return False
        if not self._is_patient():
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._part.tp}@{self._position}: the records are in the broker's remote "
                f"storage, and none came in {self._patience:g} seconds",
            )
        self._empty = 0
        self._max_wait_ms = max(self._max_wait_ms, _REMOTE_WAIT_MS)
        return True

    # -- what may happen --------------------------------------------------------

    def _fail(self, number: int) -> None:
        """An answer that is an error."""
        error = error_of(number, None, f"{self._part.tp}@{self._position}")
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(error)
        elif error.code in _PASSING or error.code in TOPIC_GONE:
            self._try_again(error)  # the metadata will show it
        else:
            raise error

    def _out_of_range(self, error: ApiError) -> None:
        tp = self._part.tp
        try:
            log = extents(self._cluster, [tp])[tp]
        except ApiError as problem:
            if problem.code not in _PASSING and problem.code not in TOPIC_GONE:
                raise
            self._try_again(problem)
            return
        if self._position < log.start:
            reason = f"deleted before they were read; the log starts at offset {log.start}"
            self._lose(min(log.start, self._end), reason)
        elif self._position > log.end:
            self._lose(self._end, f"the log was cut; it ends at offset {log.end}")
        else:
            self._try_again(error)

    def _gone(self, reason: str) -> None:
        now = self._clock.monotonic()
        if self._gone_since is None:
            self._gone_since = now
        if now - self._gone_since >= min(_GONE_SECONDS, self._patience):
            self._lose(self._end, reason)
            return
        self._wait()

    def _lose(self, end: int, reason: str) -> None:
        """The offsets up to ``end`` are not to be had."""
        error = DataLoss(self._part.between(self._position, end), reason)
        if self.on_loss is None:
            raise error
        self.on_loss(error)
        self._advance(end)

    def _corrupt(self, error: CorruptBatch) -> None:
        """Fetch it again first: it may have been damaged on its way."""
        self._advance(error.offset)
        if self._damaged_at != error.offset:
            self._damaged_at = error.offset
            return
        if self.on_corrupt is None:
            raise error
        self.on_corrupt(error)
        self._advance(error.lost.end)

    def _wait_for_quota(self) -> None:
        """A quota is used up: the answer is empty, and the broker holds back the next."""
        if not self._is_patient():
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self._part.tp}@{self._position}: a quota of the broker let nothing through "
                f"for {self._patience:g} seconds",
            )
        self._wait()

    def _is_patient(self) -> bool:
        now = self._clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since < self._patience

    def _try_again(self, error: ApiError) -> None:
        """Look for the leader again after a pause, unless that has gone on for too long."""
        self._disconnect()
        if not self._is_patient():
            tp = f"{self._part.tp}@{self._position}"
            message = str(error).removeprefix(f"{tp}: ")
            message = f"{tp}: {message}; gave up after {self._patience:g} seconds"
            if isinstance(error, BrokerUnreachable):
                raise BrokerUnreachable(message) from error
            raise ApiError(error.code, message) from error
        self._wait()

    def _wait(self) -> None:
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
