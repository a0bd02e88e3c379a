"""The format ``tidelog`` in a real Spark, on a real broker: batches, streams, every option."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pipeline.planted import Planted, damage, transactions
from support.cli import run
from support.filling import fill, make_topic, write_batch
from support.waiting import until

from tidelog.client.admin import delete_topics, grow_topic
from tidelog.client.cluster import Cluster
from tidelog.client.groups import set_offsets
from tidelog.client.partitions import delete_records
from tidelog.testing import LocalBroker
from tidelog.topic_partition import TopicPartition

HOUR = 3_600_000
THEN = (time.time_ns() // 1_000_000 // HOUR - 24) * HOUR  # younger than what retention deletes


def at(hour: int) -> str:
    """A time in the language of offsets."""
    return "@" + datetime.fromtimestamp(THEN // 1000 + hour * 3600, UTC).strftime("%Y-%m-%dT%H:%MZ")


def hourly(count: int) -> list[dict[str, Any]]:
    """A record an hour, numbered from 0."""
    return [{"value": b"%d" % i, "timestamp": THEN + i * HOUR} for i in range(count)]


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


# -- batches --------------------------------------------------------------------------


def test_the_schema_is_that_of_sparks_own_connector(
    read: Callable[..., Any], filled: Callable[..., str]
) -> None:
    topic = filled(
        [{"key": b"k", "value": b"v", "timestamp": THEN, "headers": [("h", b"1"), ("h", None)]}]
    )
    frame = read(topic)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    frame = read(topic, includeHeaders="true")
    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    row = frame.selectExpr("*", "unix_millis(timestamp) as ms").first()
    assert (row.key, row.value, row.topic, row.partition) == (b"k", b"v", topic, 0)
    assert (row.offset, row.ms, row.timestampType) == (0, THEN, 0)
    assert [tuple(header) for header in row.headers] == [("h", b"1"), ("h", None)]


def test_where_a_batch_begins_and_ends(
    read: Callable[..., Any], filled: Callable[..., str]
) -> None:
    """Every option about it, and which wins, in one query after the other."""
    topic = filled(hourly(10))
    by_partition = {topic: {"0": 3}}
    for options, expected in (
        ({}, (0, 10)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, (0, 10)),
        ({"startingOffsets": by_partition, "endingOffsets": {topic: {"0": 5}}}, (3, 5)),
        ({"startingOffsets": {topic: {"0": -2}}, "endingOffsets": {topic: {"0": -1}}}, (0, 10)),
        ({"startingOffsets": {topic: {"0": "-4"}}}, (6, 10)),
        ({"startingOffsets": "-4", "endingOffsets": "-2"}, (6, 8)),
        ({"startingOffsets": "+4", "endingOffsets": "6"}, (4, 6)),
        ({"startingOffsets": at(2), "endingOffsets": at(5)}, (2, 5)),
        ({"startingTimestamp": THEN + 2 * HOUR, "endingTimestamp": THEN + 5 * HOUR}, (2, 5)),
        ({"startingTimestamp": THEN + 2 * HOUR, "startingOffsets": by_partition}, (2, 10)),
        ({"endingTimestamp": THEN + 100 * HOUR}, (0, 10)),
        (
            {
                "startingOffsetsByTimestamp": {topic: {"0": THEN + 4 * HOUR}},
                "startingOffsets": by_partition,
                "endingOffsetsByTimestamp": {topic: {"0": THEN + 6 * HOUR}},
                "endingOffsets": "1",
            },
            (4, 6),
        ),
        (
            {
                "startingTimestamp": THEN + 100 * HOUR,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            (10, 10),
        ),
    ):
        assert numbers(read(topic, **options)) == list(range(*expected)), options


def test_a_batch_from_a_groups_offsets(
    read: Callable[..., Any], filled: Callable[..., str], broker: LocalBroker
) -> None:
    topic = filled(hourly(10))
    with Cluster(broker.bootstrap) as cluster:
        set_offsets(cluster, topic, {TopicPartition(topic, 0): 7})
    assert numbers(read(topic, startingOffsets="group", kafka__group__id=topic)) == [7, 8, 9]


def test_columns_are_chosen_and_nothing_else_is_made(
    read: Callable[..., Any], filled: Callable[..., str]
) -> None:
    topic = filled([{"key": b"k%d" % i, "value": b"v%d" % i} for i in range(3)])
    frame = read(topic, columns="offset,key")
    assert frame.columns == ["offset", "key"]
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [
        (0, b"k0"), (1, b"k1"), (2, b"k2"),
    ]  # fmt: skip
    assert read(topic, columns="headers,value").columns == ["headers", "value"]
    # Spark's own pruning and filters work on what we hand over, again and again.
    frame = read(topic)
    assert frame.filter("offset > 0").count() == 2
    assert frame.count() == 3


def test_tasks(read: Callable[..., Any], broker: LocalBroker, topic: str) -> None:
    """One hot partition becomes several tasks, by bytes, by records or by number."""
    rows = [
        {"value": b"%04d" % i + bytes(2000), "partition": 0 if i % 10 else 1} for i in range(500)
    ]
    fill(broker.bootstrap, topic, rows, partitions=3, compression__type="none", batch__size=9000)

    def tasks(**options: Any) -> dict[int, int]:
        """How many tasks each partition was cut into."""
        frame = read(topic, **options).selectExpr("spark_partition_id() as task", "partition")
        return dict(sorted(Counter(row.partition for row in frame.distinct().collect()).items()))

    assert tasks() == {0: 1, 1: 1}
    assert tasks(minPartitions="6") == {0: 5, 1: 1}
    assert tasks(maxRecordsPerPartition="100") == {0: 5, 1: 1}
    by_bytes = tasks(maxBytesPerPartition="200k")
    assert 4 <= by_bytes[0] <= 6 and by_bytes[1] == 1
    values = sorted(row.value[:4] for row in read(topic, maxBytesPerPartition="50k").collect())
    assert values == [b"%04d" % i for i in range(500)]


def test_many_topics(spark: Any, broker: LocalBroker, topic: str) -> None:
    for name in ("one", "two"):
        fill(broker.bootstrap, f"{topic}-{name}", [name] * 3, partitions=2)
    reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", broker.bootstrap)
    for option, value, expected in (
        ("subscribe", f"{topic}-one, {topic}-two", 6),
        ("subscribePattern", f"{topic}-.*", 6),
        ("subscribePattern", f"{topic}-nothing", 0),
        ("assign", json.dumps({f"{topic}-one": [0], f"{topic}-two": [1]}), 3),
    ):
        assert reader.option(option, value).load().count() == expected, value
        reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", broker.bootstrap)


def test_an_empty_topic(read: Callable[..., Any], broker: LocalBroker, topic: str) -> None:
    assert read(make_topic(broker.bootstrap, topic, 2)).collect() == []


def test_planned_ranges_instead_of_records(
    read: Callable[..., Any], filled: Callable[..., str]
) -> None:
    topic = filled(hourly(10), partitions=2)
    rows = read(topic, ranges="true", minPartitions="4").orderBy("partition", "start").collect()
    assert [(row.topic, row.partition, row.start, row.end) for row in rows] == [
        (topic, 0, 0, 2), (topic, 0, 2, 5), (topic, 1, 0, 2), (topic, 1, 2, 5),
    ]  # fmt: skip
    assert len({row.topic_id for row in rows}) == 1 and len(rows[0].topic_id) == 22


def test_a_view_in_sql(spark: Any, broker: LocalBroker, filled: Callable[..., str]) -> None:
    topic = filled(hourly(4))
    using = (
        "using tidelog options("
        f"'kafka.bootstrap.servers' '{broker.bootstrap}', subscribe '{topic}')"
    )
    with pytest.raises(Exception, match="Write: create temporary view NAME using tidelog"):
        spark.sql(f"create table of_topic {using}")
    spark.sql(f"create or replace temporary view of_topic {using}")
    query = "select sum(cast(string(value) as int)) from of_topic where offset < 3"
    assert spark.sql(query).first()[0] == 3


def test_settings_of_kafkas_clients_are_taken(
    read: Callable[..., Any], filled: Callable[..., str]
) -> None:
    topic = filled([bytes(2000)] * 50)
    options = {
        "kafka__client__id": "me",
        "kafka__fetch__max__bytes": "10000",
        "kafka__max__partition__fetch__bytes": "3000",
        "kafka__isolation__level": "read_committed",
        "kafka__session__timeout__ms": "10000",
        "kafka__security__protocol": "PLAINTEXT",
        "kafkaConsumer__pollTimeoutMs": "30000",
        "fetchOffset__numRetries": "5",
        "fetchOffset__retryIntervalMs": "5",
        "partition__metadata__cache__ttl__ms": "1000",
        "groupIdPrefix": "mine",
        "failOnDataLoss": "false",
        "failOnCorruptBatch": "false",
        "maxOffsetsPerTrigger": "3",
        "minOffsetsPerTrigger": "1",
        "maxTriggerDelay": "1s",
        "maxBytesPerTrigger": "1k",
    }
    assert read(topic, **options).count() == 50


# -- batches: what is wrong is said ---------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfsets": "1"}, "did you mean startingOffsets?"),
        ({"startingOffsets": "latest"}, "startingOffsets=latest: such a batch would hold no rec"),
        ({"startingOffsets": "5", "endingOffsets": "2"}, "begin at offset 5 of"),
        ({"startingOffsets": "50"}, "check the starting and ending offsets"),
        ({"endingOffsets": "50"}, "offsets 10 to 49: the log does not reach so far"),
        ({"startingTimestamp": THEN + 99 * HOUR}, "has no record at or after"),
        ({"kafka__security__protocol": "SSL"}, "TLS and SASL are not supported yet"),
        ({"kafka__auto__offset__reset": "earliest"}, "a query says where it begins with starting"),
        ({"kafka__bootstrap__servers": "127.0.0.1:1", "kafka__default__api__timeout__ms": "1",
          "fetchOffset__retryIntervalMs": "1"},
         "cannot reach a broker at 127.0.0.1:1: connection refused; start one with `tidelog up`, "
         "or name another with kafka.bootstrap.servers"),
    ],
)  # fmt: skip
def test_mistakes(
    read: Callable[..., Any], filled: Callable[..., str], options: dict[str, Any], message: str
) -> None:
    topic = filled(hourly(10))
    with pytest.raises(Exception, match="SQLSTATE") as error:
        read(topic, **options).collect()
    assert message in str(error.value)


def test_an_unknown_topic(read: Callable[..., Any], topic: str) -> None:
    with pytest.raises(Exception, match="SQLSTATE") as error:
        read(topic).collect()
    assert f"there is no topic '{topic}'" in str(error.value)


def test_the_schema_cannot_be_chosen(spark: Any, broker: LocalBroker, topic: str) -> None:
    reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(Exception, match="the schema of a topic is fixed"):
        reader.option("subscribe", topic).schema("value string").load().collect()


def test_what_is_lost_stops_a_batch_or_is_left_out(
    read: Callable[..., Any], filled: Callable[..., str], broker: LocalBroker
) -> None:
    topic = filled(hourly(10))
    with Cluster(broker.bootstrap) as cluster:
        delete_records(cluster, {TopicPartition(topic, 0): 4})
    assert numbers(read(topic)) == list(range(4, 10))
    with pytest.raises(Exception, match=f"{topic}-0: offsets 1 to 3: retention or DeleteRecords"):
        read(topic, startingOffsets="1").collect()
    lenient = {"failOnDataLoss": "false", "endingOffsets": "99"}
    assert numbers(read(topic, startingOffsets="1", **lenient)) == list(range(4, 10))


def test_a_damaged_batch_stops_a_query_or_is_left_out(
    read: Callable[..., Any], broker: LocalBroker, topic: str
) -> None:
    make_topic(broker.bootstrap, topic)
    for first in (0, 10, 20):
        write_batch(broker.bootstrap, topic, [b"%08d" % i for i in range(first, first + 10)])
    damage(broker, topic, b"00000015")
    with pytest.raises(Exception, match=f"{topic}-0: offsets 10 to 19") as error:
        read(topic).collect()
    assert "CorruptBatch" in str(error.value)
    found = numbers(read(topic, failOnCorruptBatch="false"))
    assert found == [*range(10), *range(20, 30)]


def test_aborted_transactions_do_not_appear(spark: Any, tmp_path: Path) -> None:
    log = transactions()
    committed = [*range(4, 12), *range(18, 22)]
    planted = Planted(tmp_path, {0: log.data})
    with planted.broker as broker:
        reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", broker.bootstrap)
        reader = reader.option("subscribe", planted.topic)

        def offsets(level: str, **more: str) -> list[int]:
            frame = reader.options(**{"kafka.isolation.level": level}, **more).load()
            return sorted(row.offset for row in frame.select("offset").collect())

        assert offsets("read_committed") == committed
        # Cut into tasks that begin and end inside transactions.
        assert offsets("read_committed", maxRecordsPerPartition="3") == committed
        assert offsets("read_uncommitted") == [*range(16), *range(18, 22), *range(23, 27)]


# -- streams ----------------------------------------------------------------------------------


@pytest.fixture
def stream(spark: Any, broker: LocalBroker, topic: str, checkpoint: str) -> Callable[..., Any]:
    """``stream(rows, startingOffsets=...)``: starts a query that appends its values to rows."""

    def start(
        rows: list[Any],
        now: bool = True,
        of: LocalBroker = broker,
        trigger: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        reader = spark.readStream.format("tidelog")
        settings = {"kafka.bootstrap.servers": of.bootstrap, "subscribe": topic} | {
            name.replace("__", "."): value for name, value in options.items()
        }
        if "subscribePattern" in settings:
            del settings["subscribe"]
        frame = reader.options(**settings).load()

        def take(batch: Any, number: int) -> None:
            if settings.get("ranges"):
                rows.extend((row.partition, row.start, row.end) for row in batch.collect())
            else:
                rows.extend((number, int(row.value)) for row in batch.select("value").collect())

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        usual = {"availableNow": True} if now else {"processingTime": "0 seconds"}
        query = writer.trigger(**(trigger or usual)).start()
        if now:
            query.awaitTermination(100)
        return query

    return start


@pytest.mark.timeout(400)  # three queries start
def test_available_now_in_batches_and_again_from_the_checkpoint(
    stream: Callable[..., Any], broker: LocalBroker, topic: str
) -> None:
    fill(broker.bootstrap, topic, hourly(10), partitions=2)
    rows: list[tuple[int, int]] = []
    options = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "4",
        "kafka__group__id": topic,
    }
    query = stream(rows, **options)
    assert sorted(value for _, value in rows) == list(range(10))
    assert Counter(number for number, _ in rows) == {0: 4, 1: 4, 2: 2}
    source = query.lastProgress["sources"][0]
    assert source["endOffset"] == source["latestOffset"]

    # The group shows it to any tool, the last batch too.
    shown = json.loads(run("groups", "describe", topic, "-b", broker.bootstrap, "--json").out)
    assert _lag(shown) == 0

    fill(broker.bootstrap, topic, hourly(14)[10:], partitions=2, make=False)
    rows.clear()
    stream(rows, **options)
    assert sorted(value for _, value in rows) == list(range(10, 14))

    # Trigger.Once: everything in one batch, whatever the limits are.
    fill(broker.bootstrap, topic, hourly(24)[14:], partitions=2, make=False)
    rows.clear()
    stream(rows, trigger={"once": True}, **options)
    assert sorted(value for _, value in rows) == list(range(14, 24))
    assert len({number for number, _ in rows}) == 1


def _lag(shown: Any) -> int:
    group = shown[0] if isinstance(shown, list) else shown
    return group["lag"]  # type: ignore[no-any-return]


def test_a_stream_follows_its_topic(
    stream: Callable[..., Any], broker: LocalBroker, topic: str
) -> None:
    """From the end on, through new partitions and a restart of the broker."""
    with LocalBroker() as own:
        fill(own.bootstrap, topic, hourly(5))
        rows: list[tuple[int, int]] = []
        query = stream(rows, now=False, of=own)
        until(lambda: query.lastProgress is not None, "the first progress")
        fill(own.bootstrap, topic, hourly(8)[5:], make=False)
        until(lambda: len(rows) == 3 or query.exception(), "the first records")
        with Cluster(own.bootstrap) as cluster:
            grow_topic(cluster, topic, 2)
        fill(own.bootstrap, topic, [{**hourly(9)[8], "partition": 1}], make=False)
        until(lambda: len(rows) == 4 or query.exception(), "the new partition")
        own.restart()
        fill(own.bootstrap, topic, hourly(12)[9:], partitions=2, make=False)
        until(lambda: len(rows) == 7 or query.exception(), "what came after the restart")
        assert query.exception() is None
        query.stop()
    assert sorted(value for _, value in rows) == list(range(5, 12))


def test_a_topic_that_was_made_again_stops_the_stream(
    stream: Callable[..., Any], broker: LocalBroker, topic: str
) -> None:
    fill(broker.bootstrap, topic, hourly(5))
    rows: list[tuple[int, int]] = []
    stream(rows, startingOffsets="earliest")
    with Cluster(broker.bootstrap) as cluster:
        delete_topics(cluster, [topic])
    fill(broker.bootstrap, topic, hourly(20)[10:])
    with pytest.raises(Exception, match=f"{topic}-0: everything from offset 5 on: the topic was"):
        stream(rows)
    rows.clear()
    query = stream(rows, failOnDataLoss="false")
    assert sorted(value for _, value in rows) == list(range(10, 20))
    (lost,) = json.loads(query.recentProgress[0]["sources"][0]["endOffset"])["lost"]
    assert (lost["partition"], lost["from"], lost["until"]) == (0, 5, None)


def test_a_stream_of_ranges(stream: Callable[..., Any], broker: LocalBroker, topic: str) -> None:
    fill(broker.bootstrap, topic, hourly(10), partitions=2)
    rows: list[tuple[int, int, int]] = []
    stream(rows, startingOffsets="earliest", ranges="true", maxOffsetsPerTrigger="6")
    assert sorted(rows) == [(0, 0, 3), (0, 3, 5), (1, 0, 3), (1, 3, 5)]


def test_a_stream_has_no_end(stream: Callable[..., Any], broker: LocalBroker, topic: str) -> None:
    fill(broker.bootstrap, topic, hourly(1))
    with pytest.raises(Exception, match="endingOffsets: a stream has no end"):
        stream([], endingOffsets="5")


def test_times_are_utc(read: Callable[..., Any], filled: Callable[..., str], spark: Any) -> None:
    topic = filled(hourly(1))
    (row,) = read(topic, columns="timestamp").collect()
    assert row.timestamp.astimezone(UTC) == datetime.fromtimestamp(THEN // 1000, UTC)
