"""The controller on a real keeper: what it takes, what it refuses, what outlives a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.lone_controller import ME, Cluster, run

from tidelog.clock import FakeClock
from tidelog.errors import ErrorCode, SettingError
from tidelog.keeper import paths
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import KeeperError
from tidelog.keeper.registry import PRODUCER_ID_BLOCK, Registry
from tidelog.metadata import ClusterMetadata
from tidelog.new_topic import NewTopic
from tidelog.wire.uuids import parse_uuid


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_first_start_and_later_ones(cluster: Cluster) -> None:
    assert len(parse_uuid(cluster.cluster_id)) == 16
    first = cluster.cluster_id
    assert run(cluster.keeper.get(paths.CONTROLLER_EPOCH))[0] == b"1"
    for path in paths.PERSISTENT:
        assert run(cluster.keeper.exists(path)) is not None
    cluster.restart()
    assert cluster.cluster_id == first
    assert run(cluster.keeper.get(paths.CONTROLLER_EPOCH))[0] == b"2"
    assert cluster.controller.metadata.controller_id == 3


def test_the_id_on_disk_is_taken(tmp_path: Path) -> None:
    keeper = EmbeddedKeeper.open(str(tmp_path / "journal"))
    registry = Registry(keeper, FakeClock())
    assert run(registry.find_cluster_id("from-meta-properties")) == "from-meta-properties"
    assert run(registry.find_cluster_id("another")) == "from-meta-properties"


def test_a_broker_registers_once(cluster: Cluster) -> None:
    value = cluster.json(paths.broker(3))
    assert (value["port"], value["version"]) == (9092, 5)
    assert cluster.json(paths.CONTROLLER)["brokerid"] == 3
    with pytest.raises(SettingError, match=r"broker\.id=3"):
        run(cluster.registry.register(ME))


def test_create(cluster: Cluster) -> None:
    topic = cluster.create("t", 3, 1, config={"retention.ms": "1000"})
    assert cluster.published[-1].topics["t"] is topic
    assert cluster.published[-1].topic_by_id(topic.topic_id) is topic
    assert [(p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions] == [
        (3, 0, (3,), (3,))
    ] * 3
    value = cluster.json(paths.topic("t"))
    assert value["partitions"] == {"0": [3], "1": [3], "2": [3]}
    assert parse_uuid(value["topic_id"]) == topic.topic_id
    state = cluster.json(paths.partition_state("t", 2))
    assert (state["leader"], state["isr"], state["controller_epoch"]) == (3, [3], 1)
    assert cluster.json(paths.topic_config("t"))["config"] == {"retention.ms": "1000"}
    cluster.restart()
    assert cluster.controller.metadata.topics["t"] == topic
    assert cluster.controller.metadata.topic_by_id(topic.topic_id) == topic


def test_defaults_of_the_broker(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path, {"num.partitions": 4, "topic.partition.count.map": "special:7,other:2"}
    )
    cluster.create("plain")
    cluster.create("special")
    cluster.create("other", 1)
    cluster.create("manual", assignment=[[3], [3]])
    assert cluster.topics == {"plain": 4, "special": 7, "other": 1, "manual": 2}


def test_validation_only(cluster: Cluster) -> None:
    size = (cluster.path / "journal").stat().st_size
    planned = run(cluster.controller.create_topic(NewTopic("t", 5), validate_only=True))
    assert len(planned.partitions) == 5
    assert cluster.topics == {}
    assert (cluster.path / "journal").stat().st_size == size
    cluster.create("t", 1)
    run(cluster.controller.create_partitions("t", 3, validate_only=True))
    assert cluster.topics == {"t": 1}


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ({"name": "old"}, ErrorCode.TOPIC_ALREADY_EXISTS, "'old' exists already"),
        ({"name": "a_b.c"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "cannot be told from 'a.b.c'"),
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION, "'.' or '..'"),
        ({"name": "a/b"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "more than letters"),
        ({"name": "a\n"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "more than letters"),
        ({"name": "é"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "more than letters"),
        ({"name": "x" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION, "250 characters"),
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS, "at least one"),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS, "at least one"),
        ({"partitions": 2**31 - 1}, ErrorCode.INVALID_PARTITIONS, "at most 10000"),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR, "1 broker"),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR, "use 1 to 1"),
        ({"assignment": [[3], [4]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker 4"),
        ({"assignment": [[3, 3]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
        ({"assignment": [[]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no replica"),
        ({"assignment": [[3]], "partitions": 1}, ErrorCode.INVALID_REQUEST, "either"),
        ({"config": {"retention.ms": "x"}}, ErrorCode.INVALID_CONFIG, "retention.ms=x"),
        ({"config": {"retention.m": "1"}}, ErrorCode.INVALID_CONFIG, "did you mean retention.ms"),
    ],
)
def test_refusals(cluster: Cluster, how: dict[str, Any], code: ErrorCode, says: str) -> None:
    cluster.create("old")
    cluster.create("a.b.c")
    error = cluster.refused(cluster.controller.create_topic(NewTopic(**{"name": "new", **how})))
    assert error.code == code
    assert says in error.message


def test_deletion(cluster: Cluster) -> None:
    topic = cluster.create("t", 2, config={"retention.ms": "1"})
    cluster.create("tt", 1)
    run(cluster.controller.delete_topic("t"))
    assert cluster.topics == {"tt": 1}
    assert cluster.published[-1].topic_by_id(topic.topic_id) is None
    assert run(cluster.keeper.exists(paths.topic_config("t"))) is None
    assert cluster.marks() == []
    missing = cluster.refused(cluster.controller.delete_topic("t"))
    assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = cluster.create("t", 1)
    assert again.topic_id != topic.topic_id
    cluster.restart()
    assert cluster.topics == {"t": 1, "tt": 1}


def test_a_deletion_that_a_crash_interrupted(cluster: Cluster) -> None:
    """The mark outlives the znodes of the topic: its logs are to go too."""
    cluster.create("t")

    def crash(metadata: ClusterMetadata) -> None:
        raise RuntimeError("power cut")

    cluster.controller._publish = crash
    with pytest.raises(RuntimeError):
        run(cluster.controller.delete_topic("t"))
    assert cluster.marks() == ["t"]
    cluster.restart()
    assert cluster.topics == {}
    assert cluster.marks() == []


def test_more_partitions(cluster: Cluster) -> None:
    topic = cluster.create("t", 2, config={"retention.ms": "1"})
    run(cluster.controller.create_partitions("t", 4))
    run(cluster.controller.create_partitions("t", 5, [[3]]))
    cluster.restart()
    grown = cluster.controller.metadata.topics["t"]
    assert cluster.topics == {"t": 5}
    assert (grown.topic_id, grown.config) == (topic.topic_id, {"retention.ms": "1"})


@pytest.mark.parametrize(
    ("name", "count", "assignment", "code"),
    [
        ("none", 5, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", -1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 2**31 - 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 4, [[3]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[4]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_that_are_refused(
    cluster: Cluster, name: str, count: int, assignment: Any, code: ErrorCode
) -> None:
    cluster.create("t", 2)
    error = cluster.refused(cluster.controller.create_partitions(name, count, assignment))
    assert error.code == code


def test_settings_outlive_a_restart(cluster: Cluster) -> None:
    cluster.create("t")
    write = cluster.registry.write_config
    run(write(paths.topic_config("t"), {"retention.ms": "5"}))
    run(write(paths.topic_config("t"), {"segment.bytes": "1000"}))
    run(write(paths.broker_config("<default>"), {"log.retention.ms": "7"}))
    run(write(paths.broker_config("3"), {}))
    cluster.restart()
    assert cluster.controller.metadata.topics["t"].config == {"segment.bytes": "1000"}
    configs = run(cluster.registry.broker_configs())
    assert configs == {"<default>": {"log.retention.ms": "7"}, "3": {}}
    assert len(run(cluster.registry.config_changes(""))) == 4, "every broker is notified"


def test_producer_ids_are_never_given_twice(cluster: Cluster) -> None:
    seen: list[int] = []
    for i in range(6):
        block = run(cluster.registry.allocate_producer_ids(3))
        assert len(block) == PRODUCER_ID_BLOCK
        seen += [block[0], block[-1]]
        if i % 2:
            cluster.restart()  # what was left of the block is never used
    assert seen == sorted(set(seen))
    value = cluster.json(paths.PRODUCER_IDS)
    assert (value["block_start"], value["block_end"]) == ("5000", "5999")


def test_what_the_keeper_did_not_take_has_not_happened(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("t")
    before = cluster.controller.metadata

    async def refuse(operations: object) -> None:
        raise KeeperError("the disk is full")

    monkeypatch.setattr(cluster.keeper, "multi", refuse)
    for work in (
        cluster.controller.create_topic(NewTopic("new")),
        cluster.controller.delete_topic("t"),
        cluster.controller.create_partitions("t", 9),
        cluster.registry.allocate_producer_ids(3),
    ):
        with pytest.raises(KeeperError):
            run(work)
        assert cluster.controller.metadata is before
    assert len(cluster.published) == 1


def test_two_brokers_cannot_be_given_the_same_block(cluster: Cluster) -> None:
    """A conditional write: who read an old block number tries again."""
    blocks = [run(cluster.registry.allocate_producer_ids(3)) for _ in range(2)]
    real = cluster.keeper.get
    answers = [run(real(paths.PRODUCER_IDS))]

    async def stale(path: str, watch: Any = None) -> Any:
        return answers.pop() if answers else await real(path, watch)

    run(cluster.registry.allocate_producer_ids(4))
    cluster.keeper.get = stale  # type: ignore[method-assign]
    blocks.append(run(cluster.registry.allocate_producer_ids(3)))
    assert not answers
    assert [block[0] for block in blocks] == [0, PRODUCER_ID_BLOCK, 3 * PRODUCER_ID_BLOCK]
