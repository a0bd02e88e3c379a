"""Ranges read from Apache Kafka, beside what librdkafka reads: codecs, transactions, compaction,
deletion, and a broker that is killed in the middle."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from interop.building import heavy
from interop.kafka39 import VERSIONS, Kafka39, any_kafka
from support.client_records import CODECS
from support.filling import fill, make_topic
from support.waiting import until

from tidelog.client import admin, partitions
from tidelog.client.cluster import Cluster
from tidelog.client.offsets import Extent
from tidelog.errors import ApiError
from tidelog.new_topic import NewTopic
from tidelog.pipeline.loss import DataLoss
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import ALL_WITH_HEADERS, Columns, OffsetRange
from tidelog.pipeline.reading import read_range
from tidelog.pipeline.schema import arrow_schema
from tidelog.topic_partition import TopicPartition as Place

pytestmark = heavy("java", "mvn")
SMALL = {"batch__size": 16_384}  # a segment of the test's Kafka has 100 kB
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "file.delete.delay.ms": "100",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka(tmp_path: Path, version: str) -> None:
    """One Kafka for everything: it takes longer to start than the rest."""
    with any_kafka(version, tmp_path) as kafka:
        check_codecs(kafka.bootstrap)
        check_transactions(kafka.bootstrap)
        check_compaction(kafka.bootstrap)
        check_kill(kafka)
        check_deletion(kafka.bootstrap)


def whole(bootstrap: str, topic: str) -> OffsetRange:
    """All that there is now of a topic with one partition."""
    with Cluster(bootstrap) as cluster:
        log = extent(cluster, topic)
        return OffsetRange(topic, 0, log.start, log.end, cluster.topics([topic])[topic].topic_id)


def extent(cluster: Cluster, topic: str) -> Extent:
    return partitions.extents(cluster, [Place(topic, 0)])[Place(topic, 0)]


def same_as_librdkafka(bootstrap: str, part: OffsetRange, *, committed: bool = False) -> int:
    """Both read the same; how many records that is."""
    client = ClientOptions(bootstrap, read_committed=committed, partition_max_bytes=20_000)
    found = pa.Table.from_batches(
        read_range(client, part, ALL_WITH_HEADERS), arrow_schema(ALL_WITH_HEADERS)
    )
    found.validate(full=True)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(part.topic, 0, part.start)])
    wanted = []
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error():  # the end
            break
        kind, time = message.timestamp()
        headers = [{"key": key, "value": value} for key, value in message.headers() or ()]
        wanted.append((message.offset(), message.key(), message.value(), time, kind - 1, headers))
    consumer.close()
    times = [time // 1000 for time in found["timestamp"].cast(pa.int64()).to_pylist()]
    columns = (found[name].to_pylist() for name in ("offset", "key", "value"))
    headers = [row or [] for row in found["headers"].to_pylist()]
    ours = zip(*columns, times, found["timestampType"].to_pylist(), headers, strict=True)
    assert list(ours) == [row for row in wanted if row[0] < part.end]
    return len(wanted)


def records(count: int) -> list[dict[str, object]]:
    return [
        {
            "value": None if i % 17 == 0 else b"value %d " % i * (i % 60),
            "key": None if i % 3 == 0 else b"key %d" % i,
            "headers": [("a", b"%d" % i), ("b", None)] if i % 5 == 0 else None,
        }
        for i in range(count)
    ]


def check_codecs(bootstrap: str) -> None:
    for codec in CODECS:
        topic = f"codec-{codec}"
        configs = {"message.timestamp.type": "LogAppendTime"} if codec == "lz4" else None
        fill(bootstrap, topic, records(2000), configs=configs, compression__type=codec, **SMALL)
        assert same_as_librdkafka(bootstrap, whole(bootstrap, topic)) == 2000


def check_transactions(bootstrap: str) -> None:
    topic = make_topic(bootstrap, "paid")
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    outer, inner = (Producer({**settings, "transactional.id": name}) for name in ("o", "i"))
    outer.init_transactions(60)
    inner.init_transactions(60)
    seen = 0
    for number in range(12):
        # One transaction inside another, each of them committed or not.
        outer.begin_transaction()
        _send(outer, topic, number)
        inner.begin_transaction()
        _send(inner, topic, number)
        for producer, commit in ((inner, number % 3 == 0), (outer, number % 2 == 0)):
            if commit:
                producer.commit_transaction(60)
                seen += 7
            else:
                producer.abort_transaction(60)
    part = whole(bootstrap, topic)
    assert same_as_librdkafka(bootstrap, part, committed=True) == seen
    assert same_as_librdkafka(bootstrap, part) == 24 * 7
    # A range that begins inside a transaction that was aborted.
    assert same_as_librdkafka(bootstrap, part.between(12, part.end), committed=True) > 0


def _send(producer: Producer, topic: str, number: int) -> None:
    for i in range(7):
        producer.produce(topic, f"{number}-{i}", partition=0)
    producer.flush()


def check_compaction(bootstrap: str) -> None:
    """Kafka's own cleaner leaves holes, and ranges may end in them."""
    topic = make_topic(bootstrap, "table", configs=COMPACTED)
    for again in range(4):
        rows = [{"key": b"k%d" % (i % 50), "value": b"%d" % again} for i in range(500)]
        fill(bootstrap, topic, rows, make=False, compression__type="zstd")

    def cleaned() -> bool:
        fill(bootstrap, topic, [{"key": b"new", "value": b"segment"}], make=False)
        client = ClientOptions(bootstrap)
        found = read_range(client, whole(bootstrap, topic), Columns(("offset",)))
        return sum(batch.num_rows for batch in found) < 300

    until(cleaned, "Kafka's cleaner")
    part = whole(bootstrap, topic)
    assert same_as_librdkafka(bootstrap, part) < 300
    for start in range(0, part.end, 97):
        client = ClientOptions(bootstrap)
        inside = part.between(start, min(start + 100, part.end))
        for batch in read_range(client, inside, Columns(("offset",))):
            assert all(start <= offset < inside.end for offset in batch["offset"].to_pylist())


def check_deletion(bootstrap: str) -> None:
    topic = fill(bootstrap, "gone", [b"%d" % i for i in range(100)])
    part = whole(bootstrap, topic)
    with Cluster(bootstrap) as cluster:
        partitions.delete_records(cluster, {Place(topic, 0): 40})
        with pytest.raises(DataLoss) as raised:
            list(read_range(ClientOptions(bootstrap), part))
        assert raised.value.lost == part.between(0, 40)
        admin.delete_topics(cluster, [topic])

        def made() -> bool:
            return not isinstance(
                admin.create_topics(cluster, [NewTopic(topic, 1)])[topic], ApiError
            )

        until(made, "the end of the deletion")
    fill(bootstrap, topic, [b"other"] * 100, make=False)
    with pytest.raises(DataLoss, match="deleted and made again") as raised:
        list(read_range(ClientOptions(bootstrap), part))
    assert raised.value.lost == part


def check_kill(kafka: Kafka39) -> None:
    topic = fill(kafka.bootstrap, "killed", [b"x" * 200] * 50_000, compression__type="lz4", **SMALL)
    client = ClientOptions(kafka.bootstrap, partition_max_bytes=20_000)
    found: list[int] = []
    alive = True
    part = whole(kafka.bootstrap, topic)
    for batch in read_range(client, part, Columns(("offset",)), target_bytes=20_000):
        found += batch["offset"].to_pylist()
        if alive and len(found) > 10_000:
            alive = False
            kafka.kill()
            until(lambda: restarted(kafka), "the end of the old session")
    assert not alive
    assert found == list(range(50_000))


def restarted(kafka: Kafka39) -> bool:
    """ZooKeeper takes a while to forget the one that was killed, and refuses it until then."""
    try:
        kafka.start()
    except AssertionError:
        kafka.kill()
        return False
    return True
