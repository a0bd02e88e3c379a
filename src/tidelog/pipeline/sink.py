"""The format ``tidelog`` as a sink: rows to topics, through librdkafka.

    df.write.format("tidelog").mode("append")
        .option("kafka.bootstrap.servers", "localhost:9092").option("topic", "clicks").save()

Columns, as for Spark's JVM connector: ``value`` (string or binary), and if they are there
``key``, ``headers``, ``topic``, ``partition``; others are left alone.  The option ``topic`` wins
over the column.  What cannot work is refused before anything is written.

A task hands its rows to one idempotent producer with acks=all, and is done when the brokers
have acknowledged every one of them; the first that fails, fails the task.  Spark then runs the
task again, from its start: records may be in the topic twice, as with the JVM connector, but
none is missing.  (``mode("append")`` must be written: Spark lets no Python source have the
default mode, *errorifexists*.)

Why row by row: ``produce`` costs librdkafka about 1.2 us for a record of 100 bytes, and
``produce_batch``, which has no headers, costs the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from tidelog.client.cluster import TOPIC_GONE, Cluster, check_topic
from tidelog.client.connection import BrokerUnreachable, CannotConnect
from tidelog.pipeline.option_values import KAFKA_PREFIX
from tidelog.pipeline.options import CLIENT_ID, OptionError, SinkOptions
from tidelog.pipeline.producer_settings import producer_settings
from tidelog.pipeline.ranges import HEADERS
from tidelog.pipeline.schema import TYPES
from tidelog.text import plural

_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (from_arrow_type(TYPES[HEADERS]),),
    "partition": (IntegerType(),),
}
_ANY_PARTITION = -1
_ROWS = 1000  # as many become Python objects at a time
_PATIENCE = 3.0  # seconds, in which a broker may make a topic that is not there
_PAUSE = 0.05  # seconds, while librdkafka's queue is full


class DeliveryFailed(Exception):
    """Records that the brokers did not take; the message names topic, partition and reason."""


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkWriter:
    """For a batch; it connects to the cluster first, so that a wrong address fails at once."""
    if overwrite:
        raise OptionError(
            "Save mode overwrite is not allowed: records of a topic cannot be replaced; "
            'write .mode("append")'
        )
    plan = _plan(options, schema)
    if plan.topic is not None:
        try:
            with plan.cluster() as cluster:
                _check_topic(cluster, plan.topic)
        except CannotConnect as error:
            raise error.advised("kafka.bootstrap.servers") from error
    return SinkWriter(plan)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> SinkStreamWriter:
    """For a stream, in any output mode: an update or a whole new result is appended as well."""
    del overwrite
    return SinkStreamWriter(_plan(options, schema))


# -- what is to be written ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a task must know.  It travels to executors."""

    options: SinkOptions
    columns: frozenset[str]

    @property
    def topic(self) -> str | None:
        return self.options.topic

    def settings(self) -> dict[str, str]:
        return producer_settings(dict(self.options.client.settings), self.options.client.client_id)

    def cluster(self) -> Cluster:
        return self.options.client.cluster(patience=_PATIENCE)


def _plan(given: Mapping[str, str], schema: StructType) -> _Plan:
    options = SinkOptions.parse(given)
    types = {field.name: field.dataType for field in schema.fields}
    if options.topic is None and "topic" not in types:
        raise OptionError(
            "topic option required when no 'topic' attribute is present: write "
            '.option("topic", "..."), or add a column topic'
        )
    if "value" not in types:
        raise OptionError(
            f"Required attribute 'value' not found: the columns are {', '.join(types) or 'none'}; "
            'make one, for example with .selectExpr("to_json(struct(*)) as value")'
        )
    used = [name for name in _COLUMNS if name in types]
    if options.topic is not None and "topic" in used:
        used.remove("topic")
    for name in used:
        if not any(_same(types[name], allowed) for allowed in _COLUMNS[name]):
            allowed = " or ".join(row.simpleString() for row in _COLUMNS[name])
            raise OptionError(
                f"{name} attribute unsupported type {types[name].simpleString()}. "
                f"{name} must be a(n) {allowed}"
            )
    plan = _Plan(options, frozenset(used))
    _try(plan)
    return plan


def _try(plan: _Plan) -> None:
    """Let librdkafka judge the settings; if it takes each by itself, they do not go together."""
    try:
        Producer(plan.settings())
        return
    except KafkaException as error:
        whole = error
    for name, value in plan.options.client.settings:
        try:
            Producer(producer_settings({name: value}, CLIENT_ID))
        except KafkaException as error:
            raise OptionError(
                f"{KAFKA_PREFIX}{name}={value} cannot be used: {error.args[0].str()}"
            ) from None
    reason = whole.args[0].str().removeprefix("Failed to create producer: ")
    raise OptionError(f"{KAFKA_PREFIX}* do not go together: {reason}")


def _same(found: DataType, allowed: DataType) -> bool:
    """The same type, whether or not it may be null."""
    return bool(found.simpleString() == allowed.simpleString())


def _check_topic(cluster: Cluster, name: str) -> None:
    """Raise if there is no such topic; the brokers are asked to make it, if they do that."""
    for _ in cluster.attempts():
        found = cluster.metadata([name], create=True).topics[name]
        if found.error not in TOPIC_GONE:
            break  # there, or being made
    check_topic(found)


# -- a task ---------------------------------------------------------------------


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc, unused-ignore]
    """What a task returns to the driver."""

    count: int


class _Producing:
    """A producer, what it could not deliver, and the topics it has written to."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._topics: set[str] = set()
        self._failures: list[tuple[str, int, KafkaError]] = []
        self._failed = 0
        self._producer = Producer(
            {
                **plan.settings(),
                # Only failures are reported: a flush that ends without one has delivered all.
                "delivery.report.only.error": True,
                "on_delivery": self._not_delivered,
            },
        )

    def _not_delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed += 1
            if len(self._failures) < 10:
                tp = message.topic() or "", _number(message.partition())
                self._failures.append((*tp, error))

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _ROWS):
            self._write(batch.slice(start, _ROWS))
            self._producer.poll(0)
            self._check()

    def _write(self, rows: pa.RecordBatch) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for topic, value, key, partition, headers in zip(
            self._topics_of(rows),
            _bytes(rows.column("value")),
            self._column(rows, "key", None),
            self._column(rows, "partition", _ANY_PARTITION),
            self._column(rows, "headers", None),
            strict=False,
        ):
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key, partition)
                    else:
                        produce(topic, value, key, partition, headers=headers)
                    break
                except BufferError:
                    poll(_PAUSE)  # it has records for seconds: wait until some are delivered
                    self._check()
                except KafkaException as error:
                    self._failures.append((topic, partition, error.args[0]))
                    self._failed += 1
                    self._check()

    def _topics_of(self, rows: pa.RecordBatch) -> Iterator[str] | list[str]:
        if self._plan.topic is not None:
            self._meet([self._plan.topic])
            return itertools.repeat(self._plan.topic, rows.num_rows)
        column = rows.column("topic")
        if column.null_count:
            raise OptionError(
                "null topic present in the data: fill the column, or set the option topic"
            )
        self._meet(pc.unique(column).to_pylist())
        names: list[str] = column.to_pylist()
        return names

    def _meet(self, topics: Sequence[str]) -> None:
        """A topic that does not exist is reported at once, not when the delivery times out."""
        new = [topic for topic in topics if topic not in self._topics]
        if not new:
            return
        self._topics.update(new)
        try:
            with self._plan.cluster() as cluster:
                for topic in new:
                    _check_topic(cluster, topic)
        except BrokerUnreachable:
            pass  # librdkafka goes on trying, as long as delivery.timeout.ms says

    def _column(self, rows: pa.RecordBatch, name: str, default: Any) -> Any:
        if name not in self._plan.columns:
            return itertools.repeat(default, rows.num_rows)
        column = rows.column(name)
        if name == "key":
            return _bytes(column)
        if name == "headers":
            return map(_headers, column.to_pylist())
        numbers = column.fill_null(_ANY_PARTITION)
        wrong = pc.min(column).as_py()
        if wrong is not None and wrong < 0:
            raise OptionError(f"partition {wrong} is below 0: use null to leave it to the key")
        return numbers.to_pylist()

    def _check(self) -> None:
        if not self._failures:
            return
        topic, partition, error = self._failures[0]
        tp = f"{topic}-{partition}" if partition >= 0 else str(topic)
        self.abandon()
        raise DeliveryFailed(
            f"{plural(self._failed, 'record')} not delivered, the first to {tp}: {_reason(error)}"
        )

    def finish(self) -> None:
        """Return when every record is acknowledged; raise if one is not."""
        while self._producer.flush(1):
            self._check()
        self._check()

    def abandon(self) -> None:
        """Forget what is not sent yet: the task has failed."""
        self._producer.purge()


def _number(partition: int | None) -> int:
    return _ANY_PARTITION if partition is None else partition


def _bytes(column: pa.Array) -> list[bytes | None]:
    result: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return result


def _headers(row: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    if not row:
        return None
    if any(header is None or header["key"] is None for header in row):
        raise OptionError("headers: a header without a key is present in the data")
    return [(header["key"], header["value"]) for header in row]


def _reason(error: KafkaError) -> str:
    text = error.str() or error.name()
    return f"{error.name()}: {text}" if error.name() not in text else text


class _Tasks:
    """What batches and streams have in common: it runs in the tasks."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        count = 0
        producing: _Producing | None = None
        try:
            for batch in iterator:
                if producing is None:
                    producing = _borrow(self._plan)
                producing.write(batch)
                count += batch.num_rows
            if producing is not None:
                producing.finish()
        except BaseException:
            if producing is not None:
                producing.abandon()
            raise
        if producing is not None:
            _give_back(self._plan, producing)
        return Written(count)


# Spark uses a Python process for many tasks, one after another, and a producer takes half a
# second to get its id: it is kept for the next task, unless something went wrong with it.
_kept: dict[_Plan, _Producing] = {}


def _borrow(plan: _Plan) -> _Producing:
    return _kept.pop(plan, None) or _Producing(plan)


def _give_back(plan: _Plan, producing: _Producing) -> None:
    _kept.clear()  # one is enough: a query follows on itself
    _kept[plan] = producing


class SinkWriter(_Tasks, DataSourceArrowWriter):
    """A batch."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what a task has written is in the topic."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: records cannot be taken back."""


class SinkStreamWriter(_Tasks, DataSourceStreamArrowWriter):
    """A stream."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what a task has written is in the topic."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: records cannot be taken back."""
