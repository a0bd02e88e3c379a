"""MirrorMaker 2 between tidelog and Kafka, both ways at once; it is killed with -9 on the way."""

import itertools
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from interop.building import heavy
from interop.connect import properties
from interop.java import NEWEST, jars, java
from interop.kafka39 import any_kafka
from interop.processes import Program
from interop.reading import read_topic
from interop.recording import served
from support.client_records import CODECS, EDGES
from support.waiting import until

pytestmark = heavy("java", "mvn")
PATIENCE = 120
COUNT = 300  # records in every partition, at first
ORDERS = {"retention.ms": "259200000", "max.message.bytes": "2000000", "segment.ms": "7200000"}
TABLE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.9",
    "segment.bytes": "9000000",
}
EVERY_SECOND = (
    *("refresh.topics", "refresh.groups", "sync.topic.configs", "sync.group.offsets"),
    *("emit.checkpoints", "emit.heartbeats"),
)
TOPICS = (
    *("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"),
    *("offset.storage", "status.storage", "config.storage"),
)


class Side:
    """One of the two clusters: its topics are known as NAME.TOPIC on the other."""

    def __init__(self, name, bootstrap):
        self.name, self.bootstrap = name, bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic, partitions, config):
        made = self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
        made[topic].result(PATIENCE)

    def write(self, topic, label, count, partitions):
        """Records for every partition, with every codec; after them, all that is unusual."""
        for number, codec in enumerate(CODECS):
            producer = Producer(
                {"bootstrap.servers": self.bootstrap, "compression.type": codec, "linger.ms": 5}
            )
            mine = range(number, count, len(CODECS))
            for partition, i in itertools.product(range(partitions), mine):
                value = f"{label} {i} {self.name} " * 10
                producer.produce(
                    topic, value, f"{label}-{i}", partition, headers={"n": str(i).encode()}
                )
            assert producer.flush(PATIENCE) == 0

    def write_edges(self, topic):
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for row in EDGES:
            more = {"headers": list(row.headers), "timestamp": row.timestamp}
            producer.produce(topic, row.value, row.key, 0, **more)
        assert producer.flush(PATIENCE) == 0

    def configs(self, topic):
        """The settings that were made for the topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (found,) = self.admin.describe_configs([resource]).values()
        entries = found.result(PATIENCE).values()
        return {entry.name: entry.value for entry in entries if entry.source == OF_TOPIC}

    def alter(self, topic, **changes):
        """Set, or delete what is None."""
        entries = [
            ConfigEntry(
                name.replace("_", "."),
                value or "",
                incremental_operation=AlterConfigOpType.SET if value else AlterConfigOpType.DELETE,
            )
            for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        (done,) = self.admin.incremental_alter_configs([resource]).values()
        done.result(PATIENCE)

    def consumer(self, group):
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )

    def consume(self, group, topic, offsets):
        """A group reads everything and commits these offsets."""
        consumer = self.consumer(group)
        consumer.subscribe([topic])
        until(lambda: consumer.consume(10, 0.5), f"records of {topic}", PATIENCE)
        places = [TopicPartition(topic, i, offset) for i, offset in enumerate(offsets)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def committed(self, group, topic, partitions):
        consumer = self.consumer(group)
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        found = consumer.committed(places, PATIENCE)
        consumer.close()
        return [place.offset for place in found]


OF_TOPIC = 1  # DescribeConfigs: DYNAMIC_TOPIC_CONFIG


@pytest.fixture(scope="module", params=["3.9", "4.3"])
def sides(request, tmp_path_factory):
    with served() as broker, any_kafka(request.param, tmp_path_factory.mktemp("kafka")) as kafka:
        yield Side("tide", broker.bootstrap), Side("kafka", kafka.bootstrap)


@pytest.fixture
def mirror(sides, tmp_path):
    settings = {
        "clusters": ",".join(side.name for side in sides),
        **{f"{side.name}.bootstrap.servers": side.bootstrap for side in sides},
        **{f"{name}.replication.factor": 1 for name in TOPICS},
        **{f"{name}.interval.seconds": 1 for name in EVERY_SECOND},
        "replication.factor": 1,
        "sync.group.offsets.enabled": "true",
        "offset.lag.max": 0,
        "tasks.max": 2,
        # It is killed; the next one waits no longer than it must.
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        "scheduled.rebalance.max.delay.ms": 0,
        "offset.flush.interval.ms": 500,
    }
    for one, other in (sides, sides[::-1]):
        flow = f"{one.name}->{other.name}"
        settings[f"{flow}.enabled"] = "true"
        settings[f"{flow}.topics"] = "orders, table"
        settings[f"{flow}.groups"] = "readers"
    config = properties(tmp_path / "mirror.properties", settings)
    command = java("-cp", jars(NEWEST), "org.apache.kafka.connect.mirror.MirrorMaker", config)
    with Program("mirror", command, tmp_path) as program:
        yield program


@pytest.fixture
def reaches(mirror):
    """Wait until a condition holds for both ways; the mirror must live meanwhile."""

    def wait(what, condition, ways):
        for one, other in ways:

            def holds(one=one, other=other):
                mirror.check()
                return condition(one, other)

            try:
                until(holds, f"{one.name} to {other.name}: {what}", PATIENCE)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{mirror.log[-6000:]}") from None

    return wait


def same(one, other, topic, seen=list):
    """The topic and its mirror have the same records, offset by offset."""
    there = f"{one.name}.{topic}"
    if there not in other.admin.list_topics(timeout=PATIENCE).topics:
        return False
    return seen(read_topic(other.bootstrap, there)) == seen(read_topic(one.bootstrap, topic))


def once(records):
    """Without offsets, and each once: a mirror that was killed may have sent some twice."""
    return list(dict.fromkeys(record._replace(offset=0) for record in records))


def test_both_ways(sides, mirror, reaches):
    ways = (sides, sides[::-1])
    for side in sides:
        side.create("orders", 2, ORDERS)
        side.create("table", 1, TABLE)
        side.write("orders", "a", COUNT, 2)
        side.write_edges("orders")
        side.write("table", "t", COUNT, 1)
    for topic in ("orders", "table"):
        reaches(f"records of {topic}", partial(same, topic=topic), ways)

    # Settings, as they are and as they change.
    for one, other in ways:
        for topic, config in (("orders", ORDERS), ("table", TABLE)):
            assert other.configs(f"{one.name}.{topic}") == config
        one.alter("orders", retention_ms="345600000", max_message_bytes=None)
    changed = {"retention.ms": "345600000", "segment.ms": ORDERS["segment.ms"]}
    reaches("settings", lambda one, other: other.configs(f"{one.name}.orders") == changed, ways)

    # Offsets of a group: all of partition 0 was read, and half of partition 1.
    ends = COUNT + len(EDGES), COUNT // 2
    for side in sides:
        side.consume("readers", "orders", ends)

    def translated(one, other):
        first, second = other.committed("readers", f"{one.name}.orders", 2)
        return first == ends[0] and 0 <= second <= ends[1]

    reaches("offsets of the group", translated, ways)

    # One more partition, and records while it works and while it is dead.
    for side in sides:
        side.admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(PATIENCE)
        side.write("orders", "b", COUNT, 3)
    mirror.kill()
    for side in sides:
        side.write("orders", "c", COUNT, 3)
        side.write("table", "u", COUNT, 1)
    mirror.start()
    for topic in ("orders", "table"):
        reaches(f"records of {topic}, again", partial(same, topic=topic, seen=once), ways)
    assert "ERROR" not in mirror.log
