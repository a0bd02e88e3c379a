"""confluent-kafka, which is the newest librdkafka: producing and consuming."""

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from interop.peers import TIMEOUT, Confluent
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

PEER = Confluent()
NUMBERED = [Row(None, b"%d" % i, timestamp=NOW + i * MINUTE) for i in range(5)]


def send(producer, topic, value, **more):
    """Send one record; what became of it."""
    outcome = []
    producer.produce(topic, value, on_delivery=lambda *result: outcome.append(result), **more)
    assert producer.flush(TIMEOUT) == 0
    return outcome[0]


def values(consumer, count):
    messages = consumer.consume(count, TIMEOUT)
    assert [m.error() for m in messages] == [None] * count
    return [m.value() for m in messages]


@pytest.mark.parametrize("codec", CODECS)
def test_codec(broker, topic, codec):
    PEER.write(broker.bootstrap, topic, compressible(), codec)
    assert codecs_on_disk(broker, topic) == {codec}
    assert PEER.read(broker.bootstrap, topic, 3) == compressible()


def test_nulls_empties_and_headers(broker, topic):
    rows = [*EDGES, Row(b"binary header", b"v", (("h", bytes(range(256))),))]
    PEER.write(broker.bootstrap, topic, rows)
    assert PEER.read(broker.bootstrap, topic, len(rows)) == rows


def test_idempotent_producer(broker, topic):
    for _ in range(2):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for value in (b"a", b"b", b"c"):
            assert send(producer, topic, value)[0] is None
    found = batches_on_disk(broker, topic)
    assert [batch.base_sequence for batch in found] == [0, 1, 2, 0, 1, 2]
    first, second = sorted({batch.producer_id for batch in found})
    assert 0 <= first < second


@pytest.mark.parametrize(
    ("start", "expected"),
    [(OFFSET_BEGINNING, b"01234"), (0, b"01234"), (3, b"34"), (OFFSET_END, b"")],
)
def test_start_position(broker, topic, start, expected):
    PEER.write(broker.bootstrap, topic, NUMBERED)
    settings = {"enable_partition_eof": True, "fetch_wait_max_ms": 20}
    with PEER.consumer(broker.bootstrap, TopicPartition(topic, 0, start), **settings) as consumer:
        messages = consumer.consume(len(expected) + 1, TIMEOUT)
        assert b"".join(m.value() for m in messages[:-1]) == expected
        assert messages[-1].error().code() == KafkaError._PARTITION_EOF
        PEER.write(broker.bootstrap, topic, [Row(None, b"new")])
        assert values(consumer, 1) == [b"new"]


@pytest.mark.parametrize(
    ("after", "offset"),
    [(-1, 0), (0, 0), (1, 1), (3 * MINUTE, 3), (3 * MINUTE + 1, 4), (9 * MINUTE, OFFSET_END)],
)
def test_offset_for_a_time(broker, topic, after, offset):
    PEER.write(broker.bootstrap, topic, NUMBERED)
    with PEER.consumer(broker.bootstrap) as consumer:
        found = consumer.offsets_for_times([TopicPartition(topic, 0, NOW + after)], TIMEOUT)
        assert [(p.offset, p.error) for p in found] == [(offset, None)]


def test_watermarks_and_an_offset_out_of_range(broker, topic):
    PEER.write(broker.bootstrap, topic, NUMBERED)
    beyond = TopicPartition(topic, 0, 99)
    with PEER.consumer(broker.bootstrap, beyond, auto_offset_reset="earliest") as consumer:
        assert consumer.get_watermark_offsets(beyond, TIMEOUT) == (0, 5)
        assert values(consumer, 5)[0] == b"0"
    with PEER.consumer(broker.bootstrap, beyond, auto_offset_reset="error") as consumer:
        [message] = consumer.consume(1, TIMEOUT)
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET


def test_several_partitions(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 3)])[topic].result(TIMEOUT)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for i in range(30):
        producer.produce(topic, b"%d" % i, partition=i % 3)
    assert producer.flush(TIMEOUT) == 0
    partitions = [TopicPartition(topic, i, 0) for i in range(3)]
    with PEER.consumer(broker.bootstrap, *partitions) as consumer:
        messages = consumer.consume(30, TIMEOUT)
    for i in range(3):
        own = [int(m.value()) for m in messages if m.partition() == i]
        assert own == list(range(i, 30, 3))


def test_a_waiting_consumer_is_woken(broker, topic):
    # The broker may wait for longer than we do; only a record ends that.  Several rounds, so that
    # some request is parked before its record is written, whatever the threads do.
    PEER.write(broker.bootstrap, topic, [Row(None, b"first")])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    with PEER.consumer(
        broker.bootstrap,
        TopicPartition(topic, 0, 0),
        fetch_wait_max_ms=200_000,
        socket_timeout_ms=300_000,
    ) as consumer:
        assert values(consumer, 1) == [b"first"]
        for i in range(5):
            send(producer, topic, b"%d" % i)
            message = consumer.poll(TIMEOUT)
            assert message is not None
            assert message.value() == b"%d" % i


@pytest.mark.parametrize(("size", "limit"), [(900_000, None), (5_000_000, 6_000_000)])
def test_big_message(broker, topic, size, limit):
    config = {"max.message.bytes": str(limit)} if limit else {}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(TIMEOUT)
    settings = {"message.max.bytes": limit} if limit else {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    value = bytes(range(250)) * (size // 250)
    assert send(producer, topic, value)[0] is None
    assert PEER.read(broker.bootstrap, topic, 1)[0].value == value


def test_a_message_that_is_too_large(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 5_000_000})
    error, _ = send(producer, topic, bytes(2_000_000))
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert send(producer, topic, b"small")[0] is None
    assert PEER.read(broker.bootstrap, topic, 1)[0].value == b"small"


def test_topics_are_created_on_demand(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert unknown(broker, topic, 0)  # a consumer's question creates nothing
    assert topic not in admin.list_topics(timeout=TIMEOUT).topics
    assert send(Producer({"bootstrap.servers": broker.bootstrap}), topic, b"x")[0] is None
    assert len(admin.list_topics(timeout=TIMEOUT).topics[topic].partitions) == 1
    assert unknown(broker, topic, 1)


def test_topics_are_not_created_if_the_broker_may_not(strict_broker, topic):
    settings = {"topic.metadata.propagation.max.ms": 1}
    producer = Producer({"bootstrap.servers": strict_broker.bootstrap, **settings})
    error, _ = send(producer, topic, b"x")
    assert error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)


def unknown(broker, topic, partition):
    with PEER.consumer(broker.bootstrap) as consumer, pytest.raises(KafkaException) as raised:
        consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT)
    return raised.value.args[0].code() in (
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(broker, topic, acks):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": acks})
    error, message = send(producer, topic, b"x")
    assert error is None
    assert message.offset() == (None if acks == "0" else 0)
    assert PEER.read(broker.bootstrap, topic, 1)[0].value == b"x"
