"""Kafka 3.9 and tidelog read each other's groups and offsets: the records are the same."""

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from interop.building import heavy
from interop.kafka39 import Kafka39, ZooKeeper, znodes
from support.waiting import until

from tidelog.testing import LocalBroker

pytestmark = heavy("java", "mvn")
TOPIC, PARTITIONS = "shared", 3


def consume(bootstrap, group, count, instance=""):
    """A consumer that has read and committed so many records, and is still a member."""
    settings = {"group.instance.id": instance} if instance else {}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **settings,
        }
    )
    consumer.subscribe([TOPIC])
    for _ in range(count):
        message = until(lambda: consumer.poll(1), "a record")
        assert not message.error(), message.error()
        place = TopicPartition(TOPIC, message.partition(), message.offset() + 1, f"{count}")
        consumer.commit(offsets=[place], asynchronous=False)
    return consumer


def committed(bootstrap, group):
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    places = [TopicPartition(TOPIC, i) for i in range(PARTITIONS)]
    found = reader.committed(places, timeout=60)
    reader.close()
    return [(place.offset, place.metadata) for place in found]


def describe(bootstrap, group):
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = admin.describe_consumer_groups([group])[group].result(60)
    members = [
        (m.member_id, m.group_instance_id, m.client_id, sorted(str(p) for p in partitions_of(m)))
        for m in found.members
    ]
    return found.state.name, found.partition_assignor, members


def partitions_of(member):
    return [(p.topic, p.partition) for p in member.assignment.topic_partitions]


def test_groups_and_offsets_of_each_other(tmp_path):
    data = tmp_path / "data"
    with LocalBroker({"offsets.topic.num.partitions": 2}, data=data) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for i in range(60):
            producer.produce(TOPIC, b"%d" % i, partition=i % PARTITIONS)
        assert producer.flush(60) == 0
        consume(broker.bootstrap, "done", 20).close()
        still_there = consume(broker.bootstrap, "at-work", 10, instance="one")
        offsets = {group: committed(broker.bootstrap, group) for group in ("done", "at-work")}
        described = describe(broker.bootstrap, "at-work")
        assert described[0] == "STABLE"
        broker.stop()
        with ZooKeeper(tmp_path / "zookeeper") as keeper:
            keeper.create(znodes(data / "tidelog-keeper.journal"))
            with Kafka39(tmp_path / "kafka", data, keeper) as kafka:
                assert committed(kafka.bootstrap, "done") == offsets["done"]
                assert committed(kafka.bootstrap, "at-work") == offsets["at-work"]
                assert describe(kafka.bootstrap, "at-work") == described
                consume(kafka.bootstrap, "done", 30).close()
                offsets["done"] = committed(kafka.bootstrap, "done")
                their_member = consume(kafka.bootstrap, "theirs", 5, instance="two")
                described = describe(kafka.bootstrap, "theirs")
                kafka.stop()
                assert "ERROR" not in kafka.log
        broker.start()
        assert committed(broker.bootstrap, "done") == offsets["done"]
        assert committed(broker.bootstrap, "at-work") == offsets["at-work"]
        assert describe(broker.bootstrap, "theirs") == described
        still_there.close()
        their_member.close()
