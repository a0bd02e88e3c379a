"""Kafka's own Java admin client."""

import pytest
from interop.building import heavy
from interop.drivers import Driver, DriverError
from interop.java import WITH_CLIENTS, driver_command
from support.client_records import MINUTE, NOW, Row, batches_on_disk

pytestmark = heavy("java", "javac", "mvn")


@pytest.fixture(scope="module", params=WITH_CLIENTS)
def java(request):
    with Driver(driver_command(request.param)) as driver:
        yield driver


@pytest.fixture
def admin(java, broker):
    return lambda op, **more: java(op, broker.bootstrap, **more)


def test_topics(admin, topic):
    new = {"topic": topic, "partitions": 2, "configs": {"retention.ms": "12345"}}
    checked = admin("create_topic", **new, validate=True)
    assert (checked["partitions"], checked["retention"]) == (2, "12345")
    assert topic not in admin("list_topics")
    made = admin("create_topic", **new)
    assert (made["partitions"], made["replicas"], made["retention"]) == (2, 1, "12345")
    assert topic in admin("list_topics")
    admin("create_partitions", topic=topic, count=3)
    described = admin("describe_topic", topic=topic)
    assert described == {
        "name": topic,
        "id": made["id"],
        "internal": False,
        "partitions": [[partition, 0, [0], [0]] for partition in range(3)],
    }
    assert admin("describe_topic_by_id", id=made["id"]) == described
    admin("delete_topic", topic=topic)
    assert topic not in admin("list_topics")
    again = admin("create_topic", topic=topic)
    assert again["id"] != made["id"]
    admin("delete_topic_by_id", id=again["id"])
    assert topic not in admin("list_topics")


@pytest.mark.parametrize(
    ("op", "wrong", "error"),
    [
        ("create_topic", {"partitions": 0}, "InvalidPartitionsException"),
        ("create_topic", {"replicas": 3}, "InvalidReplicationFactorException"),
        ("create_topic", {"configs": {"retention.ms": "soon"}}, "InvalidConfigurationException"),
        ("create_topic", {"configs": {"no.such": "1"}}, "InvalidConfigurationException"),
        ("delete_topic", {}, "UnknownTopicOrPartitionException"),
        ("describe_topic", {}, "UnknownTopicOrPartitionException"),
        ("describe_topic_by_id", {"id": "AAAAAAAAAAAAAAAAAAAACA"}, "UnknownTopicIdException"),
        ("delete_topic_by_id", {"id": "AAAAAAAAAAAAAAAAAAAACA"}, "UnknownTopicIdException"),
        ("create_partitions", {"count": 3}, "UnknownTopicOrPartitionException"),
    ],
)
def test_errors(admin, topic, op, wrong, error):
    with pytest.raises(DriverError) as failed:
        admin(op, topic=topic, **wrong)
    assert failed.value.type == error


def test_topic_configs(admin, topic):
    admin("create_topic", topic=topic, configs={"retention.ms": "1000", "segment.bytes": 2000000})
    resource = {"type": "TOPIC", "name": topic}
    entry = admin("describe_configs", **resource)["retention.ms"]
    assert (entry["value"], entry["type"], entry["read_only"]) == ("1000", "LONG", False)
    assert entry["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert entry["synonyms"] == [["retention.ms", "1000", "DYNAMIC_TOPIC_CONFIG"]]
    assert "retention" in entry["documentation"] or "old" in entry["documentation"]
    changes = [
        ["SET", "retention.ms", "2000"],
        ["DELETE", "segment.bytes"],
        ["APPEND", "cleanup.policy", "compact"],
    ]
    admin("alter_configs", **resource, changes=changes)
    after = admin("describe_configs", **resource)
    assert after["retention.ms"]["value"] == "2000"
    assert after["segment.bytes"]["source"] == "DEFAULT_CONFIG"
    assert after["cleanup.policy"]["value"] == "delete,compact"
    admin("alter_configs", **resource, changes=[["SUBTRACT", "cleanup.policy", "delete"]])
    assert admin("describe_configs", **resource)["cleanup.policy"]["value"] == "compact"
    with pytest.raises(DriverError) as failed:
        admin("alter_configs", **resource, changes=[["SET", "segment.bytes", "-1"]])
    assert failed.value.type == "InvalidConfigurationException"


@pytest.mark.parametrize(
    ("name", "source"), [("0", "DYNAMIC_BROKER_CONFIG"), ("", "DYNAMIC_DEFAULT_BROKER_CONFIG")]
)
def test_broker_configs(admin, name, source):
    resource = {"type": "BROKER", "name": name}
    admin("alter_configs", **resource, changes=[["SET", "log.retention.ms", "77000000"]])
    try:
        entry = admin("describe_configs", **resource)["log.retention.ms"]
        assert (entry["value"], entry["source"]) == ("77000000", source)
        found = admin("describe_configs", type="BROKER", name="0")["log.retention.ms"]
        assert found["value"] == "77000000"
    finally:
        admin("alter_configs", **resource, changes=[["DELETE", "log.retention.ms"]])


def test_list_config_resources(admin, topic):
    admin("create_topic", topic=topic)
    found = admin("list_config_resources")
    assert ["TOPIC", topic] in found
    assert ["BROKER", "0"] in found


def test_offsets_and_deleted_records(java, admin, broker, topic):
    times = [NOW, NOW + 2 * MINUTE, NOW + MINUTE]
    java.produce(broker.bootstrap, topic, [Row(None, b"x", timestamp=time) for time in times])
    assert admin("list_offsets", topic=topic) == {
        "earliest": [0, -1],
        "latest": [3, -1],
        "max_timestamp": [1, NOW + 2 * MINUTE],
    }
    assert admin("delete_records", topic=topic, offset=1) == 1
    assert admin("list_offsets", topic=topic)["earliest"] == [1, -1]
    assert admin("delete_records", topic=topic, offset=-1) == 3
    with pytest.raises(DriverError) as failed:
        admin("delete_records", topic=topic, offset=9)
    assert failed.value.type == "OffsetOutOfRangeException"


def test_cluster(admin, broker):
    found = admin("describe_cluster")
    assert found["controller"] == 0
    assert found["nodes"] == [[0, "127.0.0.1", broker.port]]
    assert len(found["id"]) == 22


def test_log_dirs(java, admin, broker, topic):
    java.produce(broker.bootstrap, topic, [Row(None, b"x" * 1000)])
    [(directory, found)] = admin("describe_log_dirs").items()
    assert directory == str(broker.data)
    size = (broker.data / f"{topic}-0" / f"{0:020}.log").stat().st_size
    assert found["replicas"][f"{topic}-0"] == size > 1000
    assert found["total"] > found["usable"] > 0


def test_producers(java, admin, broker, topic):
    java.produce(broker.bootstrap, topic, [Row(None, b"x") for _ in range(3)])
    [batch, *_] = batches_on_disk(broker, topic)
    assert admin("describe_producers", topic=topic) == [[batch.producer_id, 0, 2, NOW, -1]]
