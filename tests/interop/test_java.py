"""Kafka's own Java client: producer and consumer."""

import pytest
from interop.building import heavy
from interop.drivers import Driver, DriverError, from_json, to_json
from interop.java import WITH_CLIENTS, driver_command
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

pytestmark = heavy("java", "javac", "mvn")


@pytest.fixture(scope="module", params=WITH_CLIENTS)
def java(request):
    with Driver(driver_command(request.param)) as driver:
        yield driver


@pytest.mark.parametrize("codec", CODECS)
def test_codec(java, broker, topic, codec):
    rows = [*compressible(), *EDGES]
    offsets = java.produce(broker.bootstrap, topic, rows, settings={"compression.type": codec})
    assert offsets == list(range(len(rows)))
    assert codecs_on_disk(broker, topic) == {codec}
    assert java.consume(broker.bootstrap, topic, len(rows)) == rows
    assert java.consume(broker.bootstrap, topic, 2, start=len(rows) - 2) == rows[-2:]


@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_idempotence_is_the_default(java, broker, topic, idempotent):
    settings = {} if idempotent == "true" else {"enable.idempotence": "false"}
    rows = [Row(None, b"x" * 10_000) for _ in range(200)]  # many batches in flight
    java.produce(broker.bootstrap, topic, rows, settings=settings)
    found = batches_on_disk(broker, topic)
    assert len(found) > 50
    if idempotent == "true":
        assert {batch.producer_id >= 0 for batch in found} == {True}
        assert [batch.base_sequence for batch in found] == [b.base_offset for b in found]
    else:
        assert {batch.producer_id for batch in found} == {-1}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(java, broker, topic, acks):
    settings = {"acks": acks, "enable.idempotence": "false"}
    offsets = java.produce(broker.bootstrap, topic, [Row(None, b"x")], settings=settings)
    assert offsets == [-1 if acks == "0" else 0]
    assert java.consume(broker.bootstrap, topic, 1) == [Row(None, b"x")]


def test_big_messages(java, broker, topic):
    java("create_topic", broker.bootstrap, topic=topic, configs={"max.message.bytes": 6_000_000})
    rows = [Row(b"k", bytes([i]) * 5_000_000) for i in range(3)]
    java.produce(broker.bootstrap, topic, rows, settings={"max.request.size": "6000000"})
    assert java.consume(broker.bootstrap, topic, 3) == rows


def test_a_message_that_is_too_large(java, broker, topic):
    settings = {"max.request.size": "6000000"}
    with pytest.raises(DriverError) as failed:
        java.produce(broker.bootstrap, topic, [Row(None, b"x" * 2_000_000)], settings=settings)
    assert failed.value.type == "RecordTooLargeException"


def test_a_topic_that_is_not_there(java, strict_broker, topic):
    with pytest.raises(DriverError) as failed:
        java.produce(
            strict_broker.bootstrap, topic, [Row(None, b"x")], settings={"max.block.ms": "1000"}
        )
    assert failed.value.type == "TimeoutException"


def test_offsets_by_time(java, broker, topic):
    rows = [Row(None, b"x", timestamp=NOW + i * MINUTE) for i in range(5)]
    java.produce(broker.bootstrap, topic, rows)
    times = [NOW - MINUTE, NOW + MINUTE, NOW + MINUTE + 1, NOW + 5 * MINUTE]
    found = java("offsets", broker.bootstrap, topic=topic, times=times)
    assert (found["beginning"], found["end"]) == (0, 5)
    assert found["times"] == [[0, NOW], [1, NOW + MINUTE], [2, NOW + 2 * MINUTE], None]


def test_where_to_start_without_an_offset(java, broker, topic):
    java.produce(broker.bootstrap, topic, [Row(None, b"x")])
    with pytest.raises(DriverError) as failed:
        java.consume(broker.bootstrap, topic, 1, start=7)
    assert failed.value.type == "OffsetOutOfRangeException"
    earliest = {"auto.offset.reset": "earliest"}
    assert len(java.consume(broker.bootstrap, topic, 1, start=7, settings=earliest)) == 1


def test_several_partitions_in_small_polls(java, broker, topic):
    java("create_topic", broker.bootstrap, topic=topic, partitions=4)
    rows = [Row(None, b"%d" % i) for i in range(400)]
    sent = [{**row, "partition": i % 4} for i, row in enumerate(map(to_json, rows))]
    java("produce", broker.bootstrap, topic=topic, rows=sent)
    start = [[topic, partition, 0] for partition in range(4)]
    small = {"max.poll.records": "7", "max.partition.fetch.bytes": "500", "fetch.max.bytes": "900"}
    found = java("consume", broker.bootstrap, **{"from": start}, count=400, settings=small)
    for partition in range(4):
        mine = [row for row in found if row["partition"] == partition]
        assert [row["offset"] for row in mine] == list(range(100))
        assert [from_json(row) for row in mine] == rows[partition::4]


def test_a_fetch_session_sees_new_records(java, broker, topic):
    java("create_topic", broker.bootstrap, topic=topic, partitions=3)
    start = [[topic, partition, 0] for partition in range(3)]
    # Only a record ends a round before the driver gives up.
    settings = {"fetch.max.wait.ms": "25000"}
    before = java.log.count("Built incremental fetch")
    found = java(
        "follow", broker.bootstrap, topic=topic, **{"from": start}, rounds=12, settings=settings
    )
    assert found == [[i % 3, str(i)] for i in range(12)]
    assert java.log.count("Built incremental fetch") >= before + 10
    assert "FETCH_SESSION" not in java.log
