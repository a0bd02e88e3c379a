"""Rows to topics: what is written, what is refused, and what happens when it cannot be written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.types import StructType
from support.filling import make_topic
from support.waiting import until

from tidelog.client.connection import CannotConnect
from tidelog.errors import ApiError
from tidelog.pipeline import sink
from tidelog.pipeline.options import OptionError
from tidelog.pipeline.producer_settings import producer_settings
from tidelog.testing import LocalBroker

pytestmark = pytest.mark.usefixtures("spark")  # which also reads schemas
HEADERS = "array<struct<key:string,value:binary>>"


def records(bootstrap: str, topic: str) -> list[Any]:
    """Everything in a topic, read by librdkafka."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "-"})
    result = []
    for partition in consumer.list_topics(topic).topics[topic].partitions:
        tp = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(tp)
        consumer.assign([tp])
        count = 0
        while count < end:
            message = consumer.poll(100)
            assert message is not None and message.error() is None
            result.append(message)
            count = message.offset() + 1
    consumer.close()
    return result


@pytest.fixture
def write(broker: LocalBroker) -> Callable[..., None]:
    def save(frame: Any, **options: Any) -> None:
        target = frame.write.format("tidelog").mode("append")
        target = target.option("kafka.bootstrap.servers", broker.bootstrap)
        for name, value in options.items():
            target = target.option(name.replace("__", "."), value)
        target.save()

    return save


def schema(text: str) -> StructType:
    return StructType.fromDDL(text)


# -- what is written ------------------------------------------------------------


def test_every_column(spark: Any, broker: LocalBroker, topic: str, write: Any) -> None:
    for name in ("a", "b"):
        make_topic(broker.bootstrap, f"{topic}-{name}", 3)
    rows = [
        (f"{topic}-a", b"k0", "v0", 2, [("h", b"1"), ("h", None), ("ü", b"")], "ignored"),
        (f"{topic}-a", None, None, None, None, "ignored"),
        (f"{topic}-b", b"", "", 1, [], "ignored"),
    ]
    columns = f"topic string, key binary, value string, partition int, headers {HEADERS}, x string"
    write(spark.createDataFrame(rows, columns))
    (first, *others) = sorted(
        records(broker.bootstrap, f"{topic}-a"), key=lambda row: row.value() is None
    )
    assert (first.partition(), first.key(), first.value()) == (2, b"k0", b"v0")
    assert first.headers() == [("h", b"1"), ("h", None), ("ü", b"")]
    assert [(row.key(), row.value(), row.headers()) for row in others] == [(None, None, None)]
    (last,) = records(broker.bootstrap, f"{topic}-b")
    assert (last.partition(), last.key(), last.value()) == (1, b"", b"")


def test_many_rows_each_once_and_keys_as_java_spreads_them(
    spark: Any, broker: LocalBroker, topic: str, write: Any, read: Any
) -> None:
    make_topic(broker.bootstrap, topic, 5)
    frame = spark.range(20_000, numPartitions=4).selectExpr(
        "concat('key-', id) as key", "cast(repeat(cast(id as string), 10) as binary) as value"
    )
    # The option wins over the column.
    write(
        frame.selectExpr("*", "'elsewhere' as topic"), topic=topic, kafka__compression__type="lz4"
    )
    back = read(topic).selectExpr("cast(key as string) as key", "value", "partition")
    assert back.count() == 20_000
    assert back.select("key", "value").exceptAll(frame.select("key", "value")).count() == 0
    # What Kafka's Java client makes of these keys (murmur2).
    assert {
        row.key: row.partition
        for row in back.where("key in ('key-0', 'key-1', 'key-2', 'key-3')").collect()
    } == {f"key-{number}": java_partition(f"key-{number}".encode(), 5) for number in range(4)}


def java_partition(key: bytes, count: int) -> int:
    """Kafka's own rule, from another implementation of it."""
    from kafka.partitioner.default import murmur2

    return (murmur2(key) & 0x7FFFFFFF) % count


def test_a_stream(
    spark: Any, broker: LocalBroker, filled: Any, topic: str, checkpoint: str, read: Any
) -> None:
    source = filled([{"value": f"v{i}", "key": f"k{i}"} for i in range(100)], partitions=2)
    target = make_topic(broker.bootstrap, f"{topic}-copy", 2)

    def run() -> None:
        frame = (
            spark.readStream.format("tidelog")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            frame.selectExpr("key", "upper(cast(value as string)) as value")
            .writeStream.format("tidelog")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    run()  # nothing is new
    values = [bytes(row.value).decode() for row in read(target).collect()]
    assert sorted(values) == sorted(f"V{i}" for i in range(100))


def test_a_topic_that_the_broker_makes(
    spark: Any, broker: LocalBroker, topic: str, write: Any
) -> None:
    write(spark.createDataFrame([("x",)], "value string"), topic=topic)
    assert [row.value() for row in records(broker.bootstrap, topic)] == [b"x"]


# -- what is refused ------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("value string", {}, "topic option required when no 'topic' attribute is present"),
        ("key string", {"topic": "t"}, "Required attribute 'value' not found: the columns are key"),
        ("value int", {"topic": "t"}, "value attribute unsupported type int. value must be a(n) "
         "string or binary"),
        ("value string, key long", {"topic": "t"}, "key attribute unsupported type bigint"),
        ("value string, topic binary", {}, "topic attribute unsupported type binary. topic must "
         "be a(n) string"),
        ("value string, partition long", {"topic": "t"}, "partition attribute unsupported type "
         "bigint. partition must be a(n) int"),
        ("value string, headers array<string>", {"topic": "t"}, "headers attribute unsupported "
         "type array<string>. headers must be a(n) array<struct<key:string,value:binary>>"),
        ("value string", {"topic": "t", "tpoic": "u"}, "tpoic: there is no such option; did you "
         "mean topic?"),
        ("value string", {"topic": "t", "kafka.linger.ns": "1"}, "did you mean kafka.linger.ms?"),
        ("value string", {"topic": "t", "kafka.linger.ms": "soon"}, "kafka.linger.ms=soon "
         "cannot be used: Invalid value"),
        ("value string", {"topic": "t", "kafka.key.serializer": "x"}, "kafka.key.serializer cannot "
         "be set"),
        ("value string", {"topic": "t", "kafka.partitioner.class": "x"}, "write a column "
         "partition"),
        ("value string", {"topic": "t", "kafka.transactional.id": "x"}, "cannot be set: Spark "
         "repeats tasks"),
        ("value string", {"topic": "t", "kafka.compression.type": "rar"}, "kafka.compression.type"
         "=rar cannot be used"),
        ("value string", {"topic": "t", "kafka.acks": "1", "kafka.enable.idempotence": "true"},
         "kafka.* do not go together: `acks` must be set"),
    ],
)  # fmt: skip
def test_refused_before_anything_is_written(
    columns: str, options: dict[str, str], message: str
) -> None:
    given = {"kafka.bootstrap.servers": "localhost:1", **options}
    for make in (sink.writer, sink.stream_writer):
        with pytest.raises(OptionError) as caught:
            make(given, schema(columns), False)
        assert message in str(caught.value)


def test_overwrite_is_refused(spark: Any, broker: LocalBroker, topic: str) -> None:
    frame = spark.createDataFrame([("x",)], "value string")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    with pytest.raises(AnalysisException, match=r'write \.mode\("append"\)'):
        frame.write.format("tidelog").options(**options).mode("overwrite").save()


def test_no_broker_and_no_topic_fail_at_once(strict_broker: LocalBroker, topic: str) -> None:
    rows = schema("value string")
    with pytest.raises(CannotConnect, match="cannot reach a broker at localhost:1"):
        sink.writer({"kafka.bootstrap.servers": "localhost:1", "topic": topic}, rows, False)
    servers = {"kafka.bootstrap.servers": strict_broker.bootstrap}
    with pytest.raises(ApiError, match=f"there is no topic '{topic}'"):
        sink.writer({**servers, "topic": topic}, rows, False)


def test_settings_in_librdkafkas_words() -> None:
    found = producer_settings(
        {
            "buffer.memory": "33554432",
            "compression.type": "zstd",
            "compression.zstd.level": "7",
            "compression.gzip.level": "1",
            "max.request.size": "2000000",
            "max.block.ms": "1",
            "message.timeout.ms": "5000",
        },
        "me",
    )
    expected = {
        "client.id": "me",
        "queue.buffering.max.kbytes": "32768",
        "compression.type": "zstd",
        "compression.level": "7",
        "message.max.bytes": "2000000",
        "delivery.timeout.ms": "5000",
        "enable.idempotence": "true",
        "acks": "all",
        "partitioner": "murmur2_random",
    }
    assert {name: found[name] for name in expected} == expected
    assert not {"max.block.ms", "buffer.memory", "message.timeout.ms"} & found.keys()
    Producer(found)  # it takes them all


@pytest.mark.parametrize(
    "weaker", [{"acks": "1"}, {"retries": "0"}, {"max.in.flight.requests.per.connection": "6"}]
)
def test_what_is_asked_for_wins_over_idempotence(weaker: dict[str, str]) -> None:
    found = producer_settings(weaker, "me")
    assert found["enable.idempotence"] == "false"
    Producer(found)


# -- what fails on the way ------------------------------------------------------


def tasks(bootstrap: str, columns: str, **options: str) -> Callable[[list[Any]], int]:
    """Write rows as a task does, without Spark around it."""
    given = {"kafka.bootstrap.servers": bootstrap}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    target = sink.stream_writer(given, schema(columns), False)
    names = schema(columns).fieldNames()

    def write(rows: list[Any]) -> int:
        columns = [pa.array([row[i] for row in rows]) for i in range(len(names))]
        return target.write(iter([pa.RecordBatch.from_arrays(columns, names)])).count

    return write


def test_a_record_that_is_too_large_fails_with_its_place(
    spark: Any, broker: LocalBroker, topic: str, write: Any
) -> None:
    make_topic(broker.bootstrap, topic, 2, {"max.message.bytes": "1000"})
    frame = spark.createDataFrame([("x" * 5000, 1)], "value string, partition int")
    with pytest.raises(PythonException) as caught:
        write(frame, topic=topic)
    message = str(caught.value)
    assert f"1 record not delivered, the first to {topic}-1: " in message
    assert "MSG_SIZE_TOO_LARGE" in message


def test_one_that_librdkafka_itself_refuses(broker: LocalBroker, topic: str) -> None:
    make_topic(broker.bootstrap, topic)
    write = tasks(broker.bootstrap, "value string", topic=topic, kafka__max__request__size="1000")
    with pytest.raises(sink.DeliveryFailed, match=f"the first to {topic}: MSG_SIZE_TOO_LARGE"):
        write([("x" * 5000,)])


def test_a_partition_that_is_not_there(broker: LocalBroker, topic: str) -> None:
    make_topic(broker.bootstrap, topic, 2)
    write = tasks(broker.bootstrap, "value string, partition int", topic=topic)
    with pytest.raises(sink.DeliveryFailed, match=f"the first to {topic}-7: .*partition"):
        write([("x", 7)])
    with pytest.raises(OptionError, match="partition -1 is below 0"):
        write([("x", -1)])
    assert write([("x", 1)]) == 1  # the next task is not harmed


def test_bad_rows(broker: LocalBroker, strict_broker: LocalBroker, topic: str) -> None:
    make_topic(broker.bootstrap, topic)
    write = tasks(broker.bootstrap, "value string, topic string")
    with pytest.raises(OptionError, match="null topic present in the data"):
        write([("x", topic), ("y", None)])
    headers = tasks(broker.bootstrap, f"value string, headers {HEADERS}", topic=topic)
    with pytest.raises(OptionError, match="a header without a key"):
        headers([("x", [{"key": None, "value": b"1"}])])
    elsewhere = tasks(strict_broker.bootstrap, "value string, topic string")
    with pytest.raises(ApiError, match=f"there is no topic '{topic}'"):
        elsewhere([("x", topic)])


def test_a_queue_that_is_full_is_waited_for(broker: LocalBroker, topic: str) -> None:
    make_topic(broker.bootstrap, topic, 2)
    small = {"kafka__queue__buffering__max__messages": "10"}
    write = tasks(broker.bootstrap, "value string", topic=topic, **small)
    assert write([(str(number),) for number in range(600)]) == 600
    values = sorted(int(row.value()) for row in records(broker.bootstrap, topic))
    assert values == list(range(600))


def test_a_broker_that_comes_back_in_time(topic: str) -> None:
    """It is killed while rows are written: each is there once, for writes are idempotent."""
    with LocalBroker() as own:
        make_topic(own.bootstrap, topic, 2)
        target = sink.stream_writer(
            {"kafka.bootstrap.servers": own.bootstrap, "topic": topic},
            schema("value string"),
            False,
        )

        def batches() -> Any:
            for number in range(40):
                if number == 20:
                    own.kill()
                    own.start()
                values = [json.dumps([number, row]) for row in range(500)]
                yield pa.RecordBatch.from_arrays([pa.array(values)], ["value"])

        assert target.write(batches()).count == 20_000
        values = [tuple(json.loads(row.value())) for row in records(own.bootstrap, topic)]
        assert len(values) == 20_000
        assert set(values) == {(number, row) for number in range(40) for row in range(500)}


def test_a_broker_that_stays_away_fails_the_task(topic: str) -> None:
    with LocalBroker() as own:
        make_topic(own.bootstrap, topic)
        write = tasks(
            own.bootstrap, "value string", topic=topic, kafka__delivery__timeout__ms="2000"
        )
        assert write([("before",)]) == 1
        own.kill()
        with pytest.raises(sink.DeliveryFailed) as caught:
            write([("lost",), ("too",)])
        assert f"2 records not delivered, the first to {topic}" in str(caught.value)
        assert "_MSG_TIMED_OUT" in str(caught.value)


def test_a_producer_is_kept_for_the_next_task(broker: LocalBroker, topic: str) -> None:
    make_topic(broker.bootstrap, topic)
    write = tasks(broker.bootstrap, "value string", topic=topic)
    write([("a",)])
    (kept,) = sink._kept.values()
    write([("b",)])
    assert list(sink._kept.values()) == [kept]
    assert until(lambda: len(records(broker.bootstrap, topic)) == 2)
