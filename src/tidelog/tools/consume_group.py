"""``tidelog consume --group``: a real member of a consumer group, through librdkafka.

An offset is stored when the record's line has been written, so what the group has committed
has been seen: after a crash a record may come twice, but none is passed over.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable
from types import FrameType
from typing import IO, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Place

from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.tools.formats import FormatError, Formatter
from tidelog.tools.output import note
from tidelog.tools.reading import Limits
from tidelog.topic_partition import TopicPartition
from tidelog.wire.records import Record

_POLL_SECONDS = 0.2  # Ctrl-C takes effect between two polls
_BATCH = 500


class GroupReader:
    """See the module.  ``run`` returns when a limit is reached, or Ctrl-C or SIGTERM comes.

    ``limits.until`` has the ends of all partitions, if it is to stop there: it stops when
    those that it was given are read, whatever the other members do.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        topics: Iterable[str],
        write: Formatter,
        out: IO[bytes],
        limits: Limits,
        *,
        skip_bad: bool = False,
    ) -> None:
        self.count = 0
        self.skipped = 0
        self._write = write
        self._out = out
        self._limits = limits
        self._skip_bad = skip_bad
        self._clock = SystemClock()
        self._assigned = False
        self._left: set[TopicPartition] = set()  # ours, not read to the end yet
        self._stopped = False
        self._told = False
        silent = logging.getLogger("tidelog.librdkafka")
        silent.addHandler(logging.NullHandler())
        silent.propagate = False
        own = {
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "error_cb": self._on_error,
        }
        try:
            self._consumer = Consumer({**settings, **own}, logger=silent)
        except KafkaException as error:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"--property: {error.args[0].str()}"
            ) from error
        self._consumer.subscribe(list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke)

    def run(self) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            heard = self._clock.monotonic()
            while not self._stopped and not self._is_done():
                room = _BATCH
                if self._limits.max_records is not None:
                    room = min(room, self._limits.max_records - self.count)
                if self._take(self._consumer.consume(room, _POLL_SECONDS)):
                    heard = self._clock.monotonic()
                idle = self._limits.idle_seconds
                if idle is not None and self._clock.monotonic() - heard >= idle:
                    return
        finally:
            self._consumer.close()  # commits what is stored, and leaves at once
            for number, handler in zip(numbers, previous, strict=True):
                signal.signal(number, handler)

    def _is_done(self) -> bool:
        if self.count == self._limits.max_records:
            return True
        return self._limits.until is not None and self._assigned and not self._left

    def _take(self, messages: list[Message]) -> bool:
        """Write a line for each record; then they count as read."""
        lines: list[bytes] = []
        read: dict[TopicPartition, int] = {}
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error.str()))
            row = TopicPartition(str(message.topic()), message.partition() or 0)
            if error is not None:
                self._left.discard(row)
                continue
            record = _record(message)
            try:
                lines.append(self._write(row, record))
            except FormatError as problem:
                if not self._skip_bad:
                    self._emit(lines, read)
                    raise ApiError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"{row}@{record.offset}: {problem}; --skip-bad goes on without it",
                    ) from None
                self.skipped += 1
            read[row] = record.offset + 1
            if self._limits.until is not None and read[row] >= self._limits.until.get(row, 0):
                self._left.discard(row)
        self._emit(lines, read)
        return bool(read)

    def _emit(self, lines: list[bytes], read: dict[TopicPartition, int]) -> None:
        if lines:
            self._out.write(b"\n".join(lines) + b"\n")
            self._out.flush()
            self.count += len(lines)
        if read:
            places = [Place(row.topic, row.partition, offset) for row, offset in read.items()]
            try:
                self._consumer.store_offsets(offsets=places)
            except KafkaException:
                note("the partitions went to another member: it may show the last records again")

    # -- what librdkafka says ---------------------------------------------------

    def _on_assign(self, consumer: Consumer, places: list[Place]) -> None:  # noqa: ARG002
        self._assigned = True
        self._left |= {TopicPartition(place.topic, place.partition) for place in places}

    def _on_revoke(self, consumer: Consumer, places: list[Place]) -> None:  # noqa: ARG002
        self._left -= {TopicPartition(place.topic, place.partition) for place in places}

    def _on_error(self, error: KafkaError) -> None:
        if not self._told:
            self._told = True
            note(f"{error.str()}; trying again until Ctrl-C")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._stopped = True


def _record(message: Message) -> Record:
    kind, timestamp = message.timestamp()
    named: Any = message.headers() or ()
    headers = tuple((name, _bytes(value)) for name, value in named)
    return Record(
        message.offset() or 0,
        timestamp if kind else -1,
        _bytes(message.key()),
        _bytes(message.value()),
        headers,
    )


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
