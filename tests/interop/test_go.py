"""franz-go and sarama."""

import pytest
from interop.building import heavy
from interop.drivers import Driver, DriverError
from interop.go_program import program
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

pytestmark = heavy("go")


@pytest.fixture(scope="module", params=["franz", "sarama"])
def client(request):
    with Driver([program(), request.param]) as driver:
        yield driver


@pytest.fixture
def admin(client, broker):
    return lambda op, **more: client(op, broker.bootstrap, **more)


@pytest.mark.parametrize("codec", CODECS)
def test_codec(client, broker, topic, codec):
    assert client.produce(broker.bootstrap, topic, compressible(), codec=codec) == [0, 1, 2]
    assert codecs_on_disk(broker, topic) == {codec}
    assert client.consume(broker.bootstrap, topic, 3) == compressible()


def test_nulls_empties_and_headers(client, broker, topic):
    client.produce(broker.bootstrap, topic, EDGES)
    assert client.consume(broker.bootstrap, topic, len(EDGES)) == EDGES


@pytest.mark.parametrize("plain", [False, True])
def test_idempotent_producer(client, broker, topic, plain):
    rows = [Row(None, b"%d" % i) for i in range(100)]
    client.produce(broker.bootstrap, topic, rows, plain=plain)
    found = batches_on_disk(broker, topic)
    assert {batch.producer_id >= 0 for batch in found} == {not plain}
    if not plain:
        assert [batch.base_sequence for batch in found] == [b.base_offset for b in found]
    assert [row.value for row in client.consume(broker.bootstrap, topic, 100)] == [
        row.value for row in rows
    ]


def test_big_message_and_too_large(client, admin, broker, topic):
    admin("create_topic", topic=topic, configs={"max.message.bytes": "6000000"})
    rows = [Row(b"k", b"x" * 5_000_000)]
    client.produce(broker.bootstrap, topic, rows)
    assert client.consume(broker.bootstrap, topic, 1) == rows
    with pytest.raises(DriverError, match=r"(?i)too.large|larger than the max"):
        client.produce(broker.bootstrap, topic, [Row(None, b"x" * 7_000_000)])


def test_start_at_an_offset_or_a_time(client, broker, topic):
    rows = [Row(None, b"%d" % i, timestamp=NOW + i * MINUTE) for i in range(5)]
    client.produce(broker.bootstrap, topic, rows)
    assert client.consume(broker.bootstrap, topic, 2, start=3) == rows[3:]
    time = NOW + MINUTE + 1
    assert client.consume(broker.bootstrap, topic, 3, time=time) == rows[2:]


def test_several_partitions(client, admin, broker, topic):
    admin("create_topic", topic=topic, partitions=3)
    start = [[topic, partition, 0] for partition in range(3)]
    row = {"key": None, "value": "eA==", "headers": [], "timestamp": NOW}
    rows = [{**row, "partition": i % 3} for i in range(300)]
    client("produce", broker.bootstrap, topic=topic, rows=rows)
    found = client("consume", broker.bootstrap, **{"from": start}, count=300)
    for partition in range(3):
        offsets = [row["offset"] for row in found if row["partition"] == partition]
        assert offsets == list(range(100))


def test_admin(client, admin, broker, topic):
    admin("create_topic", topic=topic, partitions=2, configs={"retention.ms": "1000"})
    with pytest.raises(DriverError, match=r"(?i)exists"):
        admin("create_topic", topic=topic)
    admin("create_partitions", topic=topic, partitions=4)
    assert admin("describe_topic", topic=topic)["partitions"] == 4
    assert topic in admin("list_topics")
    assert admin("describe_configs", topic=topic)["retention.ms"] == "1000"
    admin("alter_configs", topic=topic, configs={"retention.ms": "2000000"})
    assert admin("describe_configs", topic=topic)["retention.ms"] == "2000000"
    client.produce(broker.bootstrap, topic, [Row(None, b"x") for _ in range(5)])
    admin("delete_records", topic=topic, offset=3)
    assert admin("list_offsets", topic=topic) == [3, 5]
    assert admin("describe_cluster") == [0, [0]]
    size = (broker.data / f"{topic}-0" / f"{0:020}.log").stat().st_size
    assert admin("describe_log_dirs", topic=topic) == size
    admin("delete_topic", topic=topic)
    with pytest.raises(DriverError, match=r"(?i)topic"):
        admin("describe_topic", topic=topic)


def test_group_admin(client, admin, topic):
    admin("create_topic", topic=topic)
    admin("commit", topic=topic, group=topic, offset=7)
    assert admin("committed", topic=topic, group=topic) == 7
    assert topic in admin("list_groups")
    assert admin("describe_group", group=topic) == "Empty"
    admin("delete_offset", topic=topic, group=topic)
    assert admin("committed", topic=topic, group=topic) == -1
    admin("commit", topic=topic, group=topic, offset=8)
    admin("delete_group", group=topic)
    assert topic not in admin("list_groups")
