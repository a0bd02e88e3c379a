"""Produce: append batches to partitions.

Versions
    0-2   message sets from before Kafka 0.11: answered UNSUPPORTED_VERSION.  They are
          announced all the same, as Kafka 4 does: librdkafka before 2.11 takes their
          absence as "no compression" (KAFKA-18659).
    3     record batches (magic 2), transactional id
    7     zstd
    8     error messages
    9     flexible
    13    topic ids instead of names

With acks=0 there is no answer; an error then closes the connection, as in Kafka.
With acks=all the answer waits until the high watermark has passed (stage two), while
the connection goes on with the next request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.connection import Pending
from tidelog.broker.dispatch import Frame, raw_api
from tidelog.broker.partition import Partition
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.hot import (
    Produced,
    ProduceRows,
    TopicRef,
    decode_one_produce,
    decode_produce,
    encode_one_produced,
    encode_produce_response,
)
from tidelog.wire.messages.produce import ProduceRequest

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_new_tuple = tuple.__new__  # half the time of Produced(...)
_ALL = -1
_FIRST_MAGIC_2 = 3

Answers = list[tuple[TopicRef, list[Produced]]]


@raw_api(ProduceRequest, versions=(3, 13), announce_from=0, large=True)
def produce(broker: Broker, frame: Frame) -> None:
    """Append record batches."""
    connection, data, start, version, correlation_id = frame
    one = decode_one_produce(data, start, version)
    if one is not None and one[0] == 1:
        _, _, topic, index, records = one
        result = _append(broker, topic, index, records, 1, version, broker.clock.now_ms(), [])
        connection.reply_small(encode_one_produced(correlation_id, topic, result))
        return
    transactional_id, acks, timeout_ms, rows = decode_produce(data, start, version)
    refusal = None
    if version < _FIRST_MAGIC_2:
        refusal = ErrorCode.UNSUPPORTED_VERSION
    elif acks not in (0, 1, _ALL):
        refusal = ErrorCode.INVALID_REQUIRED_ACKS
    elif transactional_id is not None:
        refusal = ErrorCode.INVALID_TXN_STATE
    if refusal is not None:
        _answer(frame, acks, _refuse(rows, refusal))
        return
    now_ms = broker.clock.now_ms()
    answers: Answers = []
    waiting: list[_Waiting] = []
    for topic, partitions in rows:
        results = [
            _append(broker, topic, index, records, acks, version, now_ms, waiting)
            for index, records in partitions
        ]
        answers.append((topic, results))
    if waiting:
        connection.park(_WaitForAcks(frame, answers, waiting, timeout_ms))
    else:
        _answer(frame, acks, answers)


def _append(
    broker: Broker,
    topic: TopicRef,
    index: int,
    records: memoryview | None,
    acks: int,
    version: int,
    now_ms: int,
    waiting: list[_Waiting],
) -> Produced:
    """Append to one partition; what must be waited for is added to ``waiting``."""
    try:
        partition = broker.replicas.find(topic, index, broker.metadata)
        if records is None:
            raise ApiError(ErrorCode.INVALID_RECORD, "there are no records in the request")
        if (
            acks == _ALL
            and partition.in_sync < partition.log.config.min_insync_replicas
            and partition.leads  # else that is what the producer has to hear
        ):
            partition.gaps.forget()
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        done = partition.append(records, version, now_ms)
    except ApiError as error:
        return Produced(index, error.code, message=error.message)
    if acks == _ALL and done.last_offset >= partition.log.high_watermark:
        waiting.append(_Waiting(topic, index, partition, done.last_offset, partition.leader_epoch))
    base_offset, _, append_time = done
    log_start = partition.log.log_start_offset
    return _new_tuple(Produced, (index, 0, base_offset, append_time, log_start, None))


def _refuse(rows: ProduceRows, code: ErrorCode) -> Answers:
    return [(topic, [Produced(index, code) for index, _ in parts]) for topic, parts in rows]


def _answer(frame: Frame, acks: int, answers: Answers) -> None:
    if acks != 0:
        answer = encode_produce_response(frame.version, frame.correlation_id, answers)
        frame.connection.reply([answer])
    elif any(result.error for _, results in answers for result in results):
        frame.connection.hang_up("a Produce with acks=0 failed")


class _Waiting(NamedTuple):
    """A batch that is written but not acknowledged yet."""

    topic: TopicRef
    number: int
    partition: Partition
    offset: int
    leader_epoch: int

    def error(self) -> int:
        """What to answer if it were now."""
        if self.partition.deleted:
            by_id = isinstance(self.topic, bytes)
            return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self.partition
        if not partition.leads or partition.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.high_watermark <= self.offset:
            return ErrorCode.REQUEST_TIMED_OUT
        if partition.in_sync < partition.log.config.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return 0


class _WaitForAcks(Pending):
    """Stage two: wait until every partition has passed its offset, or time is up."""

    __slots__ = ("_answers", "_correlation_id", "_scheduled", "_timer", "_version", "_waiting")

    def __init__(
        self, frame: Frame, answers: Answers, waiting: list[_Waiting], timeout_ms: int
    ) -> None:
        super().__init__(frame.connection, blocking=False)
        # Not the frame itself: it would keep the connection's buffer alive.
        self._version, self._correlation_id = frame.version, frame.correlation_id
        self._answers = answers
        self._waiting = waiting
        self._scheduled = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0, timeout_ms) / 1000, self._finish)
        for row in waiting:
            row.partition.watch(self._wake)

    def _wake(self) -> None:
        # Not at once: we are in the middle of somebody else's append.
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._scheduled = False
        done = all(row.error() != ErrorCode.REQUEST_TIMED_OUT for row in self._waiting)
        if done and self.chunks is None and not self.connection.closed:
            self._finish()

    def _finish(self) -> None:
        """Answer as things are: what has not passed by now has timed out."""
        self.cancel()
        errors = {(row.topic, row.number): row.error() for row in self._waiting}
        answers = [
            (
                topic,
                [
                    Produced(result.partition, error)
                    if (error := errors.get((topic, result.partition), 0))
                    else result
                    for result in results
                ],
            )
            for topic, results in self._answers
        ]
        self.complete([encode_produce_response(self._version, self._correlation_id, answers)])

    def cancel(self) -> None:
        self._timer.cancel()
        for row in self._waiting:
            row.partition.unwatch(self._wake)
