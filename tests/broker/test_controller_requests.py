"""Controller requests: not for this broker, or about topics that come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.controller_requests import ControllerRequests
from tidelog.clock import FakeClock
from tidelog.controller.broker_channel import DELETED, FULL, INCREMENTAL
from tidelog.errors import ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import Create, Delete, NoNode, Set, Stat, Unreachable, Watch
from tidelog.keeper.registry import Registry
from tidelog.metadata import BrokerInfo, ClusterMetadata
from tidelog.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.wire.messages.stop_replica import StopReplicaRequest
from tidelog.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)


@pytest.mark.parametrize(
    "kind",
    [LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest],
    ids=lambda k: k.__name__,
)
async def test_a_request_for_an_earlier_registration(kind: Any) -> None:
    """The controller has not noticed that we died, and tells us what we are to lead."""
    request = kind(controller_id=1, controller_epoch=1, broker_epoch=7, topic_states=[])
    requests = ControllerRequests(None, None)  # type: ignore[arg-type]  # a refusal needs neither
    answer: Any = asyncio.create_task(requests.apply(request))
    await asyncio.sleep(0)
    assert not answer.done(), "before a registration its epoch is not known"
    requests.registered(8)
    assert (await answer).error_code == ErrorCode.STALE_BROKER_EPOCH


class Listener:
    """The broker that gets the requests, as far as its metadata go."""

    broker_id = 1
    standalone = False
    manager = SimpleNamespace(logs={})

    def __init__(self) -> None:
        self.metadata = ClusterMetadata()

    def publish(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata


def told(topics: dict[str, int], kind: int = INCREMENTAL) -> UpdateMetadataRequest:
    """These topics have this leader."""
    states = [
        UpdateMetadataTopicState(
            topic_name=name,
            topic_id=bytes(16),
            partition_states=[
                UpdateMetadataPartitionState(
                    partition_index=0,
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
        for name, leader in topics.items()
    ]
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=1,
        type=kind,
        topic_states=states,
        live_brokers=[],
    )


@pytest.mark.parametrize(
    "how",
    [
        "its settings are changed",
        "it was never told of",
        "another controller tells of the others",
    ],
)
async def test_a_topic_is_made_again_with_other_settings(tmp_path: Path, how: str) -> None:
    """What is remembered of the deleted one is not taken for the settings of the new one."""
    path = paths.topic_config("t")
    broker = Listener()
    keeper = EmbeddedKeeper.open(str(tmp_path / "journal"))
    registry = Registry(keeper, FakeClock())
    await registry.make_paths()
    requests = ControllerRequests(broker, registry)  # type: ignore[arg-type]
    requests.registered(1)
    await requests.apply(told({"other": 1}))
    await registry.write_config(path, {"retention.ms": "1"})
    await requests.config_changed("topics/t")
    assert requests.topic_configs["t"] == {"retention.ms": "1"}
    await keeper.multi([Delete(path)])
    if how == "its settings are changed":
        await requests.config_changed("topics/t")
    elif how == "it was never told of":
        await requests.apply(told({"t": DELETED}))
    else:
        await requests.apply(told({"other": 1}, FULL))
    assert requests.topic_configs.keys() == {"other"}
    await registry.write_config(path, {"retention.ms": "2"})
    await requests.apply(told({"t": 1}))
    assert broker.metadata.topics["t"].config == {"retention.ms": "2"}
    await keeper.close()


@pytest.mark.parametrize("kind", [INCREMENTAL, FULL], ids=["INCREMENTAL", "FULL"])
async def test_a_topic_is_kept_until_its_znode_is_gone(tmp_path: Path, kind: int) -> None:
    """A controller that could not read it leaves it out: that is no deletion, after which the
    committed offsets would go."""
    broker = Listener()
    keeper = EmbeddedKeeper.open(str(tmp_path / "journal"))
    registry = Registry(keeper, FakeClock())
    await registry.make_paths()
    await keeper.multi([Create(paths.topic("t"), b"{")])
    await registry.write_config(paths.topic_config("t"), {"retention.ms": "1"})
    requests = ControllerRequests(broker, registry)  # type: ignore[arg-type]
    requests.registered(1)
    await requests.apply(told({"t": 1, "other": 1}))
    before = broker.metadata.topics["t"]
    without = {"t": DELETED} if kind == INCREMENTAL else {}
    await requests.apply(told({**without, "other": 1}, kind))
    assert broker.metadata.topics["t"] == before
    assert requests.topic_configs["t"] == {"retention.ms": "1"}
    await keeper.multi([Delete(paths.topic("t"))])
    await requests.apply(told({**without, "other": 1}, kind))
    assert broker.metadata.topics.keys() == {"other"}
    await keeper.close()


class AwayKeeper(EmbeddedKeeper):
    """A keeper that may be out of reach."""

    away = False

    async def sync(self) -> None:
        if self.away:
            raise Unreachable("no connection")


async def test_a_higher_epoch_is_looked_up(tmp_path: Path) -> None:
    """What ZooKeeper does not know is not remembered: the true controller goes on."""
    keeper = AwayKeeper.open(str(tmp_path / "journal"))
    requests = ControllerRequests(Listener(), Registry(keeper, FakeClock()))  # type: ignore[arg-type]
    requests.registered(1)

    async def code(controller_id: int, epoch: int) -> int:
        request = StopReplicaRequest(
            controller_id=controller_id,
            controller_epoch=epoch,
            broker_epoch=1,
            topic_states=[],
        )
        return (await requests.stop_replica(request)).error_code

    assert await code(3, 1) == ErrorCode.INVALID_REQUEST, "there is no controller yet"
    elected = Create(paths.CONTROLLER, paths.controller_value(3, 0))
    await keeper.multi([elected, Create(paths.CONTROLLER_EPOCH, b"7")])
    assert await code(3, 8) == ErrorCode.INVALID_REQUEST
    assert await code(3, 2**31 - 1) == ErrorCode.INVALID_REQUEST
    assert await code(3, 6) == ErrorCode.STALE_CONTROLLER_EPOCH, "7 is known by now"
    assert await code(2, 7) == ErrorCode.INVALID_REQUEST, "another broker is controller"
    assert await code(3, 7) == ErrorCode.NONE
    keeper.away = True
    assert await code(3, 7) == ErrorCode.NONE, "what is known is not looked up"
    assert await code(3, 8) == ErrorCode.REQUEST_TIMED_OUT, "to be sent again"
    assert await code(3, 7) == ErrorCode.NONE
    keeper.away = False
    await keeper.multi([Delete(paths.CONTROLLER), Set(paths.CONTROLLER_EPOCH, b"8")])
    await keeper.multi([Create(paths.CONTROLLER, paths.controller_value(2, 0))])
    assert await code(2, 8) == ErrorCode.NONE
    assert await code(3, 7) == ErrorCode.STALE_CONTROLLER_EPOCH
    await keeper.close()


class LaggingKeeper(EmbeddedKeeper):
    """A server of the ensemble that has not heard of the newest registration before a sync."""

    lagging = False

    async def sync(self) -> None:
        self.lagging = False

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        if self.lagging:
            raise NoNode(path)
        return await super().get(path, watch)


async def test_the_controller_knows_of_our_registration_first(tmp_path: Path) -> None:
    """STALE_BROKER_EPOCH ends its channel for good: only another registration is a reason."""
    keeper = LaggingKeeper.open(str(tmp_path / "journal"))
    registry = Registry(keeper, FakeClock())
    await registry.make_paths()
    await keeper.multi(
        [
            Create(paths.CONTROLLER, paths.controller_value(3, 0)),
            Create(paths.CONTROLLER_EPOCH, b"1"),
        ]
    )
    requests = ControllerRequests(Listener(), registry)  # type: ignore[arg-type]
    requests.registered(1)

    async def code(broker_epoch: int) -> int:
        request = StopReplicaRequest(
            controller_id=3, controller_epoch=1, broker_epoch=broker_epoch, topic_states=[]
        )
        return (await requests.stop_replica(request)).error_code

    assert await code(99) == ErrorCode.REQUEST_TIMED_OUT, "no registration: to be sent again"
    epoch = await registry.register(BrokerInfo(1, "host", 9091, None))
    keeper.lagging = True
    assert await code(epoch) == ErrorCode.NONE
    assert await code(epoch + 1) == ErrorCode.STALE_BROKER_EPOCH
    await keeper.multi([Set(paths.broker(1), b"{")])
    assert await code(epoch) == ErrorCode.REQUEST_TIMED_OUT, "it registers again"
    await keeper.close()
