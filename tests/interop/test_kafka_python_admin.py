"""kafka-python's admin client, which knows more APIs than any other here."""

import uuid
from contextlib import closing

import pytest
from interop.peers import TIMEOUT, KafkaPython
from kafka import KafkaProducer, TopicPartition, errors
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    OffsetSpec,
)
from support.client_records import MINUTE, NOW, Row, batches_on_disk

PEER = KafkaPython()


@pytest.fixture(scope="module")
def admin(broker):
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as client:
        yield client


def resource(topic, configs=None):
    return ConfigResource(ConfigResourceType.TOPIC, topic, configs)


def configs(admin, topic, which="all"):
    found = admin.describe_configs([resource(topic)], config_filter=which)["topic"][topic]
    return {name: row["value"] for name, row in found.items()}


def test_create_describe_delete(admin, topic):
    wanted = {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "9999"}}
    [created] = admin.create_topics({topic: wanted})["topics"]
    assert (created["num_partitions"], created["replication_factor"]) == (3, 1)
    assert created["configs"]["retention.ms"]["value"] == "9999"
    assert topic in admin.list_topics()
    [described] = admin.describe_topics([topic])
    assert [p["partition_index"] for p in described["partitions"]] == [0, 1, 2]
    assert all(p["leader_id"] == 0 and p["isr_nodes"] == [0] for p in described["partitions"])

    assert described["topic_id"] == created["topic_id"]
    topic_id = uuid.UUID(created["topic_id"])
    [by_id] = admin.describe_topics([topic_id])
    assert by_id["name"] == topic
    admin.delete_topics([topic_id])
    assert topic not in admin.list_topics()
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([topic])


def test_defaults_validation_and_assignment(admin, topic):
    [checked] = admin.create_topics([topic], validate_only=True)["topics"]
    assert (checked["num_partitions"], checked["replication_factor"]) == (1, 1)
    assert topic not in admin.list_topics()
    admin.create_topics({topic: {"assignments": {0: [0], 1: [0]}}})
    [described] = admin.describe_topics([topic])
    assert [p["replica_nodes"] for p in described["partitions"]] == [[0], [0]]
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics([topic])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"num_partitions": 0}, errors.InvalidPartitionsError),
        ({"replication_factor": 3}, errors.InvalidReplicationFactorError),
        ({"configs": {"retention.ms": "soon"}}, errors.InvalidConfigurationError),
        ({"assignments": {0: [5]}}, errors.InvalidReplicationAssignmentError),
        ({"assignments": {1: [0]}}, errors.InvalidReplicationAssignmentError),
    ],
)
def test_a_topic_that_cannot_be_made(admin, topic, wrong, error):
    with pytest.raises(error):
        admin.create_topics({topic: wrong})
    assert topic not in admin.list_topics()


def test_create_partitions(admin, topic):
    admin.create_topics([topic])
    admin.create_partitions({topic: 2})
    admin.create_partitions({topic: {"count": 3, "assignments": [[0]]}})
    assert len(admin.describe_topics([topic])[0]["partitions"]) == 3
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_partitions({topic: 1})


def test_describe_topic_partitions_page_by_page(admin, topic):
    admin.create_topics({topic: {"num_partitions": 5, "replication_factor": 1}})
    found, cursor = [], None
    while True:
        page = admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
        [described] = page["topics"]
        assert len(described["partitions"]) <= 2
        found += [p["partition_index"] for p in described["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [0, 1, 2, 3, 4]


def test_configs(admin, topic):
    admin.create_topics({topic: {"configs": {"retention.ms": "1000", "segment.bytes": "2000000"}}})
    assert configs(admin, topic, "modified") == {"retention.ms": "1000", "segment.bytes": "2000000"}
    assert configs(admin, topic)["max.message.bytes"] == "1048588"

    admin.alter_configs(
        [
            resource(
                topic,
                {
                    "retention.ms": "2000",
                    "segment.bytes": (AlterConfigOp.DELETE, None),
                    "cleanup.policy": (AlterConfigOp.APPEND, "compact"),
                },
            )
        ]
    )
    assert configs(admin, topic, "modified") == {
        "retention.ms": "2000",
        "cleanup.policy": "delete,compact",
    }
    admin.alter_configs([resource(topic, {"cleanup.policy": "delete"})], incremental=False)
    assert configs(admin, topic)["cleanup.policy"] == "delete"
    wrong = admin.alter_configs([resource(topic, {"retention.ms": "soon"})])
    assert "InvalidConfiguration" in wrong["topic"][topic]
    admin.reset_configs([resource(topic, {})])
    assert configs(admin, topic, "modified") == {}


def test_configs_of_the_broker(broker, admin):
    own = ConfigResource(ConfigResourceType.BROKER, "0")
    found = admin.describe_configs([own], include_synonyms=True, config_filter="all")["broker"]["0"]
    assert found["log.dirs"]["value"] == str(broker.data)
    assert found["log.dirs"]["config_source"] == "STATIC_BROKER_CONFIG"
    assert found["num.partitions"]["synonyms"]
    assert "0" in admin.list_config_resources([ConfigResourceType.BROKER])["broker"]


def test_delete_records(broker, admin, topic):
    PEER.write(broker.bootstrap, topic, [Row(None, b"%d" % i) for i in range(5)])
    partition = TopicPartition(topic, 0)
    assert admin.delete_records({partition: 3})[partition]["low_watermark"] == 3
    earliest = admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})
    assert earliest[partition].offset == 3
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({partition: 99})


@pytest.mark.parametrize(
    ("spec", "offset"),
    [
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 4),
        (OffsetSpec.MAX_TIMESTAMP, 2),
        (OffsetSpec.EARLIEST_LOCAL, 0),
        (OffsetSpec.LATEST_TIERED, -1),
        (MINUTE, 1),
    ],
)
def test_list_offsets(broker, admin, topic, spec, offset):
    rows = [Row(None, b"x", timestamp=NOW + minute * MINUTE) for minute in (0, 1, 3, 2)]
    PEER.write(broker.bootstrap, topic, rows)
    partition = TopicPartition(topic, 0)
    wanted = spec if isinstance(spec, OffsetSpec) else NOW + spec
    found = admin.list_partition_offsets({partition: wanted})[partition]
    assert found.offset == offset
    if spec == OffsetSpec.MAX_TIMESTAMP:
        assert found.timestamp == NOW + 3 * MINUTE


def test_describe_cluster(broker, admin):
    cluster = admin.describe_cluster()
    assert [(b["broker_id"], b["host"], b["port"]) for b in cluster["brokers"]] == [
        (0, "127.0.0.1", broker.port)
    ]
    assert cluster["controller_id"] == 0
    assert cluster["cluster_id"]


def test_describe_log_dirs(broker, admin, topic):
    PEER.write(broker.bootstrap, topic, [Row(None, bytes(1000))])
    [node] = admin.describe_log_dirs({topic: [0]})
    [directory] = node["log_dirs"]
    assert directory["log_dir"] == str(broker.data)
    [described] = directory["topics"]
    size = (broker.data / f"{topic}-0" / f"{0:020}.log").stat().st_size
    assert described["name"] == topic
    assert described["partitions"][0]["partition_size"] == size > 1000
    assert directory["total_bytes"] > directory["usable_bytes"] > 0


def test_describe_producers(broker, admin, topic):
    partition = TopicPartition(topic, 0)
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as producer:
        for _ in range(3):
            producer.send(topic, b"x", timestamp_ms=NOW).get(TIMEOUT)
        [state] = admin.describe_producers([partition])[partition].active_producers
    assert state.producer_id == batches_on_disk(broker, topic)[0].producer_id
    assert (state.producer_epoch, state.last_sequence, state.last_timestamp) == (0, 2, NOW)
    assert state.current_transaction_start_offset == -1
