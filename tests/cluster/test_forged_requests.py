"""Requests that only brokers send, from a stranger who knows all epochs: the tree knows better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import PATIENT, no_surprises
from support.cluster import (
    ask_zookeeper,
    create_topic,
    everybody_knows,
    in_sync,
    leaders,
    produce_to_leader,
    topic_state,
)
from support.group_client import GroupClient
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.controller.broker_channel import DELETED, FULL, INCREMENTAL
from tidelog.errors import ErrorCode
from tidelog.keeper import paths
from tidelog.testing import LocalCluster
from tidelog.testing.cluster import ClusterBroker
from tidelog.wire.messages.fetch import FetchResponse, ReplicaState
from tidelog.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from tidelog.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)

MAX_INT = 2**31 - 1

NOT_YET = {"controller_id": -1, "controller_epoch": -1}  # set by Forger.ask


@dataclass
class Forger:
    """Speaks to the broker that leads "mine" as if it were the controller."""

    cluster: LocalCluster
    broker: ClusterBroker
    epochs: dict[str, int]
    topic_id: bytes

    def ask(self, request: Any, response: Any, version: int, **epochs: int) -> Any:
        for name, value in {**self.epochs, **epochs}.items():
            setattr(request, name, value)
        with RawClient(self.broker.port) as client:
            return client.call(request, response, version)

    def leader_and_isr(
        self, states: dict[tuple[str, int], int], kind: int = INCREMENTAL
    ) -> dict[tuple[str, int], int]:
        """Lead these partitions with these epochs; the codes of the answer."""
        topics = [
            LeaderAndIsrTopicState(
                topic_name=name,
                topic_id=self.topic_id if name == "mine" else bytes([i]) * 16,
                partition_states=[
                    LeaderAndIsrPartitionState(
                        partition_index=index,
                        controller_epoch=self.epochs["controller_epoch"],
                        leader=self.broker.broker_id,
                        leader_epoch=epoch,
                        isr=[self.broker.broker_id],
                        partition_epoch=epoch,
                        replicas=[self.broker.broker_id],
                        adding_replicas=[],
                        removing_replicas=[],
                    )
                ],
            )
            for i, ((name, index), epoch) in enumerate(states.items(), 1)
        ]
        request = LeaderAndIsrRequest(**NOT_YET, type=kind, topic_states=topics, live_leaders=[])
        answer = self.ask(request, LeaderAndIsrResponse, 7)
        assert answer.error_code == 0
        codes = [row.error_code for topic in answer.topics for row in topic.partition_errors]
        return dict(zip(states, codes, strict=True))

    def obeys_the_controller(self) -> None:
        """A topic is created: the controller says so, and the broker has it."""
        name = f"after-{len(list(self.broker.data.iterdir()))}"
        create_topic(self.broker, name, replicas=2)
        everybody_knows(self.cluster, name)
        until((self.broker.data / f"{name}-0").is_dir, "it is here")
        produce_to_leader(self.cluster, "mine", batch_of(b"x"))

    def update_metadata(
        self,
        kind: int,
        rows: dict[tuple[str, int], int],
        ports: dict[int, int] | None = None,
    ) -> int:
        """These partitions have these leaders, and the brokers these ports."""
        ids = {"mine": self.topic_id}
        states = [
            UpdateMetadataTopicState(
                topic_name=name,
                topic_id=ids.get(name, b"s" * 16),
                partition_states=[
                    UpdateMetadataPartitionState(
                        partition_index=index,
                        controller_epoch=1,
                        leader=leader,
                        leader_epoch=0,
                        isr=[1],
                        zk_version=0,
                        replicas=[1],
                        offline_replicas=[],
                    )
                ],
            )
            for (name, index), leader in rows.items()
        ]
        brokers = [
            UpdateMetadataBroker(
                id=broker_id,
                endpoints=[
                    UpdateMetadataEndpoint(
                        port=port, host="127.0.0.1", listener="PLAINTEXT", security_protocol=0
                    )
                ],
            )
            for broker_id, port in (self.ports if ports is None else ports).items()
        ]
        request = UpdateMetadataRequest(
            **NOT_YET, type=kind, topic_states=states, live_brokers=brokers
        )
        return int(self.ask(request, UpdateMetadataResponse, 8).error_code)

    def own_group(self, client: GroupClient) -> str:
        """A group that the broker coordinates."""
        until(lambda: client.find("g0").error_code == 0, "there are coordinators")
        groups = (f"g{i}" for i in range(100))
        return next(g for g in groups if client.find(g).node_id == self.broker.broker_id)

    @property
    def ports(self) -> dict[int, int]:
        return {broker.broker_id: broker.port for broker in self.cluster.brokers.values()}


@pytest.fixture(scope="module")
def forger(new_cluster: Any) -> Iterator[Forger]:
    with new_cluster(2, {**PATIENT, "default.replication.factor": 2}) as cluster:
        topic_id = create_topic(cluster.brokers[1], "mine", replicas=2)
        everybody_knows(cluster, "mine")
        broker = cluster.brokers[leaders(cluster.brokers[1], "mine")[0]]

        async def read(keeper: Any) -> dict[str, int]:
            _, stat = await keeper.get(paths.broker(broker.broker_id))
            return {
                "controller_epoch": int((await keeper.get(paths.CONTROLLER_EPOCH))[0]),
                "controller_id": paths.from_json((await keeper.get(paths.CONTROLLER))[0])[
                    "brokerid"
                ],
                "broker_epoch": stat.czxid,
            }

        yield Forger(cluster, broker, ask_zookeeper(cluster, read), topic_id)
        no_surprises(cluster)


def files(cluster: LocalCluster) -> set[Path]:
    """The folders of all brokers, and what lies beside them."""
    return {path for path in cluster.data.rglob("*") if path.is_dir()}


def test_names_and_indexes(forger: Forger) -> None:
    """No folder is created or renamed, neither outside of log.dirs nor for a topic that is none."""
    beside = forger.cluster.data / "x-0"
    beside.mkdir(exist_ok=True)
    before = files(forger.cluster)
    bad = ["../x", "../../x", "", ".", "..", "a\0b", "x" * 250, "a/b", "mine-0/../../x"]
    wanted = {(name, 0): ErrorCode.INVALID_TOPIC_EXCEPTION for name in bad}
    wanted |= {("mine", -1): ErrorCode.INVALID_REQUEST, ("t", -MAX_INT): ErrorCode.INVALID_REQUEST}
    unknown = [("mine", 1), ("mine", MAX_INT), ("strange", 0)]
    wanted |= dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert forger.leader_and_isr(dict.fromkeys(wanted, 5)) == wanted
    for name, index in wanted:
        topic = StopReplicaTopicState(
            topic_name=name,
            partition_states=[
                StopReplicaPartitionState(
                    partition_index=index, leader_epoch=-2, delete_partition=True
                )
            ],
        )
        request = StopReplicaRequest(**NOT_YET, topic_states=[topic])
        assert forger.ask(request, StopReplicaResponse, 4).error_code == 0
    assert files(forger.cluster) == before
    forger.obeys_the_controller()


def test_a_controller_epoch_that_no_controller_has(forger: Forger) -> None:
    request = StopReplicaRequest(**NOT_YET, topic_states=[])
    for epochs in ({"controller_epoch": MAX_INT}, {"controller_id": 77}):
        answer = forger.ask(request, StopReplicaResponse, 4, **epochs)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    for epoch in (-1, forger.epochs["broker_epoch"] - 1, 2**63 - 1):
        answer = forger.ask(request, StopReplicaResponse, 4, broker_epoch=epoch)
        assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
    forger.obeys_the_controller()


def test_a_leader_epoch_that_no_leader_has(forger: Forger) -> None:
    codes = forger.leader_and_isr({("mine", 0): MAX_INT})
    assert codes == {("mine", 0): ErrorCode.UNKNOWN_LEADER_EPOCH}
    forger.obeys_the_controller()


@pytest.mark.parametrize("how", ["FULL LeaderAndIsr", "StopReplica"])
def test_logs_of_topics_that_exist(forger: Forger, how: str) -> None:
    """They are neither quarantined nor deleted."""
    produce_to_leader(forger.cluster, "mine", batch_of(b"x"))
    before = files(forger.cluster)
    if how == "StopReplica":
        row = StopReplicaPartitionState(partition_index=0, leader_epoch=-2, delete_partition=True)
        topic = StopReplicaTopicState(topic_name="mine", partition_states=[row])
        answer = forger.ask(
            StopReplicaRequest(**NOT_YET, topic_states=[topic]), StopReplicaResponse, 4
        )
        assert answer.partition_errors[0].error_code == ErrorCode.INVALID_REQUEST
    else:
        assert forger.leader_and_isr({}, FULL) == {}
    assert files(forger.cluster) == before
    forger.obeys_the_controller()


@pytest.mark.parametrize(
    ("index", "code"), [(20_000_000, ErrorCode.NONE), (-1, ErrorCode.INVALID_REQUEST)]
)
def test_metadata_of_partitions_that_do_not_exist(
    forger: Forger, index: int, code: ErrorCode
) -> None:
    """One request makes nothing that is larger than itself."""
    before = resident(forger.broker.pid)
    rows = {("mine", index): 1, ("strange", index): 1}
    assert forger.update_metadata(INCREMENTAL, rows) == code
    assert resident(forger.broker.pid) < before + (16 << 20)
    assert len(topic_state(forger.broker, "mine").partitions) == 1
    assert topic_state(forger.broker, "strange").error_code


@pytest.mark.parametrize("kind", [INCREMENTAL, FULL], ids=["INCREMENTAL", "FULL"])
def test_topics_that_are_not_deleted(forger: Forger, kind: int) -> None:
    """They stay in the metadata, and what groups have committed for them stays, too."""
    with GroupClient(forger.broker.port) as client:
        group = forger.own_group(client)
        until(lambda: client.commit(group, "mine", 42) == 0, "the coordinator has loaded")
        before = metadata(forger.broker)
        rows = {("mine", 0): DELETED} if kind == INCREMENTAL else {}
        assert forger.update_metadata(kind, rows, {}) == 0
        assert metadata(forger.broker) == before
        assert client.committed(group, "mine") == 42
    forger.obeys_the_controller()


def test_addresses_that_are_no_brokers(forger: Forger) -> None:
    before = metadata(forger.broker)
    ports = dict.fromkeys((*forger.ports, 77), 9)
    assert forger.update_metadata(INCREMENTAL, {}, ports) == 0
    assert metadata(forger.broker) == before
    forger.obeys_the_controller()


def metadata(broker: ClusterBroker) -> tuple[set[str], dict[int, int]]:
    """The topics and the ports of the brokers that clients are told."""
    with RawClient(broker.port) as client:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = client.call(request, MetadataResponse, 9)
    ports = {row.node_id: row.port for row in answer.brokers}
    return {topic.name for topic in answer.topics}, ports


def resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def test_a_follower_that_is_none(forger: Forger) -> None:
    """acks=all must not count who has not fetched: the follower is frozen, a stranger fetches."""
    until(lambda: in_sync(forger.broker, "mine", 2), "both are in sync")
    other = next(b for b in forger.cluster.brokers.values() if b is not forger.broker)
    with RawClient(forger.broker.port) as client:
        other.freeze()
        try:
            written = client.produce("mine", batch_of(b"y"), acks=1)
            offset = written.base_offset + 1
            for version, epoch in ((12, -1), (16, -1), (16, forger.epochs["broker_epoch"])):
                state = ReplicaState(replica_id=other.broker_id, replica_epoch=epoch)
                topic = "mine" if version < 13 else forger.topic_id
                request = RawClient.fetch_request(
                    (topic, 0, offset), replica_id=other.broker_id, replica_state=state
                )
                answer = client.call(request, FetchResponse, version)
                (row,) = [part for t in answer.responses for part in t.partitions]
                assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            (seen,) = client.fetch(("mine", 0, offset - 1))
            assert seen.high_watermark == offset - 1
        finally:
            other.thaw()
        until(
            lambda: client.fetch(("mine", 0, offset))[0].high_watermark == offset,
            "the true follower has fetched",
        )
