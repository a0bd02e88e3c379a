"""confluent-kafka's admin client."""

import pytest
from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from interop.peers import TIMEOUT, Confluent
from support.client_records import MINUTE, NOW, Row


@pytest.fixture(scope="module")
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def done(futures):
    """The result of the only future there is."""
    [future] = futures.values()
    return future.result(TIMEOUT)


def error_of(futures):
    with pytest.raises(KafkaException) as raised:
        done(futures)
    return raised.value.args[0]


def partitions(admin, topic):
    return admin.list_topics(timeout=TIMEOUT).topics[topic].partitions


def config(admin, topic, name):
    return done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))[name]


def test_create_describe_delete(admin, topic):
    created = NewTopic(topic, 3, 1, config={"retention.ms": "123456", "cleanup.policy": "compact"})
    done(admin.create_topics([created]))
    described = done(admin.describe_topics(TopicCollection([topic])))
    assert [p.id for p in described.partitions] == [0, 1, 2]
    assert all(p.leader.id == 0 and [r.id for r in p.isr] == [0] for p in described.partitions)
    assert not described.is_internal
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    assert config(admin, topic, "retention.ms").value == "123456"
    assert config(admin, topic, "cleanup.policy").value == "compact"

    done(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=TIMEOUT).topics
    gone = error_of(admin.describe_topics(TopicCollection([topic])))
    assert gone.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert error_of(admin.delete_topics([topic])).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_that_is_made_again_is_another(broker, admin, topic):
    ids = []
    for value in (b"old", b"new"):
        done(admin.create_topics([NewTopic(topic, 1)]))
        ids.append(str(done(admin.describe_topics(TopicCollection([topic]))).topic_id))
        Confluent().write(broker.bootstrap, topic, [Row(None, value)])
        assert Confluent().read(broker.bootstrap, topic, 1)[0].value == value
        done(admin.delete_topics([topic]))
    assert ids[0] != ids[1]


def test_validate_only(admin, topic):
    done(admin.create_topics([NewTopic(topic, 2)], validate_only=True))
    assert topic not in admin.list_topics(timeout=TIMEOUT).topics


def test_manual_assignment(admin, topic):
    done(admin.create_topics([NewTopic(topic, 2, replica_assignment=[[0], [0]])]))
    assert [p.replicas for p in partitions(admin, topic).values()] == [[0], [0]]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
        ({"num_partitions": 1, "replication_factor": 2}, KafkaError.INVALID_REPLICATION_FACTOR),
        ({"num_partitions": 1, "config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG),
        ({"num_partitions": 1, "config": {"no.such.thing": "1"}}, KafkaError.INVALID_CONFIG),
        (
            {"num_partitions": 1, "replica_assignment": [[7]]},
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_a_topic_that_cannot_be_made(admin, topic, wrong, code):
    error = error_of(admin.create_topics([NewTopic(topic, **wrong)]))
    assert error.code() == code
    assert topic not in admin.list_topics(timeout=TIMEOUT).topics


def test_names_that_cannot_be(admin, topic):
    done(admin.create_topics([NewTopic(topic, 1)]))
    exists = error_of(admin.create_topics([NewTopic(topic, 1)]))
    assert exists.code() == KafkaError.TOPIC_ALREADY_EXISTS
    invalid = error_of(admin.create_topics([NewTopic("no spaces", 1)]))
    assert invalid.code() == KafkaError.TOPIC_EXCEPTION


def test_create_partitions(admin, topic):
    done(admin.create_topics([NewTopic(topic, 1)]))
    done(admin.create_partitions([NewPartitions(topic, 3)], validate_only=True))
    assert len(partitions(admin, topic)) == 1
    done(admin.create_partitions([NewPartitions(topic, 3)]))
    done(admin.create_partitions([NewPartitions(topic, 4, [[0]])]))
    assert sorted(partitions(admin, topic)) == [0, 1, 2, 3]
    fewer = error_of(admin.create_partitions([NewPartitions(topic, 2)]))
    assert fewer.code() == KafkaError.INVALID_PARTITIONS


def test_describe_configs(admin, topic):
    done(admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "1000"})]))
    own = config(admin, topic, "retention.ms")
    assert own.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not own.is_default
    assert own.synonyms
    default = config(admin, topic, "max.message.bytes")
    assert (default.value, default.source) == ("1048588", ConfigSource.DEFAULT_CONFIG.value)
    broker = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, "0")]))
    assert broker["num.partitions"].value == "1"
    assert broker["log.dirs"].is_read_only
    missing = error_of(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "not-there")]))
    assert missing.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_alter_configs_replaces_all(admin, topic):
    done(admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "1000"})]))
    change = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "2000000"})
    with pytest.deprecated_call():
        done(admin.alter_configs([change]))
    assert config(admin, topic, "segment.bytes").value == "2000000"
    assert config(admin, topic, "retention.ms").value == "604800000"


def test_incremental_alter_configs(admin, topic):
    before = {"retention.ms": "1000", "segment.bytes": "2000000", "cleanup.policy": "delete"}
    done(admin.create_topics([NewTopic(topic, 1, config=before)]))
    operations = AlterConfigOpType

    def change(*entries, **options):
        rows = [ConfigEntry(n, v, incremental_operation=op) for n, op, v in entries]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=rows)
        return admin.incremental_alter_configs([resource], **options)

    everything = [
        ("retention.ms", operations.SET, "2000"),
        ("segment.bytes", operations.DELETE, None),
        ("cleanup.policy", operations.APPEND, "compact"),
    ]
    done(change(*everything, validate_only=True))
    assert config(admin, topic, "retention.ms").value == "1000"
    done(change(*everything))
    assert config(admin, topic, "retention.ms").value == "2000"
    assert config(admin, topic, "segment.bytes").value == "1073741824"
    assert config(admin, topic, "cleanup.policy").value == "delete,compact"
    done(change(("cleanup.policy", operations.SUBTRACT, "delete")))
    assert config(admin, topic, "cleanup.policy").value == "compact"
    wrong = error_of(change(("retention.ms", operations.SET, "soon")))
    assert wrong.code() == KafkaError.INVALID_CONFIG


def test_delete_records(broker, admin, topic):
    Confluent().write(broker.bootstrap, topic, [Row(None, b"%d" % i) for i in range(5)])
    assert done(admin.delete_records([TopicPartition(topic, 0, 3)])).low_watermark == 3
    with Confluent().consumer(broker.bootstrap, TopicPartition(topic, 0, 3)) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT) == (3, 5)
        assert consumer.poll(TIMEOUT).value() == b"3"
    everything = TopicPartition(topic, 0, -1)
    assert done(admin.delete_records([everything])).low_watermark == 5
    beyond = error_of(admin.delete_records([TopicPartition(topic, 0, 99)]))
    assert beyond.code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_describe_cluster(broker, admin):
    cluster = admin.describe_cluster().result(TIMEOUT)
    assert [(node.id, node.host, node.port) for node in cluster.nodes] == [
        (0, "127.0.0.1", broker.port)
    ]
    assert cluster.controller.id == 0
    assert cluster.cluster_id == admin.list_topics(timeout=TIMEOUT).cluster_id


@pytest.mark.parametrize(
    ("spec", "offset"),
    [
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 4),
        (OffsetSpec.max_timestamp(), 2),
        (OffsetSpec.for_timestamp(NOW + MINUTE), 1),
        (OffsetSpec.for_timestamp(NOW + 9 * MINUTE), -1),
    ],
)
def test_list_offsets(broker, admin, topic, spec, offset):
    minutes = (0, 1, 3, 2)
    rows = [Row(None, b"x", timestamp=NOW + m * MINUTE) for m in minutes]
    Confluent().write(broker.bootstrap, topic, rows)
    assert done(admin.list_offsets({TopicPartition(topic, 0): spec})).offset == offset
