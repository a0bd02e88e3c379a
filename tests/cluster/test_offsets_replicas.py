"""The topic of committed offsets, made by a consumer that was there before the other brokers."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from support.cluster import create_topic, in_sync
from support.waiting import until


def test_it_gets_its_replicas_when_brokers_come(new_cluster: Any) -> None:
    with new_cluster(1) as cluster:  # with min.insync.replicas=2, which one replica fulfils
        first = cluster.brokers[1]
        create_topic(first, "t", 1, replicas=1)
        settings = {"bootstrap.servers": first.bootstrap, "group.id": "early"}
        consumer = Consumer(settings)
        place = TopicPartition("t", 0, 7)

        def commits() -> bool:
            try:
                consumer.commit(offsets=[place], asynchronous=False)
            except KafkaException:  # librdkafka leaves trying again to us
                return False
            return True

        until(commits, "the offset is committed")
        assert in_sync(first, "__consumer_offsets", 1)
        cluster.add_broker()
        cluster.add_broker()
        until(lambda: in_sync(first, "__consumer_offsets", 3), "all have the offsets")
        found = consumer.committed([TopicPartition("t", 0)], timeout=60)
        assert [row.offset for row in found] == [7]
        consumer.close()
        for broker in cluster.brokers.values():
            assert "Traceback" not in broker.log, broker.log
