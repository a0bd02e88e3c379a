"""kafkajs: producer and admin.  Its consumer needs groups."""

import pytest
from interop.kafkajs_driver import KafkaJsError, kafkajs, message
from interop.peers import Confluent, KafkaJs, needs_kafkajs
from support.client_records import (
    CODECS,
    EDGES,
    MINUTE,
    NOW,
    Row,
    batches_on_disk,
    codecs_on_disk,
    compressible,
)

pytestmark = needs_kafkajs
PEER = KafkaJs()
TOPIC_RESOURCE = 2


def read(broker, topic, count):
    return Confluent().read(broker.bootstrap, topic, count)


def send(topic, *rows, **more):
    return ["producer", "send", {"topic": topic, "messages": [message(r) for r in rows], **more}]


@pytest.mark.parametrize("codec", CODECS)
def test_codec(broker, topic, codec):
    PEER.write(broker.bootstrap, topic, compressible(), codec)
    assert codecs_on_disk(broker, topic) == {codec}
    assert read(broker, topic, 3) == compressible()


def test_nulls_empties_and_headers(broker, topic):
    rows = [*filter(PEER.can_write, EDGES), Row(b"k", b"v", (("h", bytes(range(256))),))]
    PEER.write(broker.bootstrap, topic, rows)
    assert read(broker, topic, len(rows)) == rows


@pytest.mark.parametrize("idempotent", [True, False])
def test_idempotent_producer(broker, topic, idempotent):
    sends = [send(topic, Row(None, b"%d" % i), acks=-1) for i in range(3)]
    results = kafkajs(broker.bootstrap, *sends, producer={"idempotent": idempotent})
    assert [result[0]["baseOffset"] for result in results] == ["0", "1", "2"]
    found = batches_on_disk(broker, topic)
    assert [batch.base_sequence for batch in found] == [0, 1, 2] if idempotent else [0, 0, 0]
    assert all((batch.producer_id >= 0) == idempotent for batch in found)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(broker, topic, acks):
    kafkajs(broker.bootstrap, send(topic, Row(None, b"x"), acks=acks))
    assert read(broker, topic, 1)[0].value == b"x"


@pytest.mark.parametrize(("size", "limit"), [(900_000, None), (5_000_000, "6000000")])
def test_big_message(broker, topic, size, limit):
    config = [{"name": "max.message.bytes", "value": limit}] if limit else []
    new = {"topic": topic, "configEntries": config}
    row = Row(None, b"x" * size)
    kafkajs(broker.bootstrap, ["admin", "createTopics", {"topics": [new]}], send(topic, row))
    assert read(broker, topic, 1) == [row]


def test_a_message_that_is_too_large(broker, topic):
    with pytest.raises(KafkaJsError) as failed:
        kafkajs(broker.bootstrap, send(topic, Row(None, b"x" * 2_000_000)))
    assert failed.value.type == "MESSAGE_TOO_LARGE"


def test_topics_are_not_created_if_client_or_broker_say_no(broker, strict_broker, topic):
    no = {"allowAutoTopicCreation": False, "retry": {"retries": 0}}
    yes = {"allowAutoTopicCreation": True, "retry": {"retries": 0}}
    for bootstrap, producer in ((broker.bootstrap, no), (strict_broker.bootstrap, yes)):
        with pytest.raises(KafkaJsError) as failed:
            kafkajs(bootstrap, send(topic, Row(None, b"x")), producer=producer)
        assert failed.value.type == "UNKNOWN_TOPIC_OR_PARTITION"
    kafkajs(broker.bootstrap, send(topic, Row(None, b"x")), producer=yes)
    assert read(broker, topic, 1)[0].value == b"x"


def test_admin_topics(broker, topic):
    new = {"topic": topic, "numPartitions": 2, "replicationFactor": 1}
    assigned = {
        "topic": f"{topic}-assigned",
        "replicaAssignment": [{"partition": p, "replicas": [0]} for p in range(3)],
    }
    grow = {"topicPartitions": [{"topic": topic, "count": 4}]}
    checked, before, created, again, _, made, _, after = kafkajs(
        broker.bootstrap,
        ["admin", "createTopics", {"topics": [new], "validateOnly": True, "waitForLeaders": False}],
        ["admin", "listTopics"],
        ["admin", "createTopics", {"topics": [new, assigned]}],
        ["admin", "createTopics", {"topics": [new]}],
        ["admin", "createPartitions", grow],
        ["admin", "fetchTopicMetadata", {"topics": [topic, assigned["topic"]]}],
        ["admin", "deleteTopics", {"topics": [topic]}],
        ["admin", "listTopics"],
    )
    assert (checked, created, again) == (True, True, False)
    assert topic not in before
    counts = {described["name"]: len(described["partitions"]) for described in made["topics"]}
    assert counts == {topic: 4, assigned["topic"]: 3}
    assert all(p["leader"] == 0 for t in made["topics"] for p in t["partitions"])
    assert topic not in after
    assert assigned["topic"] in after


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"numPartitions": 0}, "INVALID_PARTITIONS"),
        ({"replicationFactor": 3}, "INVALID_REPLICATION_FACTOR"),
        ({"configEntries": [{"name": "retention.ms", "value": "soon"}]}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_made(broker, topic, wrong, error):
    with pytest.raises(KafkaJsError) as failed:
        kafkajs(
            broker.bootstrap, ["admin", "createTopics", {"topics": [{"topic": topic, **wrong}]}]
        )
    assert failed.value.type == error


def test_admin_configs(broker, topic):
    entry = {"name": "retention.ms", "value": "1000"}
    resource = {"type": TOPIC_RESOURCE, "name": topic}
    describe = {"resources": [{**resource, "configNames": ["retention.ms", "segment.bytes"]}]}
    change = {"resources": [{**resource, "configEntries": [{**entry, "value": "2000"}]}]}
    new = {"topic": topic, "configEntries": [entry]}
    _, before, _, after = kafkajs(
        broker.bootstrap,
        ["admin", "createTopics", {"topics": [new]}],
        ["admin", "describeConfigs", describe],
        ["admin", "alterConfigs", change],
        ["admin", "describeConfigs", describe],
    )
    for described, expected in ((before, "1000"), (after, "2000")):
        [found] = described["resources"]
        values = {row["configName"]: row["configValue"] for row in found["configEntries"]}
        assert values == {"retention.ms": expected, "segment.bytes": "1073741824"}


def test_admin_cluster_offsets_and_records(broker, topic):
    rows = [Row(None, b"x", timestamp=NOW + i * MINUTE) for i in range(5)]
    PEER.write(broker.bootstrap, topic, rows)
    delete = {"topic": topic, "partitions": [{"partition": 0, "offset": "3"}]}
    cluster, offsets, _, after = kafkajs(
        broker.bootstrap,
        ["admin", "describeCluster"],
        ["admin", "fetchTopicOffsets", topic],
        ["admin", "deleteTopicRecords", delete],
        ["admin", "fetchTopicOffsets", topic],
    )
    assert cluster["brokers"] == [{"nodeId": 0, "host": "127.0.0.1", "port": broker.port}]
    assert cluster["controller"] == 0
    assert [(row["low"], row["high"]) for row in (*offsets, *after)] == [("0", "5"), ("3", "5")]
