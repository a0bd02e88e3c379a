"""Brokers become a cluster: registration, topics, settings, all through any broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.cluster import (
    ask_zookeeper,
    controller,
    create_topic,
    everybody_knows,
    leaders,
    metadata,
    produce_to_leader,
    topic_state,
)
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.keeper import paths
from tidelog.testing import LocalCluster
from tidelog.testing.cluster import ClusterBroker
from tidelog.testing.ports import free_port
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.uuids import uuid_text


def znode(cluster: LocalCluster, path: str) -> Any:
    return json.loads(ask_zookeeper(cluster, lambda keeper: keeper.get(path))[0])


def test_everybody_knows_everybody(cluster: LocalCluster) -> None:
    for broker in cluster.brokers.values():
        until(lambda b=broker: len(metadata(b).brokers) == 3, "all three are known")
        found = {row.node_id: row.port for row in metadata(broker).brokers}
        assert found == {b.broker_id: b.port for b in cluster.brokers.values()}
    assert len({metadata(b).cluster_id for b in cluster.brokers.values()}) == 1
    assert controller(cluster).broker_id in cluster.brokers


def test_znodes_are_kafkas(cluster: LocalCluster) -> None:
    topic_id = create_topic(cluster.brokers[1], "znodes", 2, retention_ms=5000)
    one = znode(cluster, "/brokers/ids/1")
    assert (one["version"], one["host"], one["port"]) == (5, "127.0.0.1", cluster.brokers[1].port)
    assert one["endpoints"] == [f"PLAINTEXT://127.0.0.1:{cluster.brokers[1].port}"]
    assert znode(cluster, "/controller")["brokerid"] == controller(cluster).broker_id
    assert znode(cluster, "/cluster/id")["id"] == metadata(cluster.brokers[1]).cluster_id
    topic = znode(cluster, "/brokers/topics/znodes")
    assert topic["topic_id"] == uuid_text(topic_id)
    assert {i: sorted(row) for i, row in topic["partitions"].items()} == {
        "0": [1, 2, 3],
        "1": [1, 2, 3],
    }
    state = znode(cluster, "/brokers/topics/znodes/partitions/1/state")
    assert state["leader"] == topic["partitions"]["1"][0]
    assert sorted(state["isr"]) == [1, 2, 3]
    assert state["controller_epoch"] == znode(cluster, "/controller_epoch")
    assert znode(cluster, "/config/topics/znodes")["config"] == {"retention.ms": "5000"}
    for path in paths.PERSISTENT:
        assert ask_zookeeper(cluster, lambda keeper, p=path: keeper.exists(p)) is not None


@pytest.mark.parametrize("broker_id", [1, 2, 3])
def test_topics_through_any_broker(cluster: LocalCluster, broker_id: int) -> None:
    broker = cluster.brokers[broker_id]
    name = f"through-{broker_id}"
    create_topic(broker, name, 6)
    assert topic_state(broker, name).error_code == 0, "it is there when the answer comes"
    everybody_knows(cluster, name)
    known = leaders(broker, name)
    assert sorted(known.values()) == [1, 1, 2, 2, 3, 3]
    with RawClient(broker.port) as client:
        row = CreatePartitionsTopic(name=name, count=9, assignments=None)
        request = CreatePartitionsRequest(topics=[row], timeout_ms=30_000, validate_only=False)
        assert client.call(request, CreatePartitionsResponse, 3).results[0].error_code == 0
        assert len(topic_state(broker, name).partitions) == 9
        again = CreatePartitionsRequest(topics=[row], timeout_ms=30_000, validate_only=False)
        result = client.call(again, CreatePartitionsResponse, 3).results[0]
        assert result.error_code == ErrorCode.INVALID_PARTITIONS
        assert "has 9 partitions already" in result.error_message
    for other in cluster.brokers.values():
        until(lambda b=other: len(list(b.data.glob(f"{name}-*"))) == 9, "all have it")
    with RawClient(broker.port) as client:
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
        answer = client.call(deletion, DeleteTopicsResponse, 6).responses[0]
        assert answer.error_code == 0
    for other in cluster.brokers.values():
        until(lambda b=other: topic_state(b, name).error_code, "nobody knows it")
        until(lambda b=other: not list(b.data.glob(f"{name}-*")), "the files are gone")


def test_a_topic_that_is_made_again(cluster: LocalCluster) -> None:
    """Deleted and created at once, many times: the old records never come back."""
    for round_number in range(5):
        create_topic(cluster.brokers[1 + round_number % 3], "again", 3)
        produce_to_leader(cluster, "again", batch_of(b"x"))
        with RawClient(cluster.brokers[1].port) as client:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name="again")], timeout_ms=30_000
            )
            assert client.call(request, DeleteTopicsResponse, 6).responses[0].error_code == 0
        for broker in cluster.brokers.values():
            until(lambda b=broker: topic_state(b, "again").error_code, "it is gone")


def test_settings_reach_everybody(cluster: LocalCluster) -> None:
    create_topic(cluster.brokers[1], "configured", 3)
    everybody_knows(cluster, "configured")
    with RawClient(cluster.brokers[2].port) as client:
        change = AlterableConfig(name="retention.ms", config_operation=0, value="1234567")
        resource = AlterConfigsResource(
            resource_type=2, resource_name="configured", configs=[change]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        answer = client.call(request, IncrementalAlterConfigsResponse, 1)
        assert answer.responses[0].error_code == 0
    for broker in cluster.brokers.values():
        until(lambda b=broker: config(b, "configured", "retention.ms") == "1234567", "told")


def config(broker: ClusterBroker, topic: str, name: str) -> str:
    resource = DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=[name]
    )
    with RawClient(broker.port) as client:
        request = DescribeConfigsRequest(resources=[resource])
        answer = client.call(request, DescribeConfigsResponse, 4).results[0]
    value: str = answer.configs[0].value
    return value


def test_producer_ids_are_given_out_once(cluster: LocalCluster) -> None:
    ids = []
    for broker in cluster.brokers.values():
        with RawClient(broker.port) as client:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            ids += [client.call(request, InitProducerIdResponse, 4).producer_id for _ in range(5)]
    assert len(set(ids)) == 15


def test_a_second_broker_with_the_same_id(cluster: LocalCluster, tmp_path: Any) -> None:
    settings = {"zookeeper.connect": cluster.zookeeper, "zookeeper.session.timeout.ms": 4000}
    twin = ClusterBroker(2, tmp_path / "twin", settings)
    with pytest.raises(RuntimeError, match="a broker with this id is running already, on 127"):
        twin.start()
    assert len(metadata(cluster.brokers[1]).brokers) == 3


@pytest.mark.parametrize(
    ("chroot", "other"),
    [("", "this broker to "), ("/empty", "but ZooKeeper at .* knows of no cluster")],
)
def test_data_of_another_cluster(
    cluster: LocalCluster, tmp_path: Any, chroot: str, other: str
) -> None:
    settings = {"zookeeper.connect": cluster.zookeeper + chroot}
    stranger = ClusterBroker(7, tmp_path / "stranger", settings)
    stranger.data.mkdir()
    meta = stranger.data / "meta.properties"
    meta.write_text("version=0\nbroker.id=7\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    with pytest.raises(RuntimeError, match=f"belongs to cluster AAAAAAAAAAAAAAAAAAAAAA, {other}"):
        stranger.start()


def test_no_zookeeper(tmp_path: Any) -> None:
    settings = {
        "zookeeper.connect": f"127.0.0.1:{free_port()}",
        "zookeeper.connection.timeout.ms": 300,
    }
    with pytest.raises(RuntimeError, match="no ZooKeeper answers"):
        ClusterBroker(1, tmp_path / "lonely", settings).start()


def test_told_to_stop_while_it_waits_for_zookeeper(tmp_path: Any) -> None:
    settings = {
        "zookeeper.connect": f"127.0.0.1:{free_port()}",
        "zookeeper.connection.timeout.ms": 600_000,
    }
    broker = ClusterBroker(1, tmp_path / "waiting", settings)
    broker.launch()
    try:
        until(lambda: "waiting for ZooKeeper at" in broker.log, "it tries to connect")
        assert broker.stop(timeout=100) == 0
    finally:
        broker.kill()
    assert "Traceback" not in broker.log


def test_who_knows_nothing_yet_serves_nobody(new_cluster: Any) -> None:
    """A client would believe that there are no brokers and no topics."""
    with new_cluster(2, {"zookeeper.session.timeout.ms": 100_000}) as cluster:
        governor = controller(cluster)
        (other,) = (broker for broker in cluster.brokers.values() if broker is not governor)
        other.kill()
        governor.freeze()
        other.launch()

        def hangs_up() -> bool:
            try:
                found = metadata(other)
            except ConnectionRefusedError:
                return False  # it does not listen yet
            except ConnectionError:
                return True
            raise AssertionError(f"it answers: {found}")

        until(hangs_up, "it takes connections")
        governor.thaw()
        other.wait_ready()
        assert {row.node_id for row in metadata(other).brokers} == {1, 2}
