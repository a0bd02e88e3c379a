"""aiokafka: producing, consuming and its admin client; every test is a coroutine."""

import asyncio
from contextlib import asynccontextmanager

import aiokafka
import pytest
from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from interop.peers import TIMEOUT, AioKafka
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

PEER = AioKafka()
NUMBERED = [Row(None, b"%d" % i, timestamp=NOW + i * MINUTE) for i in range(5)]


async def write(broker, topic, rows):
    await PEER._write(broker.bootstrap, topic, rows, "none")


def producing(broker, **settings):
    return aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **settings)


def consuming(broker, **settings):
    return aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)


@asynccontextmanager
async def administering(broker):
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def values(consumer, count):
    return [(await asyncio.wait_for(consumer.getone(), TIMEOUT)).value for _ in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_codec(broker, topic, codec):
    PEER.write(broker.bootstrap, topic, compressible(), codec)
    assert codecs_on_disk(broker, topic) == {codec}
    assert PEER.read(broker.bootstrap, topic, 3) == compressible()


def test_nulls_empties_and_headers(broker, topic):
    rows = [*EDGES, Row(b"binary header", b"v", (("h", bytes(range(256))),))]
    PEER.write(broker.bootstrap, topic, rows)
    assert PEER.read(broker.bootstrap, topic, len(rows)) == rows


async def test_idempotent_producer(broker, topic):
    async with producing(broker, enable_idempotence=True) as producer:
        for i in range(3):
            assert (await producer.send_and_wait(topic, b"%d" % i)).offset == i
    found = batches_on_disk(broker, topic)
    assert len({batch.producer_id for batch in found}) == 1
    assert found[0].producer_id >= 0
    assert [batch.base_sequence for batch in found] == [0, 1, 2]


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_acks(broker, topic, acks):
    async with producing(broker, acks=acks) as producer:
        sent = await producer.send_and_wait(topic, b"x")
        assert (sent is None) if acks == 0 else (sent.offset == 0)
    assert (await PEER._read(broker.bootstrap, topic, 1))[0].value == b"x"


@pytest.mark.parametrize(
    ("start", "expected"), [("beginning", b"01234"), (0, b"01234"), (3, b"34"), ("end", b"")]
)
async def test_start_position(broker, topic, start, expected):
    await write(broker, topic, NUMBERED)
    partition = aiokafka.TopicPartition(topic, 0)
    async with consuming(broker) as consumer:
        consumer.assign([partition])
        if start == "beginning":
            await consumer.seek_to_beginning(partition)
        elif start == "end":
            await consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, start)
        await write(broker, topic, [Row(None, b"new")])
        found = await values(consumer, len(expected) + 1)
        assert found == [b"%c" % digit for digit in expected] + [b"new"]


@pytest.mark.parametrize(
    ("after", "offset"),
    [(-1, 0), (0, 0), (1, 1), (3 * MINUTE, 3), (3 * MINUTE + 1, 4), (9 * MINUTE, None)],
)
async def test_offset_for_a_time(broker, topic, after, offset):
    await write(broker, topic, NUMBERED)
    partition = aiokafka.TopicPartition(topic, 0)
    async with consuming(broker) as consumer:
        found = (await consumer.offsets_for_times({partition: NOW + after}))[partition]
    if offset is None:
        assert found is None
    else:
        assert (found.offset, found.timestamp) == (offset, NOW + offset * MINUTE)


async def test_beginning_end_and_an_offset_out_of_range(broker, topic):
    await write(broker, topic, NUMBERED)
    partition = aiokafka.TopicPartition(topic, 0)
    async with consuming(broker, auto_offset_reset="none") as consumer:
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 5}
        consumer.assign([partition])
        consumer.seek(partition, 99)
        with pytest.raises(errors.OffsetOutOfRangeError):
            await values(consumer, 1)


async def test_a_waiting_consumer_is_woken(broker, topic):
    # The broker may wait for longer than we do; only a record ends that.  Several rounds, so that
    # some request is parked before its record is written.
    await write(broker, topic, [Row(None, b"first")])
    partition = aiokafka.TopicPartition(topic, 0)
    async with (
        producing(broker) as producer,
        consuming(broker, fetch_max_wait_ms=400_000, request_timeout_ms=500_000) as consumer,
    ):
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert await values(consumer, 1) == [b"first"]
        for i in range(5):
            waiting = asyncio.ensure_future(values(consumer, 1))
            await producer.send_and_wait(topic, b"%d" % i)
            assert await asyncio.wait_for(waiting, TIMEOUT) == [b"%d" % i]


@pytest.mark.parametrize(("size", "limit"), [(900_000, None), (5_000_000, 6_000_000)])
async def test_big_message(broker, topic, size, limit):
    configs = {"max.message.bytes": str(limit)} if limit else {}
    async with administering(broker) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=configs)])
    value = bytes(range(250)) * (size // 250)
    async with producing(broker, **({"max_request_size": limit} if limit else {})) as producer:
        await producer.send_and_wait(topic, value)
    assert (await PEER._read(broker.bootstrap, topic, 1))[0].value == value


async def test_a_message_that_is_too_large(broker, topic):
    async with producing(broker, max_request_size=5_000_000) as producer:
        with pytest.raises(errors.MessageSizeTooLargeError):
            await producer.send_and_wait(topic, bytes(2_000_000))
        assert (await producer.send_and_wait(topic, b"small")).offset == 0


async def test_topics_are_created_on_demand(broker, topic):
    async with producing(broker) as producer:
        assert await producer.partitions_for(topic) == {0}


async def test_topics_are_not_created_if_the_broker_may_not(strict_broker, topic):
    async with producing(strict_broker) as producer:
        producer.client._request_timeout_ms = 300  # not for the start, which a busy machine delays
        with pytest.raises((errors.UnknownTopicOrPartitionError, errors.KafkaTimeoutError)):
            await producer.send_and_wait(topic, b"x")
    async with administering(strict_broker) as admin:
        assert topic not in await admin.list_topics()


def codes(response):
    return [row[1] for row in response.topic_errors]


async def test_admin_topics(broker, topic):
    async with administering(broker) as admin:
        new = NewTopic(topic, 2, 1, topic_configs={"retention.ms": "1000"})
        assert codes(await admin.create_topics([new], validate_only=True)) == [0]
        assert topic not in await admin.list_topics()
        assert codes(await admin.create_topics([new])) == [0]
        again = await admin.create_topics([new])
        assert codes(again) == [errors.TopicAlreadyExistsError.errno]
        [described] = await admin.describe_topics([topic])
        assert [p["partition"] for p in described["partitions"]] == [0, 1]

        await admin.create_partitions({topic: NewPartitions(3)})
        [described] = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 3
        with pytest.raises(errors.InvalidPartitionsError):
            await admin.create_partitions({topic: NewPartitions(1)})

        deleted = await admin.delete_topics([topic])
        assert [code for _, code in deleted.topic_error_codes] == [0]
        assert topic not in await admin.list_topics()


async def test_admin_manual_assignment(broker, topic):
    async with administering(broker) as admin:
        new = NewTopic(topic, -1, -1, replica_assignments={0: [0], 1: [0]})
        assert codes(await admin.create_topics([new])) == [0]
        [described] = await admin.describe_topics([topic])
        assert [p["replicas"] for p in described["partitions"]] == [[0], [0]]


async def test_admin_configs(broker, topic):
    async with administering(broker) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"retention.ms": "1000"})])

        async def own():
            """Settings of the topic itself, by their source."""
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            [response] = await admin.describe_configs([resource], include_synonyms=True)
            [(code, _, _, _, rows)] = response.resources
            assert code == 0
            return {row[0]: row[1] for row in rows if row[3] == 1}

        assert await own() == {"retention.ms": "1000"}
        change = {"segment.bytes": "2000000"}
        [altered] = await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, change)]
        )
        assert [row[0] for row in altered.resources] == [0]
        assert await own() == change


async def test_admin_cluster_and_records(broker, topic):
    await write(broker, topic, NUMBERED)
    partition = aiokafka.TopicPartition(topic, 0)
    async with administering(broker) as admin, consuming(broker) as consumer:
        cluster = await admin.describe_cluster()
        [node] = cluster["brokers"]
        assert (node["node_id"], node["port"], cluster["controller_id"]) == (0, broker.port, 0)
        deleted = await admin.delete_records({partition: RecordsToDelete(before_offset=3)})
        assert deleted == {partition: 3}
        assert await consumer.beginning_offsets([partition]) == {partition: 3}
