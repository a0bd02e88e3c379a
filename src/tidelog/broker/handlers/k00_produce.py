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

A batch that takes long to open (``partition/validation.py``) is opened by another process, and the
connection's next requests wait for it: what a client sends is appended in the order it was sent.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.connection import Pending
from tidelog.broker.registry import raw_api
from tidelog.broker.request import Request
from tidelog.broker.tracing import printable
from tidelog.errors import ApiError, ErrorCode
from tidelog.partition.offload import Job, Work
from tidelog.partition.partition import Partition
from tidelog.partition.validation import (
    Budget,
    InvalidRecords,
    OpenElsewhere,
    Rewritten,
    Rules,
    rewrite_elsewhere,
)
from tidelog.wire.batch import stamp_append_time
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

log = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # half the time of Produced(...)
_ALL = -1
_WITH_ANSWER = (1, _ALL)
_FIRST_MAGIC_2 = 3

Answers = list[tuple[TopicRef, list[Produced]]]


@raw_api(ProduceRequest, versions=(3, 13), announce_from=0, large=True)
def produce(broker: Broker, request: Request) -> None:
    """Append record batches."""
    connection, data, start, version = (
        request.connection,
        request.data,
        request.start,
        request.version,
    )
    waiting: list[_Waiting] = []
    one = decode_one_produce(data, start, version)
    if one is not None and one[0] in _WITH_ANSWER:
        acks, timeout_ms, topic, index, records = one
        now_ms = broker.clock.now_ms()
        try:
            result = _append(broker, topic, index, records, acks, version, now_ms, waiting)
            if waiting:
                _wait_for_acks(broker, request, acks, timeout_ms, [(topic, [result])], waiting)
            else:
                connection.reply_small(encode_one_produced(request.correlation_id, topic, result))
            return
        except OpenElsewhere:
            pass  # the same again, the long way
    transactional_id, acks, timeout_ms, rows = decode_produce(data, start, version)
    refusal = None
    if version < _FIRST_MAGIC_2:
        _warn_of_old_producer(broker, request, acks)
        refusal = ErrorCode.UNSUPPORTED_VERSION
    elif acks not in (0, 1, _ALL):
        refusal = ErrorCode.INVALID_REQUIRED_ACKS
    elif transactional_id is not None:
        refusal = ErrorCode.INVALID_TXN_STATE
    if refusal is not None:
        _answer(request, acks, _refuse(rows, refusal))
        return
    work = _append_all(broker, rows, acks, version, waiting)
    try:
        job = next(work)
    except StopIteration as done:
        if waiting:
            _wait_for_acks(broker, request, acks, timeout_ms, done.value, waiting)
        else:
            _answer(request, acks, done.value)
        return
    for _, partitions in rows:  # out of the connection's buffer
        partitions[:] = [
            (index, records and memoryview(bytearray(records))) for index, records in partitions
        ]
    pending = _LaterAnswer(broker, request, acks, timeout_ms)
    pending.task = broker.spawn(pending.open_elsewhere(work, job, waiting))
    connection.park(pending)


def _append_all(
    broker: Broker, rows: ProduceRows, acks: int, version: int, waiting: list[_Waiting]
) -> Work[Answers]:
    """Append to one partition after the other; yields what is too much for the event loop."""
    now_ms = broker.clock.now_ms()
    budget = Budget()
    answers: Answers = []
    for topic, partitions in rows:
        results: list[Produced] = []
        answers.append((topic, results))
        for at in range(len(partitions)):
            todo = None
            try:
                result = _append(
                    broker, topic, *partitions[at], acks, version, now_ms, waiting, budget
                )
            except OpenElsewhere as much:
                todo = much.rules, much.limit
            if todo is not None:  # after the except: its traceback refers to the records
                result = yield from _append_opened(
                    broker, topic, partitions, at, acks, version, now_ms, waiting, budget, todo
                )
                now_ms = broker.clock.now_ms()
            results.append(result)
    return answers


def _append_opened(
    broker: Broker,
    topic: TopicRef,
    partitions: list[tuple[int, memoryview | None]],
    at: int,
    acks: int,
    version: int,
    now_ms: int,
    waiting: list[_Waiting],
    budget: Budget,
    todo: tuple[Rules, int],
) -> Work[Produced]:
    """Append what another process has opened.

    By then the partition may be deleted, or another broker leads it: all is checked again.  If its
    settings have changed, the batch is opened again.

    Until the first result is here, the caller of the generator takes the records of all partitions
    out of the connection's buffer: no variable may refer to them meanwhile.
    """
    while True:
        index, records = partitions[at]
        assert records is not None
        rules, limit = todo
        job = Job(rewrite_elsewhere, (bytes(records), rules, now_ms, limit))
        del records
        try:
            rewritten: Rewritten = yield job
        except ApiError as error:
            return _refused(index, error)
        budget.decompressed += rewritten.decompressed
        index, records = partitions[at]
        now_ms = broker.clock.now_ms()
        if rewritten.append_time >= 0:
            stamp_append_time(rewritten.batch, now_ms)
            rewritten = rewritten._replace(append_time=now_ms)
        try:
            return _append(
                broker, topic, index, records, acks, version, now_ms, waiting, budget, rewritten
            )
        except OpenElsewhere as again:
            todo = again.rules, again.limit


def _append(
    broker: Broker,
    topic: TopicRef,
    index: int,
    records: memoryview | None,
    acks: int,
    version: int,
    now_ms: int,
    waiting: list[_Waiting],
    budget: Budget | None = None,
    rewritten: Rewritten | None = None,
) -> Produced:
    """Append to one partition; what must be waited for is added to ``waiting``."""
    try:
        partition = broker.replicas.find(topic, index, broker.metadata)
        if records is None:
            raise ApiError(ErrorCode.INVALID_RECORD, "there are no records in the request")
        if (
            acks == _ALL
            and partition.in_sync < partition.min_in_sync
            and partition.leads  # else that is what the producer has to hear
        ):
            partition.gaps.forget()
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        done = partition.append(records, version, now_ms, budget, rewritten)
    except ApiError as error:
        return _refused(index, error)
    if acks == _ALL and done.last_offset >= partition.log.high_watermark:
        waiting.append(_Waiting(topic, index, partition, done.last_offset, partition.leader_epoch))
    base_offset, _, append_time = done
    log_start = partition.log.log_start_offset
    return _new_tuple(Produced, (index, 0, base_offset, append_time, log_start, None, ()))


def _refused(index: int, error: ApiError) -> Produced:
    errors = error.errors if isinstance(error, InvalidRecords) else ()
    return Produced(index, error.code, message=error.message, record_errors=errors)


def _warn_of_old_producer(broker: Broker, request: Request, acks: int) -> None:
    """With acks=0 it never hears that its records are lost, so the operator does."""
    name, peer = printable(request.client_id), request.connection.peer
    lost = "are lost, and with acks=0 it does not notice" if acks == 0 else "are refused"
    broker.server.complain(
        "old producer",
        f"{peer}: records of client {name} {lost}: it sent Produce v{request.version}, in a "
        "message format from before Kafka 0.11; upgrade the client, or have it speak the protocol "
        "of Kafka 0.11 or newer (api_version, Version, broker.version.fallback)",
    )


def _refuse(rows: ProduceRows, code: ErrorCode) -> Answers:
    return [(topic, [Produced(index, code) for index, _ in parts]) for topic, parts in rows]


def _answer(request: Request, acks: int, answers: Answers) -> None:
    if acks != 0:
        answer = encode_produce_response(request.version, request.correlation_id, answers)
        request.connection.reply([answer])
    elif _failed(answers):
        request.connection.hang_up("a Produce with acks=0 failed")


def _wait_for_acks(
    broker: Broker,
    request: Request,
    acks: int,
    timeout_ms: int,
    answers: Answers,
    waiting: list[_Waiting],
) -> None:
    pending = _LaterAnswer(broker, request, acks, timeout_ms)
    pending.wait_for_acks(answers, waiting)
    request.connection.park(pending)


def _failed(answers: Answers) -> bool:
    return any(result.error for _, results in answers for result in results)


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
        if partition.in_sync < partition.min_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return 0


class _LaterAnswer(Pending):
    """A request whose batches are being opened, and after that stage two: wait until every
    partition has passed its offset, or time is up."""

    __slots__ = (
        "_acks",
        "_answers",
        "_broker",
        "_correlation_id",
        "_scheduled",
        "_size",
        "_timeout_ms",
        "_timer",
        "_version",
        "_waiting",
        "task",
    )

    soon = True

    def __init__(self, broker: Broker, request: Request, acks: int, timeout_ms: int) -> None:
        super().__init__(request.connection, blocking=True)
        self._broker = broker
        # Not the frame itself: it would keep the connection's buffer alive.
        self._version, self._correlation_id = request.version, request.correlation_id
        self._size = len(request.data)
        self._acks, self._timeout_ms = acks, timeout_ms
        self._answers: Answers = []
        self._waiting: list[_Waiting] = []
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None  # of what is opened elsewhere

    async def open_elsewhere(self, work: Work[Answers], job: Job, waiting: list[_Waiting]) -> None:
        """Append the batches that take long to open, one after the other."""
        try:
            answers = await self._broker.offload.finish(work, job)
        except Exception:
            log.exception("%s: a Produce failed", self.connection.peer)
            self.connection.close("internal error")
            return
        if self._acks == 0:
            if _failed(answers):
                self.connection.hang_up("a Produce with acks=0 failed")
            self.complete([])
        elif waiting and not self.connection.closed:
            self.task = None
            self.wait_for_acks(answers, waiting)
            self._wake()  # while others were opened, the replicas may have come by the first
            self.connection.pending_done()  # the next requests need not wait for the replicas
        else:
            self._encode(answers)

    def wait_for_acks(self, answers: Answers, waiting: list[_Waiting]) -> None:
        """The batches are written; now the replicas need them too."""
        self.blocking = False
        self._answers, self._waiting = answers, waiting
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0, self._timeout_ms) / 1000, self._finish)
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
        self._encode(answers)

    def _encode(self, answers: Answers) -> None:
        self.complete([encode_produce_response(self._version, self._correlation_id, answers)])

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for row in self._waiting:
            row.partition.unwatch(self._wake)
        # What a client has sent with acks=0 it takes for written, also when it is gone.
        task, offload = self.task, self._broker.offload
        if task is not None and not (self._acks == 0 and offload.keep(task, self._size)):
            task.cancel()
