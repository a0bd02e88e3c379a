"""Records for a member of a consumer group, for ``tidelog consume --group``: through librdkafka.

An offset is stored when the record's line has been written, so what the group has committed
has been seen: after a crash a record may come twice, but none is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Assigned

from tidelog.errors import ApiError, ErrorCode
from tidelog.tools.librdkafka import silent_logger
from tidelog.tools.output import note
from tidelog.tools.reading import RecordChunk
from tidelog.tools.stop_signal import StopSignal
from tidelog.topic_partition import TopicPartition
from tidelog.wire.records import Record

_POLL_SECONDS = 0.2  # Ctrl-C takes effect between two polls
_BATCH = 500


class GroupSource:
    """See the module.

    ``until`` has the ends of all partitions, if it is to stop there: it stops when those that
    it was assigned are read, whatever the other members do.
    """

    disconnected = False  # librdkafka retries by itself

    def __init__(
        self,
        settings: dict[str, Any],
        topics: Iterable[str],
        until: dict[TopicPartition, int] | None,
    ) -> None:
        self._until = until
        self._assigned = False
        self._left: set[TopicPartition] = set()  # ours, not read to the end yet
        self._error_shown = False
        own = {
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "error_cb": self._on_error,
        }
        try:
            self._consumer = Consumer({**settings, **own}, logger=silent_logger())
        except KafkaException as error:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"--property: {error.args[0].str()}"
            ) from error
        self._consumer.subscribe(list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke)

    @property
    def at_end(self) -> bool:
        return self._until is not None and self._assigned and not self._left

    def poll(self, wait: float, room: int | None, stop: StopSignal) -> Iterator[RecordChunk]:  # noqa: ARG002
        count = _BATCH if room is None else min(room, _BATCH)
        messages = self._consumer.consume(count, max(0.0, min(wait, _POLL_SECONDS)))
        for partition, run in groupby(messages, _partition):
            records = [record for message in run if (record := self._record(partition, message))]
            if records:
                yield RecordChunk(partition, records[0].offset, None, [(0, records)])

    def _record(self, partition: TopicPartition, message: Message) -> Record | None:
        error = message.error()
        if error is None:
            return _record(message)
        if error.code() != KafkaError._PARTITION_EOF:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error.str()))
        self._left.discard(partition)
        return None

    def written(self, partition: TopicPartition, offset: int) -> None:
        if self._until is not None and offset >= self._until.get(partition, 0):
            self._left.discard(partition)
        try:
            self._consumer.store_offsets(offsets=[Assigned(*partition, offset)])
        except KafkaException:
            note("the partitions went to another member: it may show the last records again")

    def close(self) -> None:
        self._consumer.close()  # commits what is stored, and leaves at once

    # -- called by librdkafka -----------------------------------------------------

    def _on_assign(self, consumer: Consumer, assigned: list[Assigned]) -> None:  # noqa: ARG002
        self._assigned = True
        self._left |= {TopicPartition(row.topic, row.partition) for row in assigned}

    def _on_revoke(self, consumer: Consumer, revoked: list[Assigned]) -> None:  # noqa: ARG002
        self._left -= {TopicPartition(row.topic, row.partition) for row in revoked}

    def _on_error(self, error: KafkaError) -> None:
        if not self._error_shown:
            self._error_shown = True
            note(f"{error.str()}; trying again until Ctrl-C")


def _partition(message: Message) -> TopicPartition:
    return TopicPartition(str(message.topic()), message.partition() or 0)


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
