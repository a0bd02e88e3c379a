"""The same log, compacted by Kafka 3.9 and by tidelog: the same batches are left."""

import shutil

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from interop.building import heavy
from interop.kafka39 import Kafka39, ZooKeeper
from support.client_records import CODECS
from support.compaction_model import described
from support.log import NOW, generator, log_config, open_in
from support.waiting import until

from tidelog.log.checkpoints import CLEANER, read_checkpoint
from tidelog.log.cleaner_jobs import clean_log
from tidelog.wire.batch import read_header

pytestmark = heavy("java", "mvn")
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "30000",
    "min.cleanable.dirty.ratio": "0.01",
}


def produce(bootstrap):
    """Every codec, tombstones, transactions that commit and that abort, several producers."""
    rng = generator("kafka compacts")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic("table", 1, 1, config=CONFIG)
    admin.create_topics([topic])["table"].result(100)

    def send(producer, count):
        for _ in range(count):
            key = f"key-{rng.randrange(60)}" * rng.choice((1, 1, 12))
            value = None if rng.random() < 0.15 else rng.randbytes(rng.choice((10, 200))).hex()
            producer.produce(
                "table", value, key, headers={"h": "x"} if rng.random() < 0.2 else None
            )

    for again in range(2):
        for codec in CODECS:
            settings = {"compression.type": codec, "linger.ms": 5, "bootstrap.servers": bootstrap}
            plain = Producer(settings)
            once = Producer({**settings, "enable.idempotence": True})
            transactional = Producer({**settings, "transactional.id": f"{codec}-{again}"})
            transactional.init_transactions(60)
            for _ in range(4):
                for producer in (plain, once):
                    send(producer, 30)
                    assert producer.flush(100) == 0
                transactional.begin_transaction()
                send(transactional, 20)
                end = rng.choice(("commit_transaction", "abort_transaction"))
                getattr(transactional, end)(60)


def batches(directory):
    """What is left, as tidelog and Kafka must agree on it; times of horizons aside."""
    log = open_in(directory)
    found = []
    for batch in log.batches(0):
        base, last, records, producer, codec, horizon = described(batch)
        flags = read_header(batch).attributes & 0x38
        found.append((base, last, records, producer, codec, horizon is not None, flags))
    return found


def test_kafka_leaves_the_same(tmp_path):
    data, ours = tmp_path / "data", tmp_path / "ours" / "table-0"
    with ZooKeeper(tmp_path / "zookeeper") as keeper:
        kafka = Kafka39(tmp_path / "kafka", data, keeper)
        kafka._properties |= {"log.cleaner.enable": "false", "log.cleaner.backoff.ms": 200}
        with kafka:
            produce(kafka.bootstrap)
            kafka.stop()
            shutil.copytree(data / "table-0", ours)
            kafka._properties["log.cleaner.enable"] = "true"
            kafka.start()
            active = max(int(path.stem) for path in ours.glob("*.log"))
            until(
                lambda: read_checkpoint(str(data), CLEANER).get(("table", 0), 0) >= active,
                "Kafka's compaction",
            )
            kafka.stop()
    log = open_in(ours, log_config(cleanup_policy="compact", segment_bytes=30_000))
    log.high_watermark = log.end_offset
    before = len(batches(ours))
    assert clean_log(log, NOW * 2) is not None
    log.close()
    expected = batches(data / "table-0")
    assert batches(ours) == expected
    assert len(expected) < before
    assert {row[5] for row in expected} == {True, False}
    assert any(not row[2] for row in expected)
