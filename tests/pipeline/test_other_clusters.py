"""Apache Kafka instead of tidelog: source, sink and loads, groups, and transactions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from interop.building import heavy
from interop.kafka39 import VERSIONS, Kafka39, any_kafka
from pipeline.lake.checking import check
from support.cluster import read_all
from support.filling import fill, make_topic
from support.stream_query import Query, numbered
from support.waiting import until

import tidelog.pipeline
from tidelog.client.admin import delete_topics
from tidelog.client.cluster import Cluster
from tidelog.client.groups import committed_offsets
from tidelog.client.partitions import delete_records
from tidelog.errors import ApiError
from tidelog.topic_partition import TopicPartition

pytestmark = heavy("java", "mvn")


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka(tmp_path: Path, spark: Any, version: str) -> None:
    """One Kafka for everything: it takes longer to start than the rest."""
    with any_kafka(version, tmp_path) as kafka:
        _plain(kafka, spark)
        _transactions(kafka, spark)
        _loads(kafka, spark, tmp_path)
        _sink(kafka, spark, tmp_path)
        _made_again(kafka)


def _plain(kafka: Kafka39, spark: Any) -> None:
    fill(kafka.bootstrap, "plain", numbered(0, 1000), partitions=3, compression__type="zstd")
    frame = (
        spark.read.format("tidelog")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", "plain")
        .option("maxRecordsPerPartition", "100")
        .load()
    )
    assert sorted(int(row.value) for row in frame.collect()) == list(range(1000))
    query = Query(
        kafka,
        subscribePattern="pl.in",
        startingOffsets="-10",
        kafka__group__id="mine",
        maxOffsetsPerTrigger="15",
    )
    assert len(query.values()) == 30
    with Cluster(kafka.bootstrap) as cluster:
        committed = committed_offsets(cluster, "mine")
        assert {tp: row.offset for tp, row in committed.items()} == query.offset.offsets
        delete_records(cluster, {TopicPartition("plain", 0): 50})
    with pytest.raises(ApiError, match="plain-0: offsets 5 to 49: retention or DeleteRecords"):
        offsets = json.dumps({"plain": {"0": 5, "1": -1, "2": -1}})
        Query(kafka, subscribe="plain", startingOffsets=offsets).trigger()


def _transactions(kafka: Kafka39, spark: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    for first, commit in ((0, True), (10, False), (20, True)):
        producer.begin_transaction()
        for i in range(first, first + 10):
            producer.produce("paid", b"%d" % i, partition=0)
        producer.flush()
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    options = {"subscribe": "paid", "startingOffsets": "earliest"}
    committed = Query(kafka, kafka__isolation__level="read_committed", **options)
    assert committed.values() == numbered(0, 10) + numbered(20, 30)
    everything = Query(kafka, maxOffsetsPerTrigger="7", **options)
    assert everything.values() == numbered(0, 30)
    # An open transaction is the end of what is committed, and no loss to one who read on.
    producer.begin_transaction()
    producer.produce("paid", b"30", partition=0)
    producer.flush()
    assert committed.trigger() is None
    assert everything.values() == numbered(30, 31)
    everything.options["kafka.isolation.level"] = "read_committed"
    everything.start()
    assert everything.trigger() is None
    producer.commit_transaction(60)
    assert committed.values() == numbered(30, 31)
    assert everything.values() == []
    frame = (
        spark.read.format("tidelog")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "paid")
        .load()
    )
    assert frame.count() == 21


def _loads(kafka: Kafka39, spark: Any, folder: Path) -> None:
    def load(topic: str, to: str, **options: Any) -> int | None:
        report = tidelog.pipeline.load(
            topic, folder / to, bootstrap=kafka.bootstrap, spark=spark, **options
        )
        return report.rows if report.number is not None else None

    fill(kafka.bootstrap, "load", numbered(0, 500), partitions=3, compression__type="zstd")
    assert load("load", "lake") == 500
    assert load("load", "lake") is None
    fill(kafka.bootstrap, "load", numbered(500, 700), partitions=3, make=False)
    live = tidelog.pipeline.read_lake(spark, folder / "lake", live=True)
    assert sorted(int(row.value) for row in live.collect()) == list(range(700))
    assert load("load", "lake") == 200
    assert check(folder / "lake", kafka.bootstrap, "load") == 700
    report = tidelog.pipeline.verify(folder / "lake")
    assert report.ok and report.total("rows") == report.total("offsets") == 700
    # 21 records were committed, 10 were not, and four markers are no records.
    assert load("paid", "committed", kafka={"isolation.level": "read_committed"}) == 21
    assert load("paid", "everything") == 31
    report = tidelog.pipeline.verify(folder / "committed")
    assert report.ok and (report.total("rows"), report.total("holes")) == (21, 14)
    assert tidelog.pipeline.verify(folder / "everything").ok


def _sink(kafka: Kafka39, spark: Any, folder: Path) -> None:
    servers = {"kafka.bootstrap.servers": kafka.bootstrap}
    make_topic(kafka.bootstrap, "sink", 3)
    make_topic(kafka.bootstrap, "copy", 2)
    rows = spark.range(1000).selectExpr("string(id) as key", "string(id) as value")
    writer = rows.repartition(2).write.format("tidelog").options(**servers, topic="sink")
    writer.mode("append").save()
    stream = spark.readStream.format("tidelog").options(**servers, subscribe="sink")
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("tidelog")
        .options(**servers, topic="copy", checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for topic, partitions in (("sink", 3), ("copy", 2)):
        found = read_all(kafka.bootstrap, topic, range(partitions))
        assert all(found.values())
        values = sorted(number for part in found.values() for _, number in part)
        assert values == list(range(1000)), topic


def _made_again(kafka: Kafka39) -> None:
    fill(kafka.bootstrap, "again", numbered(0, 5))
    query = Query(kafka, subscribe="again", startingOffsets="earliest")
    assert query.values() == numbered(0, 5)
    with Cluster(kafka.bootstrap) as cluster:
        delete_topics(cluster, ["again"])
    with pytest.raises(ApiError, match="again-0: everything from offset 5 on"):
        query.trigger()

    def made() -> bool:
        try:
            make_topic(kafka.bootstrap, "again")
        except ApiError as error:
            assert "marked for deletion" in str(error)
            return False
        return True

    until(made, "the end of the deletion")
    fill(kafka.bootstrap, "again", numbered(5, 15), make=False)
    with pytest.raises(ApiError, match="again-0: everything from offset 5 on: the topic was del"):
        query.trigger()
