"""kafka-python: producing and consuming, with incremental fetch sessions."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import kafka
import pytest
from interop.peers import TIMEOUT, KafkaPython
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, OffsetOutOfRangeError
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

PEER = KafkaPython()
NUMBERED = [Row(None, b"%d" % i, timestamp=NOW + i * MINUTE) for i in range(5)]


def producing(broker, **settings):
    return closing(kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, **settings))


def consuming(broker, *partitions, **settings):
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)
    consumer.assign(list(partitions))
    return closing(consumer)


def values(consumer, count):
    """The next values, as soon as they are there."""
    found = []
    while len(found) < count:
        polled = consumer.poll(TIMEOUT * 1000)
        assert polled, f"only {found}"
        found += [record.value for records in polled.values() for record in records]
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_codec(broker, topic, codec):
    PEER.write(broker.bootstrap, topic, compressible(), codec)
    assert codecs_on_disk(broker, topic) == {codec}
    assert PEER.read(broker.bootstrap, topic, 3) == compressible()


def test_nulls_empties_and_headers(broker, topic):
    rows = [*filter(PEER.can_write, EDGES), Row(b"k", b"v", (("h", bytes(range(256))),))]
    PEER.write(broker.bootstrap, topic, rows)
    assert PEER.read(broker.bootstrap, topic, len(rows)) == rows


@pytest.mark.parametrize("idempotent", [True, False])
def test_idempotent_producer(broker, topic, idempotent):
    with producing(broker, enable_idempotence=idempotent) as producer:
        for i in range(3):
            assert producer.send(topic, b"%d" % i).get(TIMEOUT).offset == i
    found = batches_on_disk(broker, topic)
    if idempotent:
        assert len({batch.producer_id for batch in found}) == 1
        assert found[0].producer_id >= 0
        assert [batch.base_sequence for batch in found] == [0, 1, 2]
    else:
        assert {batch.producer_id for batch in found} == {-1}


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(broker, topic, acks):
    with producing(broker, acks=acks, enable_idempotence=acks == "all") as producer:
        producer.send(topic, b"x").get(TIMEOUT)
    assert PEER.read(broker.bootstrap, topic, 1)[0].value == b"x"


@pytest.mark.parametrize(
    ("start", "expected"), [("beginning", b"01234"), (0, b"01234"), (3, b"34"), ("end", b"")]
)
def test_start_position(broker, topic, start, expected):
    PEER.write(broker.bootstrap, topic, NUMBERED)
    partition = kafka.TopicPartition(topic, 0)
    with consuming(broker, partition) as consumer:
        if start == "beginning":
            consumer.seek_to_beginning(partition)
        elif start == "end":
            consumer.seek_to_end(partition)
            assert consumer.position(partition) == 5
        else:
            consumer.seek(partition, start)
        PEER.write(broker.bootstrap, topic, [Row(None, b"new")])
        found = values(consumer, len(expected) + 1)
        assert found == [b"%c" % digit for digit in expected] + [b"new"]


@pytest.mark.parametrize(
    ("after", "offset"),
    [(-1, 0), (0, 0), (1, 1), (3 * MINUTE, 3), (3 * MINUTE + 1, 4), (9 * MINUTE, None)],
)
def test_offset_for_a_time(broker, topic, after, offset):
    PEER.write(broker.bootstrap, topic, NUMBERED)
    partition = kafka.TopicPartition(topic, 0)
    with consuming(broker) as consumer:
        found = consumer.offsets_for_times({partition: NOW + after})[partition]
    if offset is None:
        assert found is None
    else:
        assert (found.offset, found.timestamp) == (offset, NOW + offset * MINUTE)


def test_beginning_end_and_an_offset_out_of_range(broker, topic):
    PEER.write(broker.bootstrap, topic, NUMBERED)
    partition = kafka.TopicPartition(topic, 0)
    with consuming(broker, partition, auto_offset_reset="none") as consumer:
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 5}
        consumer.seek(partition, 99)
        with pytest.raises(OffsetOutOfRangeError):
            values(consumer, 1)


def test_a_session_with_many_partitions(broker, topic):
    """Each round only one partition has news; the session must tell of it, and only once."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_topics({topic: {"num_partitions": 4, "replication_factor": 1}})
    partitions = [kafka.TopicPartition(topic, i) for i in range(4)]
    with producing(broker) as producer, consuming(broker, *partitions) as consumer:
        consumer.seek_to_beginning()
        for i in range(12):
            producer.send(topic, b"%d" % i, partition=i % 3).get(TIMEOUT)
            assert values(consumer, 1) == [b"%d" % i]


def test_a_waiting_consumer_is_woken(broker, topic):
    # The broker may wait for 20 s; only a record ends that sooner.  Several rounds, so that
    # some request is parked before its record is written, whatever the threads do.
    PEER.write(broker.bootstrap, topic, [Row(None, b"first")])
    partition = kafka.TopicPartition(topic, 0)
    with (
        ThreadPoolExecutor(1) as pool,
        producing(broker) as producer,
        consuming(
            broker, partition, fetch_max_wait_ms=200_000, request_timeout_ms=300_000
        ) as consumer,
    ):
        consumer.seek_to_beginning()
        assert values(consumer, 1) == [b"first"]
        for i in range(5):
            waiting = pool.submit(values, consumer, 1)
            producer.send(topic, b"%d" % i).get(TIMEOUT)
            assert waiting.result(TIMEOUT) == [b"%d" % i]


@pytest.mark.parametrize(("size", "limit"), [(900_000, None), (5_000_000, 6_000_000)])
def test_big_message(broker, topic, size, limit):
    configs = {"max.message.bytes": str(limit)} if limit else {}
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_topics({topic: {"configs": configs}})
    value = bytes(range(250)) * (size // 250)
    with producing(broker, **({"max_request_size": limit} if limit else {})) as producer:
        producer.send(topic, value).get(TIMEOUT)
    assert PEER.read(broker.bootstrap, topic, 1)[0].value == value


def test_a_message_that_is_too_large(broker, topic):
    # An idempotent producer of this client gives up for good after such an error.
    with producing(broker, max_request_size=5_000_000, enable_idempotence=False) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, bytes(2_000_000)).get(TIMEOUT)
        assert producer.send(topic, b"small").get(TIMEOUT).offset == 0


def test_topics_are_created_on_demand(broker, topic):
    with producing(broker) as producer:
        assert producer.partitions_for(topic) == {0}


def test_topics_are_not_created_if_the_broker_may_not(strict_broker, topic):
    with producing(strict_broker, max_block_ms=300) as producer, pytest.raises(KafkaTimeoutError):
        producer.send(topic, b"x").get(TIMEOUT)
    with closing(KafkaAdminClient(bootstrap_servers=strict_broker.bootstrap)) as admin:
        assert topic not in admin.list_topics()
