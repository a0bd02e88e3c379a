"""The source on Apache Kafka: batches, streams, groups, and transactions, which it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clients.building import heavy
from clients.kafka39 import Kafka39, ZooKeeper
from confluent_kafka import Producer
from filling import fill, make_topic
from stream_query import Query, numbered
from waiting import until

from tidelog.client.admin import delete_topics
from tidelog.client.cluster import Cluster, TopicPartition
from tidelog.client.groups import committed_offsets
from tidelog.client.partitions import delete_records
from tidelog.errors import ApiError

pytestmark = heavy("java", "mvn")


def test_kafka_39(tmp_path: Path, spark: Any) -> None:
    """One Kafka for everything: it takes longer to start than the rest."""
    with (
        ZooKeeper(tmp_path / "zookeeper") as keeper,
        Kafka39(tmp_path / "kafka", tmp_path / "data", keeper) as kafka,
    ):
        _plain(kafka, spark)
        _transactions(kafka, spark)
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
        assert {place: row.offset for place, row in committed.items()} == query.offset.offsets
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
