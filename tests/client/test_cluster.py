"""Topics, settings, offsets and sizes, asked of a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tidelog.client import admin
from tidelog.client.admin import Change, ConfigResource
from tidelog.client.cluster import Cluster, error_of
from tidelog.client.offsets import Extent, parse_position
from tidelog.client.partitions import (
    LATEST,
    delete_records,
    extents,
    list_offsets,
    log_sizes,
    resolve_all,
)
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalBroker
from tidelog.topic_partition import TopicPartition

T0 = SystemClock().now_ms() - 3_600_000  # old records, but not too old to be kept


@pytest.fixture
def cluster(broker: LocalBroker):
    with Cluster(broker.bootstrap) as connected:
        yield connected


def fill(broker: LocalBroker, topic: str, partition: int, count: int) -> TopicPartition:
    """Records one second apart."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for i in range(count):
        producer.produce(topic, b"v%d" % i, partition=partition, timestamp=T0 + 1000 * i)
    assert producer.flush(100) == 0
    return TopicPartition(topic, partition)


def test_topics_are_made_described_grown_and_deleted(cluster: Cluster, topic: str) -> None:
    config = {"retention.ms": "1000"}
    result = admin.create_topics(cluster, [NewTopic(topic, 2, 1, config=config)])
    assert result == {topic: (2, 1)}
    view = cluster.topics([topic])[topic]
    assert [part.index for part in view.partitions] == [0, 1]
    assert view.partitions[0].leader == 0
    assert view.partitions[0].replicas == (0,)
    admin.grow_topic(cluster, topic, 3)
    assert len(cluster.topics([topic])[topic].partitions) == 3
    assert admin.delete_topics(cluster, [topic]) == {topic: None}
    with pytest.raises(ApiError, match=f"there is no topic '{topic}'"):
        cluster.topics([topic])


def test_one_topic_may_fail_and_another_not(cluster: Cluster, topic: str) -> None:
    result = admin.create_topics(cluster, [NewTopic(topic), NewTopic("no spaces")])
    assert result[topic] == (1, 1)
    error = result["no spaces"]
    assert isinstance(error, ApiError)
    assert error.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    again = admin.create_topics(cluster, [NewTopic(topic)])[topic]
    assert isinstance(again, ApiError)
    assert again.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_an_assignment_names_the_brokers(cluster: Cluster, topic: str) -> None:
    assert admin.create_topics(cluster, [NewTopic(topic, assignment=[[0], [0]])]) == {topic: (2, 1)}
    error = admin.create_topics(cluster, [NewTopic(topic + "x", assignment=[[7]])])[topic + "x"]
    assert "no broker 7" in str(error)


def test_validation_changes_nothing(cluster: Cluster, topic: str) -> None:
    result = admin.create_topics(cluster, [NewTopic(topic, 5)], validate_only=True)
    assert result == {topic: (5, 1)}
    assert topic not in cluster.metadata().topics


def test_a_topic_is_made_by_metadata_only_on_request(cluster: Cluster, topic: str) -> None:
    missing = cluster.metadata([topic]).topics[topic]
    assert missing.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.metadata([topic], create=True).topics[topic].error == ErrorCode.NONE


def test_settings_of_a_topic(cluster: Cluster, topic: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    changes = [
        (Change.SET, "retention.ms", "5000"),
        (Change.APPEND, "cleanup.policy", "compact"),
    ]
    admin.alter_configs(cluster, ConfigResource.TOPIC, topic, changes)
    rows = {row.name: row for row in admin.describe_configs(cluster, ConfigResource.TOPIC, topic)}
    assert (rows["retention.ms"].value, rows["retention.ms"].source) == ("5000", "topic")
    assert rows["cleanup.policy"].value == "delete,compact"
    assert rows["segment.bytes"].source == "default"
    assert rows["segment.bytes"].documentation is None
    with pytest.raises(ApiError, match=r"retention\.ms=x"):
        change = [(Change.SET, "retention.ms", "x")]
        admin.alter_configs(cluster, ConfigResource.TOPIC, topic, change)
    admin.alter_configs(
        cluster, ConfigResource.TOPIC, topic, [(Change.DELETE, "retention.ms", None)]
    )
    documented = admin.describe_configs(cluster, ConfigResource.TOPIC, topic, documentation=True)
    row = next(row for row in documented if row.name == "retention.ms")
    assert row.source == "default"
    assert row.type == "long"
    assert row.documentation


def test_settings_of_a_broker_that_is_not_there(cluster: Cluster) -> None:
    assert admin.describe_configs(cluster, ConfigResource.BROKER, "0")
    with pytest.raises(ApiError, match="there is no broker 9; there are: 0"):
        admin.describe_configs(cluster, ConfigResource.BROKER, "9")


def test_offsets_by_place_and_by_time(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic, 2)])
    first, second = fill(broker, topic, 0, 10), TopicPartition(topic, 1)
    assert extents(cluster, [first, second]) == {first: Extent(0, 10), second: Extent(0, 0)}
    found = list_offsets(cluster, {first: T0 + 2500, second: T0})
    assert found == {first: 3, second: None}
    logs = extents(cluster, [first, second])
    for text, expected in [("+3", (3, 0)), ("-4", (6, 0)), ("end", (10, 0)), ("7", (7, 7))]:
        resolved = resolve_all(cluster, parse_position(text), logs, 0)
        assert tuple(resolved.values()) == expected
    by_time = resolve_all(cluster, parse_position(f"@{T0 + 9000}"), logs, 0)
    assert tuple(by_time.values()) == (9, 0)
    ago = resolve_all(cluster, parse_position("@-5s"), logs, now_ms=T0 + 9000)
    assert tuple(ago.values()) == (4, 0)


def test_a_partition_that_is_not_there(cluster: Cluster, topic: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    with pytest.raises(ApiError, match=f"topic '{topic}' has no partition 5"):
        list_offsets(cluster, {TopicPartition(topic, 5): LATEST})
    with pytest.raises(ApiError, match="there is no topic 'never-made'"):
        list_offsets(cluster, {TopicPartition("never-made", 0): LATEST})


def test_records_are_deleted_and_sizes_told(
    cluster: Cluster, broker: LocalBroker, topic: str
) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    row = fill(broker, topic, 0, 10)
    (size,) = log_sizes(cluster, [row])
    assert (size.partition, size.broker_id, size.directory) == (row, 0, str(broker.data))
    assert size.size == (broker.data / str(row) / f"{0:020d}.log").stat().st_size
    assert row in {size.partition for size in log_sizes(cluster)}
    assert delete_records(cluster, {row: 4}) == {row: 4}
    assert extents(cluster, [row]) == {row: Extent(4, 10)}
    error = delete_records(cluster, {row: 11})[row]
    assert isinstance(error, ApiError)
    assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_brokers_own_words_come_first() -> None:
    assert str(error_of(36, "it is there", "topic 'x'")) == "it is there"
    assert str(error_of(36, None, "topic 'x'")).startswith("topic 'x': TOPIC_ALREADY_EXISTS")
    unknown = error_of(9999)
    assert unknown.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "9999" in str(unknown)


def test_a_broker_that_restarts_is_found_again() -> None:
    with LocalBroker() as own, Cluster(own.bootstrap) as cluster:
        cluster.metadata()
        own.restart()
        with pytest.raises(ApiError, match="lost the connection"):
            cluster.metadata()
        assert list(cluster.metadata().brokers) == [0]
