"""A stream over the life of its topics: a real broker, and Spark's part played by ``Query``.

What Spark does with a reader is little and well known (``Query`` is all of it), so the many
things that can happen to a topic are tried here, and only the most important with Spark too.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.filling import fill, make_topic
from support.stream_query import Query, numbered, values_of
from support.waiting import until

from tidelog.client.admin import delete_topics, grow_topic
from tidelog.client.cluster import Cluster
from tidelog.client.groups import committed_offsets, set_offsets
from tidelog.client.partitions import delete_records, extents
from tidelog.errors import ApiError
from tidelog.pipeline.options import OptionError, SourceOptions
from tidelog.pipeline.planner import Logs
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.readers import BatchReader
from tidelog.pipeline.source import TidelogDataSource
from tidelog.testing import LocalBroker
from tidelog.topic_partition import TopicPartition


@pytest.fixture
def cluster(broker: LocalBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as client:
        yield client


@pytest.fixture
def write(broker: LocalBroker, topic: str) -> Callable[..., None]:
    def more(first: int, last: int, partition: int = 0, name: str = topic) -> None:
        rows = [{"value": value, "partition": partition} for value in numbered(first, last)]
        fill(broker.bootstrap, name, rows, make=False)

    return more


# -- batches ------------------------------------------------------------------------


def batch_reader(options: dict[str, str]) -> BatchReader:
    source = TidelogDataSource(options)
    return source.reader(source.schema())


def test_the_nearest_topic_is_named(broker: LocalBroker, topic: str) -> None:
    make_topic(broker.bootstrap, topic)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": f"{topic}x"}
    with pytest.raises(ApiError, match=f"no topic '{topic}x'; did you mean '{topic}'\\?"):
        batch_reader(options).partitions()


def test_what_only_a_stream_uses_is_told(
    broker: LocalBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's connector says so, too, and reads on."""
    make_topic(broker.bootstrap, topic)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    with caplog.at_level(logging.WARNING):
        assert batch_reader(options | {"maxbytespertrigger": "1k"}).partitions() == []
    assert "maxBytesPerTrigger is for streams: this batch is read without it" in caplog.text


# -- where to begin -----------------------------------------------------------------


def test_latest_is_where_the_query_was_started_first(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 5)
    query = Query(broker, subscribe=topic)
    assert query.trigger() == []  # an empty batch puts the position into the checkpoint
    write(5, 8)
    query.start()
    assert query.values() == numbered(5, 8)
    assert query.trigger() is None


def test_the_first_offset_stays_until_there_is_a_batch(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    query = Query(broker, subscribe=topic)
    first = query.reader.initialOffset()
    write(0, 3)
    assert query.reader.initialOffset() == first
    assert query.values() == numbered(0, 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, (0, 10)),
        ({"startingOffsets": "latest"}, (10, 10)),
        ({"startingOffsets": "+3"}, (3, 10)),
        ({"startingOffsets": "-3"}, (7, 10)),
        ({"startingOffsets": "4"}, (4, 10)),
        ({"startingOffsets": "-1h"}, (0, 10)),
        ({"startingOffsets": "@2100-01-01"}, (10, 10)),
        ({"startingTimestamp": "1000"}, (0, 10)),
    ],
)
def test_where_it_begins(
    broker: LocalBroker,
    topic: str,
    write: Callable[..., None],
    options: dict[str, str],
    expected: tuple[int, int],
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 10)
    assert Query(broker, subscribe=topic, **options).values() == numbered(*expected)


def test_a_restarted_query_ignores_where_it_should_begin(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 10)
    query = Query(broker, subscribe=topic, startingOffsets="8")
    assert query.values() == numbered(8, 10)
    write(10, 12)
    query.options["startingOffsets"] = "earliest"
    query.start()
    assert query.values() == numbered(10, 12)


def test_every_partition_must_be_named(broker: LocalBroker, topic: str) -> None:
    make_topic(broker.bootstrap, topic, 2)
    query = Query(broker, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 0, "7": 0}}))
    with pytest.raises(OptionError) as error:
        query.trigger()
    assert f"it leaves out {topic}-1 and it names {topic}-7" in str(error.value)
    assert "write -2 (earliest) where you do not care, or in a stream -1" in str(error.value)


def test_a_time_without_records(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 3)
    later = str(4_000_000_000_000)
    with pytest.raises(OptionError, match="no record at or after 4000000000000"):
        Query(broker, subscribe=topic, startingTimestamp=later).trigger()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    query = Query(broker, subscribe=topic, startingTimestamp=later, **strategy)
    assert query.values() == []
    write(3, 5)
    assert query.values() == numbered(3, 5)


def test_an_offset_that_is_not_there_yet(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 3)
    with pytest.raises(ApiError, match=f"{topic}-0: offsets 3 to 6: the log does not reach"):
        Query(broker, subscribe=topic, startingOffsets="7").trigger()
    query = Query(broker, subscribe=topic, startingOffsets="7", failOnDataLoss="false")
    assert query.values() == []
    write(3, 5)
    assert query.values() == numbered(3, 5)


def test_an_unknown_topic(strict_broker: LocalBroker) -> None:
    for options in ({"subscribe": "clicks"}, {"assign": '{"clicks":[0]}'}):
        with pytest.raises(ApiError, match="there is no topic 'clicks'"):
            Query(strict_broker, **options).trigger()
    make_topic(strict_broker.bootstrap, "views", 2)
    with pytest.raises(ApiError, match="'views' has no partition 5; it has partitions 0 to 1"):
        Query(strict_broker, assign='{"views":[0,5]}').trigger()


# -- limits ---------------------------------------------------------------------------


def test_at_most_so_many_offsets(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic, 2)
    write(0, 90, 0)
    write(0, 10, 1)
    query = Query(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    parts = query.trigger()
    assert [(part.partition, part.start, part.end) for part in parts or []] == [
        (0, 0, 18), (1, 0, 2),
    ]  # fmt: skip
    assert len(query.values()) == 80


def test_spark_may_ask_for_everything(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 90)
    query = Query(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    (part,) = query.trigger(ReadAllAvailable()) or []
    assert len(part) == 90


def test_at_most_so_many_bytes_in_a_batch_and_in_a_task(broker: LocalBroker, topic: str) -> None:
    rows = [bytes(10_000)] * 400
    fill(broker.bootstrap, topic, rows, compression__type="none", batch__size=20_000)
    query = Query(
        broker,
        subscribe=topic,
        startingOffsets="earliest",
        maxBytesPerTrigger="1m",
        maxBytesPerPartition="256k",
    )
    parts = query.trigger() or []
    assert 90 <= sum(map(len, parts)) <= 105
    assert len(parts) >= 4
    assert max(map(len, parts)) <= 27
    assert len(query.values()) == 400 - sum(map(len, parts))


def test_no_batch_before_there_is_enough_or_the_time_is_up(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 3)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    query = Query(broker, subscribe=topic, maxTriggerDelay="1h", **options)
    assert sum(map(len, query.trigger() or [])) == 3  # the first one does not wait
    write(3, 6)
    assert query.trigger() is None
    write(6, 13)
    assert query.values() == numbered(3, 13)

    query = Query(broker, subscribe=topic, maxTriggerDelay="0s", **options)
    query.trigger()
    write(13, 14)
    assert query.values() == numbered(13, 14)


# -- available now ----------------------------------------------------------------------


def test_available_now_reads_what_was_there_and_stops(
    broker: LocalBroker, cluster: Cluster, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 30)
    query = Query(
        broker,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="10",
        minOffsetsPerTrigger="7",  # not waited for: the query must end
    )
    query.available_now = True
    query.start()
    assert len((query.trigger() or [])[0]) == 10
    write(30, 40)
    grow_topic(cluster, topic, 2)
    assert query.values() == numbered(10, 30)
    query.start()
    assert query.values() == numbered(30, 40)
    assert query.offset.offsets[TopicPartition(topic, 1)] == 0


# -- what happens to topics ---------------------------------------------------------------


def test_new_partitions_are_read_from_their_beginning(
    broker: LocalBroker, cluster: Cluster, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    query = Query(broker, subscribe=topic, startingOffsets="latest")
    assert query.values() == []
    grow_topic(cluster, topic, 3)
    write(0, 4, 2)
    assert query.values() == numbered(0, 4)
    assert set(query.offset.offsets) == {TopicPartition(topic, i) for i in range(3)}
    query.start()
    assert query.trigger() is None


def test_assigned_partitions_are_read_and_no_others(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic, 3)
    for partition in range(3):
        write(10 * partition, 10 * partition + 5, partition)
    query = Query(broker, assign=json.dumps({topic: [0, 2]}), startingOffsets="earliest")
    assert sorted(query.values()) == sorted(numbered(0, 5) + numbered(20, 25))


def test_topics_of_a_pattern_are_found_while_the_query_runs(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, f"{topic}-one")
    query = Query(broker, subscribePattern=f"{topic}-.*", startingOffsets="latest")
    assert query.values() == []
    make_topic(broker.bootstrap, f"{topic}-two")
    make_topic(broker.bootstrap, f"other-{topic[:20]}")
    write(0, 4, name=f"{topic}-two")
    assert query.values() == numbered(0, 4)
    assert {tp.topic for tp in query.offset.offsets} == {f"{topic}-one", f"{topic}-two"}


def test_a_topic_that_was_made_again_is_recognised(
    broker: LocalBroker, cluster: Cluster, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 5)
    query = Query(broker, subscribe=topic, startingOffsets="earliest")
    assert query.values() == numbered(0, 5)
    delete_topics(cluster, [topic])
    make_topic(broker.bootstrap, topic)
    write(100, 110)  # more than before: the offsets alone would look fine
    with pytest.raises(ApiError, match=f"{topic}-0: everything from offset 5 on: the topic was"):
        query.trigger()
    query.options["failOnDataLoss"] = "false"
    query.start()
    assert query.values() == numbered(100, 110)
    query.start()
    write(110, 112)
    assert query.values() == numbered(110, 112)


def test_what_retention_has_deleted_is_named_exactly(
    broker: LocalBroker,
    cluster: Cluster,
    topic: str,
    write: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 50)
    query = Query(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    query.trigger()
    delete_records(cluster, {TopicPartition(topic, 0): 35})
    with pytest.raises(ApiError, match=f"{topic}-0: offsets 10 to 34: retention or DeleteRec"):
        query.trigger()
    query.options["failOnDataLoss"] = "false"
    query.start()
    with caplog.at_level(logging.WARNING):
        (part,) = query.trigger() or []
    assert (part.start, part.end) == (35, 45)
    assert f"data was lost: {topic}-0: offsets 10 to 34" in caplog.text
    (lost,) = query.offset.lost
    assert (lost.start, lost.end) == (10, 35)
    assert query.values() == numbered(45, 50)
    assert not query.offset.lost  # it belongs to the batch that lost it


def test_retention_overtakes_the_reader(topic: str) -> None:
    with LocalBroker({"log.retention.check.interval.ms": "50"}) as broker:
        configs = {"segment.bytes": "2000", "retention.bytes": "4000"}
        fill(broker.bootstrap, topic, numbered(0, 10), configs=configs)
        query = Query(broker, subscribe=topic, startingOffsets="earliest")
        assert query.values() == numbered(0, 10)
        fill(broker.bootstrap, topic, numbered(10, 3000), make=False, batch__size=500)

        def start() -> int:
            with Cluster(broker.bootstrap) as client:
                return extents(client, [TopicPartition(topic, 0)])[TopicPartition(topic, 0)].start

        until(lambda: start() > 1000, "retention")
        with pytest.raises(ApiError, match=f"{topic}-0: offsets 10 to [0-9]+: retention"):
            query.trigger()
        query.options["failOnDataLoss"] = "false"
        query.start()
        values = [int(value) for value in query.values()]
        assert values == list(range(values[0], 3000)) and values[0] > 1000


def test_what_goes_while_a_task_reads_is_told_by_the_task(
    broker: LocalBroker,
    cluster: Cluster,
    topic: str,
    write: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 20)
    query = Query(broker, subscribe=topic, startingOffsets="earliest")
    (part,) = query.trigger() or []
    delete_records(cluster, {TopicPartition(topic, 0): 8})
    with pytest.raises(ApiError, match=f"{topic}-0: offsets 0 to 7"):
        values_of(query.reader, part)
    query.options["failOnDataLoss"] = "false"
    query.start()
    with caplog.at_level(logging.WARNING):
        assert values_of(query.reader, part) == numbered(8, 20)
    assert f"{topic}-0: offsets 0 to 7" in caplog.text


def test_a_topic_that_is_gone(strict_broker: LocalBroker, topic: str) -> None:
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        fill(strict_broker.bootstrap, name, numbered(0, 3))
    query = Query(strict_broker, subscribe=",".join(names), startingOffsets="earliest")
    assert len(query.values()) == 6
    with Cluster(strict_broker.bootstrap) as cluster:
        delete_topics(cluster, names[:1])
    with pytest.raises(ApiError, match=f"{names[0]}-0: everything from offset 3 on: the topic or"):
        query.trigger()
    query.options["failOnDataLoss"] = "false"
    query.start()
    assert query.trigger() == []
    assert query.trigger() is None
    fill(strict_broker.bootstrap, names[1], numbered(3, 5), make=False)
    assert query.values() == numbered(3, 5)


def test_a_topic_that_the_user_leaves_out_is_not_lost(broker: LocalBroker, topic: str) -> None:
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        fill(broker.bootstrap, name, numbered(0, 3))
    query = Query(broker, subscribe=",".join(names), startingOffsets="earliest")
    query.values()
    query.options["subscribe"] = names[1]
    query.start()
    assert query.values() == []
    assert {tp.topic for tp in query.offset.offsets} == {names[1]}


def test_holes_of_compaction_are_not_loss(topic: str) -> None:
    settings = {"log.cleaner.backoff.ms": "50"}
    with LocalBroker(settings) as broker:
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": "2000",
            "min.cleanable.dirty.ratio": "0.01",
        }
        rows = [{"key": b"%d" % (i % 5), "value": b"%d" % i} for i in range(3000)]
        fill(broker.bootstrap, topic, rows, configs=configs, batch__size=500)

        def read() -> list[bytes]:
            return Query(broker, subscribe=topic, startingOffsets="earliest").values()

        until(lambda: len(read()) < 1000, "compaction")
        query = Query(broker, subscribe=topic, startingOffsets="0", maxOffsetsPerTrigger="400")
        numbers = [int(value) for value in query.values()]
        assert numbers == sorted(set(numbers)) and len(numbers) < 1000
        assert numbers[-5:] == list(range(2995, 3000))
        assert not query.offset.lost


def test_a_checkpoint_of_sparks_own_connector_is_continued(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 10)
    query = Query(broker, subscribe=topic)
    query.finished = {topic: {"0": 6}}
    assert query.values() == numbered(6, 10)
    assert query.offset.ids[topic] != bytes(16)


def test_a_batch_that_is_repeated_is_the_same_batch(
    broker: LocalBroker, cluster: Cluster, topic: str, write: Callable[..., None]
) -> None:
    """Spark plans it again from the checkpoint, before it asks for anything else."""
    make_topic(broker.bootstrap, topic)
    write(0, 20)
    query = Query(broker, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    query.trigger()
    start = query.finished
    delete_records(cluster, {TopicPartition(topic, 0): 20})
    write(20, 40)
    delete_records(cluster, {TopicPartition(topic, 0): 25})
    grow_topic(cluster, topic, 2)
    write(40, 45, 1)
    first = query.trigger()
    assert [str(part) for part in first or []] == [f"{topic}-0[25:40]", f"{topic}-1[0:5]"]
    write(45, 60, 1)
    query.start()
    again = [part.value for part in query.reader.partitions(start, query.finished)]
    assert again == first
    assert query.values() == numbered(45, 60)


def test_a_log_that_was_cut_behind_the_reader(
    broker: LocalBroker, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 5)
    query = Query(broker, subscribe=topic, startingOffsets="earliest")
    query.values()
    query.finished["topics"][topic]["offsets"]["0"] = 9  # as if the broker had lost 5 to 8
    with pytest.raises(ApiError, match=f"{topic}-0: offsets 5 to 8: they were read before and"):
        query.trigger()
    query.options["failOnDataLoss"] = "false"
    query.start()
    assert query.values() == []
    write(5, 7)
    assert query.values() == numbered(5, 7)


# -- groups ---------------------------------------------------------------------------------


def test_the_query_is_a_visible_group(
    broker: LocalBroker, cluster: Cluster, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    write(0, 30)
    query = Query(
        broker,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="10",
        kafka__group__id=topic,
    )

    def committed() -> int:
        return committed_offsets(cluster, topic)[TopicPartition(topic, 0)].offset

    query.trigger()
    assert committed() == 0  # the batch is not finished before the next one is asked for
    query.trigger()
    assert committed() == 10
    query.values()
    assert committed() == 30


def test_begin_where_a_group_has_committed(
    broker: LocalBroker, cluster: Cluster, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic, 2)
    write(0, 10, 0)
    write(10, 15, 1)
    set_offsets(cluster, topic, {TopicPartition(topic, 0): 7})
    options = {"subscribe": topic, "startingOffsets": "group", "kafka__group__id": topic}
    # What the group has never committed is read from its beginning.
    assert sorted(Query(broker, **options).values()) == sorted(numbered(7, 15))
    # The checkpoint is the truth: a query of its own begins there again, from what it says now.
    set_offsets(cluster, topic, {TopicPartition(topic, 0): 9, TopicPartition(topic, 1): 5})
    batch = BatchReader(
        SourceOptions.parse(
            {"kafka.bootstrap.servers": broker.bootstrap}
            | {name.replace("__", "."): value for name, value in options.items()}
        ).for_batch()
    )
    (part,) = batch.partitions()
    assert values_of(batch, part.value) == numbered(9, 10)


def test_a_group_that_cannot_be_committed_does_not_stop_the_query(
    broker: LocalBroker,
    topic: str,
    write: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from confluent_kafka import Consumer

    make_topic(broker.bootstrap, topic)
    write(0, 5)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "an assignment")
    try:
        query = Query(broker, subscribe=topic, startingOffsets="earliest", kafka__group__id=topic)
        with caplog.at_level(logging.WARNING):
            assert query.values() == numbered(0, 5)
        assert f"could not commit the offsets of group {topic!r}" in caplog.text
    finally:
        consumer.close()


# -- brokers that go away ---------------------------------------------------------------------


def test_a_broker_that_restarts_is_waited_for(topic: str) -> None:
    with LocalBroker() as broker:
        fill(broker.bootstrap, topic, numbered(0, 5))
        query = Query(broker, subscribe=topic, startingOffsets="earliest", kafka__group__id="g")
        assert query.values() == numbered(0, 5)
        broker.restart()
        fill(broker.bootstrap, topic, numbered(5, 8), make=False)
        assert query.values() == numbered(5, 8)


def test_no_broker_is_an_error_when_the_time_is_up(topic: str) -> None:
    with LocalBroker() as broker:
        fill(broker.bootstrap, topic, numbered(0, 5))
        query = Query(broker, subscribe=topic, kafka__default__api__timeout__ms="200")
        query.trigger()
        broker.kill()
        with pytest.raises(ApiError, match=r"cannot reach a broker at|closed the connection"):
            query.trigger()


# -- sizes --------------------------------------------------------------------------------------


def test_sizes_are_sampled_where_log_directories_are_not_shown(
    broker: LocalBroker, topic: str
) -> None:
    fill(broker.bootstrap, topic, [bytes(5_000)] * 200, compression__type="none")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    tp = TopicPartition(topic, 0)
    found = []
    for known in (True, False):
        with contextlib.closing(Positions(SourceOptions.parse(options))) as positions:
            logs = positions.logs()
            # Whoever knows no leader can ask nobody for the size of the log.
            logs = Logs(logs.ids, logs.extents, logs.leaders if known else {})
            found.append(positions.sizes(logs, {tp: 0})[tp])
    on_disk, sampled = found
    assert 5000 < on_disk < 5200 and 5000 < sampled < 5200


def test_the_list_of_partitions_can_be_kept_for_a_while(
    broker: LocalBroker, cluster: Cluster, topic: str, write: Callable[..., None]
) -> None:
    make_topic(broker.bootstrap, topic)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    kept = Query(broker, partition__metadata__cache__ttl__ms="3600000", **options)
    fresh = Query(broker, **options)
    assert kept.values() == fresh.values() == []
    grow_topic(cluster, topic, 2)
    write(0, 3, 1)
    assert kept.values() == []
    assert fresh.values() == numbered(0, 3)


def test_a_thousand_partitions(broker: LocalBroker, topic: str, write: Callable[..., None]) -> None:
    make_topic(broker.bootstrap, topic, 1000)
    write(0, 3, 999)
    query = Query(broker, subscribe=topic, startingOffsets="earliest")
    assert query.values() == numbered(0, 3)
    assert len(query.offset.offsets) == 1000
