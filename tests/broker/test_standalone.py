"""A broker without ZooKeeper: the same controller as in a cluster, on a keeper of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.lone_controller import Cluster, run
from support.raw_client import RawClient
from support.waiting import comes_true

from tidelog.broker.broker import Broker
from tidelog.broker.standalone import KEEPER_JOURNAL
from tidelog.controller.store import Store
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import Create, NotWritten
from tidelog.keeper.registry import PRODUCER_ID_BLOCK
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalBroker
from tidelog.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from tidelog.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from tidelog.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tidelog.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse


def settings(path: Path) -> dict[str, str]:
    return {"log.dirs": str(path), "listeners": "PLAINTEXT://127.0.0.1:0"}


# -- one controller for one broker and for many -----------------------------------


async def test_it_is_a_cluster_of_one(tmp_path: Path) -> None:
    """Registered, elected, and its partitions go by the controller's requests."""
    async with Broker(settings(tmp_path)) as broker:
        assert broker.election.controller is not None
        registered = await broker.registry.brokers()
        assert registered.keys() == {broker.broker_id}
        assert registered[broker.broker_id].epoch == broker.broker_epoch
        await broker.controller.create_topic(NewTopic("t", 2))
        assert {key[0] for key in broker.replicas.partitions} == {"t"}
        assert all(partition.leads for partition in broker.replicas.partitions.values())
        await broker.controller.set_topic_config("t", {"retention.ms": "5"})
        assert broker.replicas.partitions["t", 0].log.config.retention_ms == 5
        controller = broker.election.controller
        await comes_true(lambda: controller.metadata.topics["t"].config == {"retention.ms": "5"})


@pytest.mark.parametrize(
    ("request_type", "answer_type", "version", "code"),
    [
        (LeaderAndIsrRequest, LeaderAndIsrResponse, 7, ErrorCode.STALE_CONTROLLER_EPOCH),
        (StopReplicaRequest, StopReplicaResponse, 4, ErrorCode.STALE_CONTROLLER_EPOCH),
        (UpdateMetadataRequest, UpdateMetadataResponse, 8, ErrorCode.STALE_CONTROLLER_EPOCH),
    ],
)
def test_it_refuses_controller_requests(
    tmp_path: Path, request_type: Any, answer_type: Any, version: int, code: ErrorCode
) -> None:
    """Also with the epochs of its own controller and registration: that one calls locally."""
    with LocalBroker(data=tmp_path) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        for epoch in range(1, 40):
            request = request_type(
                controller_id=1, controller_epoch=1, broker_epoch=epoch, topic_states=[]
            )
            if request_type is UpdateMetadataRequest:
                request.live_brokers = []
            elif request_type is LeaderAndIsrRequest:
                request.live_leaders = []
            assert client.call(request, answer_type, version).error_code == code
        assert client.read_values("t") == []


def test_it_refuses_requests_of_brokers(tmp_path: Path) -> None:
    with LocalBroker(data=tmp_path) as broker, RawClient(broker.port) as client:
        shutdown = ControlledShutdownRequest(broker_id=1, broker_epoch=1)
        answer = client.call(shutdown, ControlledShutdownResponse, 3)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        change = AlterPartitionRequest(broker_id=1, broker_epoch=1, topics=[])
        answer = client.call(change, AlterPartitionResponse, 3)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER


async def test_a_deletion_that_a_crash_interrupted(tmp_path: Path) -> None:
    """The mark is in the journal, the topic and its logs are still there: all of it goes."""
    async with Broker(settings(tmp_path)) as broker:
        for name in ("doomed", "kept"):
            await broker.controller.create_topic(NewTopic(name))
    keeper = EmbeddedKeeper.open(str(tmp_path / KEEPER_JOURNAL))
    await keeper.multi([Create(paths.deletion("doomed"))])
    await keeper.close()
    async with Broker(settings(tmp_path)) as broker:
        assert broker.metadata.topics.keys() == {"kept"}
        assert await broker.keeper.children(paths.DELETED_TOPICS) == []
        assert not list(tmp_path.glob("doomed*"))


# -- logs that are ahead of the keeper: Kafka wrote them, or the journal was lost ---


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.create("t", 3)
    return made


def test_leader_epochs_go_beyond_those_in_the_logs(cluster: Cluster) -> None:
    def load(log_epochs: dict[tuple[str, int], int]) -> list[int]:
        run(cluster.controller.load(cluster.cluster_id, 3, log_epochs))
        return [p.leader_epoch for p in cluster.controller.metadata.topics["t"].partitions]

    in_logs = {("t", 0): 0, ("t", 1): 7, ("t", 2): -1, ("gone", 0): 99}
    assert load(in_logs) == [0, 8, 0]
    assert cluster.json(paths.partition_state("t", 1))["leader_epoch"] == 8
    cluster.restart()
    size = (cluster.path / "journal").stat().st_size
    assert load({**in_logs, ("t", 1): 8}) == [0, 8, 0]
    assert (cluster.path / "journal").stat().st_size == size, "nothing to do"


def test_producer_ids_go_beyond_those_in_the_logs(cluster: Cluster) -> None:
    run(cluster.registry.skip_producer_ids(3, 4711))
    block = run(cluster.registry.allocate_producer_ids(3))
    assert block == range(4712, 4712 + PRODUCER_ID_BLOCK)
    size = (cluster.path / "journal").stat().st_size
    run(cluster.registry.skip_producer_ids(3, 4711))  # long given out
    assert (cluster.path / "journal").stat().st_size == size
    cluster.restart()
    assert run(cluster.registry.allocate_producer_ids(3))[0] == 4712 + PRODUCER_ID_BLOCK


async def test_a_topic_is_marked_until_its_logs_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash in between would leave logs of no known topic."""
    found: list[bool] = []

    async def remove(store: Store, names: Any) -> None:
        found.append(("t", 0) in broker.manager.logs)
        await before(store, names)

    before = Store.remove_deletion_marks
    async with Broker(settings(tmp_path)) as broker:
        await broker.controller.create_topic(NewTopic("t", 3))
        monkeypatch.setattr(Store, "remove_deletion_marks", remove)
        await broker.controller.delete_topic("t")
    assert found == [False]


async def test_a_mark_that_could_not_be_removed_does_not_delete_the_next_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise NotWritten("no space")

    async with Broker(settings(tmp_path)) as broker:
        await broker.controller.create_topic(NewTopic("t", 1))
        with monkeypatch.context() as patch:
            patch.setattr(Store, "remove_deletion_marks", fail)
            with pytest.raises(ApiError):
                await broker.controller.delete_topic("t")
        await broker.controller.create_topic(NewTopic("t", 1))
    async with Broker(settings(tmp_path)) as broker:
        assert "t" in broker.metadata.topics
        assert ("t", 0) in broker.manager.logs
