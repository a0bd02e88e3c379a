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

The appends themselves are in ``partition/appending.py``.  While another process opens a batch
the connection's next requests wait: what a client sends is appended in the order it was sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidelog.broker.failures import code_of, failed_answer
from tidelog.broker.registry import raw_api
from tidelog.broker.request import Deferred, Request
from tidelog.broker.tracing import printable
from tidelog.errors import ErrorCode
from tidelog.partition.appending import DelayedProduce, Results, Waiting, failed
from tidelog.partition.leader import ALL_ACKS
from tidelog.partition.offload import Job, Work
from tidelog.partition.validation import OpenElsewhere
from tidelog.wire.hot import (
    Produced,
    ProduceRows,
    decode_one_produce,
    decode_produce,
    encode_one_produced,
    encode_produce_response,
)
from tidelog.wire.messages.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_WITH_ANSWER = (1, ALL_ACKS)
_FIRST_MAGIC_2 = 3


def _failed(
    message: ProduceRequest, version: int, code: ErrorCode, text: str | None
) -> ProduceResponse | None:
    if message.acks == 0:
        return None
    return failed_answer(ProduceResponse, message, version, code, text)


@raw_api(
    ProduceRequest,
    versions=(3, 13),
    needs="WRITE TOPIC",
    announce_from=0,
    failed=_failed,
    large=True,
)
def produce(broker: Broker, request: Request) -> None:
    """Append record batches."""
    data, start, version = request.data, request.start, request.version
    appender = broker.appender
    waiting: Waiting = {}
    one = decode_one_produce(data, start, version)
    if one is not None and one[0] in _WITH_ANSWER:
        acks, timeout_ms, topic, index, records = one
        now_ms = broker.clock.now_ms()
        try:
            result = appender.append(topic, index, records, acks, version, now_ms, waiting)
            if waiting:
                _Deferred(broker, request, acks, timeout_ms).wait([(topic, [result])], waiting)
            else:
                answer = encode_one_produced(request.correlation_id, topic, result)
                request.connection.reply_small(answer)
            return
        except OpenElsewhere:
            pass  # the same again, the long way
    transactional_id, acks, timeout_ms, rows = decode_produce(data, start, version)
    refusal = None
    if version < _FIRST_MAGIC_2:
        _warn_of_old_producer(broker, request, acks)
        refusal = ErrorCode.UNSUPPORTED_VERSION
    elif acks not in (0, 1, ALL_ACKS):
        refusal = ErrorCode.INVALID_REQUIRED_ACKS
    elif transactional_id is not None:
        refusal = ErrorCode.INVALID_TXN_STATE
    if refusal is not None:
        _answer(request, acks, _refuse(rows, refusal))
        return
    work = appender.append_all(rows, acks, version, waiting)
    try:
        job = next(work)
    except StopIteration as done:
        if waiting:
            _Deferred(broker, request, acks, timeout_ms).wait(done.value, waiting)
        else:
            _answer(request, acks, done.value)
        return
    for _, partitions in rows:  # out of the connection's buffer
        partitions[:] = [
            (index, records and memoryview(bytearray(records))) for index, records in partitions
        ]
    _Deferred(broker, request, acks, timeout_ms).append_later(rows, work, job, waiting)


def _warn_of_old_producer(broker: Broker, request: Request, acks: int) -> None:
    """With acks=0 the client does not learn that its records are lost, so the operator does."""
    name, peer = printable(request.client_id), request.connection.peer
    lost = "are lost, and with acks=0 it does not notice" if acks == 0 else "are refused"
    broker.server.complain(
        "old producer",
        f"{peer}: records of client {name} {lost}: it sent Produce v{request.version}, in a "
        "message format from before Kafka 0.11; upgrade the client, or have it speak the protocol "
        "of Kafka 0.11 or newer (api_version, Version, broker.version.fallback)",
    )


def _refuse(rows: ProduceRows, code: ErrorCode) -> Results:
    return [
        (topic, [Produced(index, code) for index, _ in partitions]) for topic, partitions in rows
    ]


def _answer(request: Request, acks: int, results: Results) -> None:
    if acks != 0:
        answer = encode_produce_response(request.version, request.correlation_id, results)
        request.connection.reply([answer])
    elif failed(results):
        request.connection.hang_up("a Produce with acks=0 failed")


class _Deferred(Deferred):
    """The reply to a request whose batches are being opened, or wait for the replicas."""

    __slots__ = (
        "_acks",
        "_delayed",
        "_offload",
        "_size",
        "_spawn",
        "_task",
        "_timeout_ms",
    )

    soon = True

    def __init__(self, broker: Broker, request: Request, acks: int, timeout_ms: int) -> None:
        self._size = len(request.data)
        super().__init__(request, blocking=False)
        self._acks, self._timeout_ms = acks, timeout_ms
        self._offload, self._spawn = broker.offload, broker.spawn
        self._task: asyncio.Task[None] | None = None
        self._delayed: DelayedProduce | None = None

    def wait(self, results: Results, waiting: Waiting) -> None:
        """The batches are written; the answer waits for the replicas, the next request does not."""
        self._delayed = DelayedProduce(results, waiting, self._timeout_ms, self._encode)
        self.connection.park(self)

    def append_later(
        self, rows: ProduceRows, work: Work[Results], job: Job, waiting: Waiting
    ) -> None:
        """Append batches that the worker process opens; the next request waits for them."""
        self.blocking = True
        self._task = self._spawn(self._append(rows, work, job, waiting))
        self.connection.park(self)

    async def _append(
        self, rows: ProduceRows, work: Work[Results], job: Job, waiting: Waiting
    ) -> None:
        try:
            results = await self._offload.finish(work, job)
        except Exception as error:
            code, _ = code_of(error, f"{self.connection.peer}: Produce v{self.request.version}")
            results = _refuse(rows, code)
            waiting.clear()
        if self._acks == 0:
            if failed(results):
                self.connection.hang_up("a Produce with acks=0 failed")
            self.complete([])
        elif waiting and not self.connection.closed:
            self._task, self.blocking = None, False
            self._delayed = DelayedProduce(results, waiting, self._timeout_ms, self._encode)
            self._delayed.wake()  # the first may be committed by now
            self.connection.pending_done()  # the next requests need not wait for the replicas
        else:
            self._encode(results)

    def _encode(self, results: Results) -> None:
        self._delayed = None  # no cycle: it refers to this method, and to the log
        request = self.request
        self.complete([encode_produce_response(request.version, request.correlation_id, results)])

    def cancel(self) -> None:
        super().cancel()
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed = None
        # What a client has sent with acks=0 it takes for written, also when it is gone.
        task = self._task
        if task is not None and not (self._acks == 0 and self._offload.keep(task, self._size)):
            task.cancel()
