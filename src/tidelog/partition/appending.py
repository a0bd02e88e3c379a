"""Append what producers send: the batches of a Produce request, from append to acknowledgement.

A request has up to three stages.  Its batches are appended, one partition after the other.  A
batch that takes long to open (``validation.py``) is opened by the worker process meanwhile, and
what comes after it in the request waits.  With acks=all the answer then waits until the replicas
in sync have everything (``acknowledgement.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.clock import Clock
from tidelog.errors import ApiError, ErrorCode
from tidelog.partition.acknowledgement import Unacknowledged
from tidelog.partition.leader import ALL_ACKS
from tidelog.partition.offload import Job, Offload, Work
from tidelog.partition.purgatory import DelayedOperation
from tidelog.partition.replicas import Replicas
from tidelog.partition.validation import (
    Budget,
    InvalidRecords,
    OpenElsewhere,
    Rules,
    ValidatedBatch,
    rewrite_elsewhere,
)
from tidelog.wire.batch import stamp_append_time
from tidelog.wire.hot import Produced, ProduceRows, TopicRef

log = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # half the time of Produced(...)

Results = list[tuple[TopicRef, list[Produced]]]
# Batches that are written but not committed, by the partition that the request names.
Waiting = dict[tuple[TopicRef, int], Unacknowledged]


class Appender:
    """Appends to the partitions of this broker."""

    def __init__(self, replicas: Replicas, clock: Clock, offload: Offload) -> None:
        self.clock = clock
        self.offload = offload
        self._replicas = replicas

    def append(
        self,
        topic: TopicRef,
        index: int,
        records: memoryview | None,
        acks: int,
        version: int,
        now_ms: int,
        waiting: Waiting,
        budget: Budget | None = None,
        rewritten: ValidatedBatch | None = None,
    ) -> Produced:
        """Append to one partition; what must be waited for is added to ``waiting``."""
        try:
            partition = self._replicas.find(topic, index)
            leader = partition.leader
            if records is None:
                raise ApiError(ErrorCode.INVALID_RECORD, "there are no records in the request")
            if leader is None:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            base_offset, last_offset, append_time = leader.append(
                records, version, now_ms, budget, rewritten, acks=acks
            )
        except ApiError as error:
            return refused(index, error)
        log = partition.log
        if acks == ALL_ACKS and last_offset >= log.high_watermark:
            before = waiting.get((topic, index))  # if the request names a partition twice
            if before is None or before.last_offset < last_offset:
                waiting[topic, index] = Unacknowledged(leader, last_offset)
        start = log.log_start_offset
        return _new_tuple(Produced, (index, 0, base_offset, append_time, start, None, ()))

    def append_all(
        self, rows: ProduceRows, acks: int, version: int, waiting: Waiting
    ) -> Work[Results]:
        """Append to one partition after the other; yields what is too much for the event loop.

        Until the first result of such a job is there, the caller takes the records of all
        partitions out of the connection's buffer: no variable may refer to them meanwhile.
        """
        now_ms = self.clock.now_ms()
        budget = Budget()
        answers: Results = []
        for topic, partitions in rows:
            results: list[Produced] = []
            answers.append((topic, results))
            for at in range(len(partitions)):
                too_much = None
                try:
                    result = self.append(
                        topic, *partitions[at], acks, version, now_ms, waiting, budget
                    )
                except OpenElsewhere as error:
                    too_much = error.rules, error.limit
                if too_much is not None:  # after the except: its traceback refers to the records
                    result = yield from self._append_opened(
                        topic, partitions, at, acks, version, now_ms, waiting, budget, too_much
                    )
                    now_ms = self.clock.now_ms()
                results.append(result)
        return answers

    def _append_opened(
        self,
        topic: TopicRef,
        partitions: list[tuple[int, memoryview | None]],
        at: int,
        acks: int,
        version: int,
        now_ms: int,
        waiting: Waiting,
        budget: Budget,
        too_much: tuple[Rules, int],
    ) -> Work[Produced]:
        """Append a batch that the worker process has opened.

        By then the partition may be deleted, or another broker leads it: all is checked again.
        If its settings have changed, the batch is opened again.
        """
        while True:
            index, records = partitions[at]
            assert records is not None
            rules, limit = too_much
            job = Job(rewrite_elsewhere, (bytes(records), rules, now_ms, limit))
            del records
            try:
                rewritten: ValidatedBatch = yield job
            except ApiError as error:
                return refused(index, error)
            budget.decompressed += rewritten.decompressed
            index, records = partitions[at]
            now_ms = self.clock.now_ms()
            if rewritten.append_time >= 0:
                stamp_append_time(rewritten.batch, now_ms)
                rewritten = rewritten._replace(append_time=now_ms)
            try:
                return self.append(
                    topic, index, records, acks, version, now_ms, waiting, budget, rewritten
                )
            except OpenElsewhere as error:
                too_much = error.rules, error.limit


def refused(index: int, error: ApiError) -> Produced:
    errors = error.errors if isinstance(error, InvalidRecords) else ()
    return Produced(index, error.code, message=error.message, record_errors=errors)


def failed(results: Results) -> bool:
    """Has any partition an error?"""
    return any(result.error for _, partitions in results for result in partitions)


class DelayedProduce:
    """Waits until each batch of a request is committed, or cannot be acknowledged any more."""

    __slots__ = ("_complete", "_operation", "_results", "_waiting")

    def __init__(
        self,
        results: Results,
        waiting: Waiting,
        timeout_ms: int,
        complete: Callable[[Results], None],
    ) -> None:
        self._results = results
        self._waiting = waiting
        self._complete = complete
        self._operation = DelayedOperation(self._is_decided, self._finish)
        self._operation.watch([batch.leader.partition for batch in waiting.values()], timeout_ms)

    def wake(self) -> None:
        """The replicas may have come past the batches before this began to wait."""
        self._operation.wake()

    def cancel(self) -> None:
        self._operation.cancel()

    def _is_decided(self) -> bool:
        return not any(batch.undecided for batch in self._waiting.values())

    def _finish(self) -> None:
        """Answer as things are: what is not committed by now has timed out."""
        complete, self._complete = self._complete, _ignore  # no cycle is left
        try:
            results = [
                (topic, [self._acknowledged(topic, result) for result in partitions])
                for topic, partitions in self._results
            ]
        except Exception:
            log.exception("a Produce cannot be acknowledged")
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            results = [(t, [Produced(r.partition, code) for r in rs]) for t, rs in self._results]
        complete(results)

    def _acknowledged(self, topic: TopicRef, result: Produced) -> Produced:
        batch = self._waiting.get((topic, result.partition))
        error = ErrorCode.NONE if batch is None else batch.error()
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and isinstance(topic, bytes):
            error = ErrorCode.UNKNOWN_TOPIC_ID
        return Produced(result.partition, error) if error else result


def _ignore(results: Results) -> None:
    """It is complete."""
