"""One data directory, two brokers: Kafka 3.9 and tidelog take it from each other."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from interop.building import heavy
from interop.kafka39 import Kafka39, ZooKeeper, znodes
from support.client_records import CODECS, EDGES, Row

from tidelog.testing import LocalBroker

pytestmark = heavy("java", "mvn")
TOPICS = {**dict.fromkeys(CODECS, 1), "edges": 1, "spread": 3}
SETTINGS = {"log.segment.bytes": 100_000, "log.index.interval.bytes": 1000}


class Found(NamedTuple):
    partition: int
    offset: int
    row: Row


def produce(bootstrap: str, label: str) -> None:
    """Records for every topic, by idempotent producers, in many batches."""
    for topic, partitions in TOPICS.items():
        codec = topic if topic in CODECS else "none"
        settings = {"compression.type": codec, "enable.idempotence": True, "linger.ms": 1}
        producer = Producer({"bootstrap.servers": bootstrap, **settings})
        rows = [Row(b"%d" % n, f"{label}-{n} ".encode() * 100) for n in range(300)]
        for n, row in enumerate(EDGES if topic == "edges" else rows):
            where = {"partition": n % partitions, "timestamp": row.timestamp}
            producer.produce(topic, row.value, row.key, headers=list(row.headers), **where)
            if n % 20 == 0:
                producer.flush()
        assert producer.flush(100) == 0


def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(t, n, 1) for t, n in TOPICS.items()]).values():
        future.result(100)


def read(bootstrap: str, isolation: str = "read_uncommitted") -> dict[str, list[Found]]:
    """Everything in the topics of the test, in order."""
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "isolation.level": isolation,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            **settings,
        }
    )
    everything: dict[str, list[Found]] = {}
    known = consumer.list_topics(timeout=100).topics
    for topic in sorted(name for name in known if not name.startswith("__")):
        partitions = list(known[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found, ended = [], 0
        while ended < len(partitions):
            message = consumer.poll(100)
            assert message is not None, f"{topic}: nothing more came"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended += 1
                continue
            row = Row(
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
                message.timestamp()[1],
            )
            found.append(Found(message.partition(), message.offset(), row))
        everything[topic] = sorted(found, key=lambda each: each[:2])
    consumer.close()
    return everything


def transact(bootstrap: str) -> None:
    """A committed and an aborted transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("transactions", end.__name__)
        producer.flush()
        end(30)


def goes_on(broker: LocalBroker, before: dict[str, list[Found]]) -> None:
    """New records follow the old ones, in a newer leader epoch, and survive a restart."""
    produce(broker.bootstrap, "tidelog")
    after = read(broker.bootstrap)
    for topic, old in before.items():
        assert [row for row in after[topic] if row in old] == old
    assert len(after["lz4"]) == len(before["lz4"]) + 300
    broker.restart()
    assert read(broker.bootstrap) == after


class Written(NamedTuple):
    data: Path
    rows: dict[str, list[Found]]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What Kafka 3.9 leaves behind after a clean stop, and after kill -9."""
    folder = tmp_path_factory.mktemp("kafka39")
    data, result = folder / "data", {}
    with (
        ZooKeeper(folder / "zookeeper") as keeper,
        Kafka39(folder / "kafka", data, keeper) as kafka,
    ):
        create(kafka.bootstrap)
        for how, end in (("stopped", kafka.stop), ("killed", kafka.kill)):
            produce(kafka.bootstrap, how)
            transact(kafka.bootstrap)
            rows = read(kafka.bootstrap)
            end()
            shutil.copytree(data, folder / how)
            result[how] = Written(folder / how, rows)
            if how == "stopped":
                kafka.start()
    return result


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_tidelog_on_a_directory_of_kafka(written, how):
    data, rows = written[how]
    assert len(list((data / "none-0").glob("*.log"))) > 3
    with LocalBroker(SETTINGS, data=data) as broker:
        assert read(broker.bootstrap) == rows
        goes_on(broker, rows)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_kafka_on_a_directory_of_tidelog_and_back(tmp_path, how):
    data = tmp_path / "data"
    with LocalBroker(SETTINGS, data=data) as broker:
        create(broker.bootstrap)
        produce(broker.bootstrap, "tidelog")
        rows = read(broker.bootstrap)
        assert len(list((data / "none-0").glob("*.log"))) > 3
        broker.stop() if how == "stopped" else broker.kill()
        with ZooKeeper(tmp_path / "zookeeper") as keeper:
            keeper.create(znodes(data / "tidelog-keeper.journal"))
            with Kafka39(tmp_path / "kafka", data, keeper) as kafka:
                assert read(kafka.bootstrap) == rows
                produce(kafka.bootstrap, "kafka")
                rows = read(kafka.bootstrap)
                kafka.stop()
                assert "ERROR" not in kafka.log
        broker.start()
        assert read(broker.bootstrap) == rows
        goes_on(broker, rows)
