"""A member of a cluster whose session ends, or its time as controller, at the wrong moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.controllers import Cluster, with_controller
from support.waiting import comes_true

from tidelog.broker.controller_requests import ControllerRequests
from tidelog.controller import registration as registration_module
from tidelog.controller.active_controller import ActiveController
from tidelog.controller.election import Election
from tidelog.controller.registration import IdTaken, Registration
from tidelog.errors import SettingError
from tidelog.keeper import paths
from tidelog.keeper.keeper import ConnectionLost, Create, SessionExpired, Set
from tidelog.keeper.registry import retry
from tidelog.metadata import BrokerInfo


async def test_a_session_may_end_before_we_have_joined() -> None:
    troubles = [SessionExpired("/a"), ConnectionLost("/a")]

    async def read() -> str:
        if troubles:
            raise troubles.pop()
        return "value"

    assert await retry(read) == "value"


class Registrant:
    """Broker 1, as far as its registration goes."""

    def __init__(self, cluster: Cluster) -> None:
        info = BrokerInfo(1, "host", 9091, None)
        self.host: Any = SimpleNamespace(
            broker_id=1, settings=cluster.settings, own_info=lambda: info, spawn=None
        )
        self.requests: Any = ControllerRequests(self.host, cluster.registry)
        self.looks = asyncio.Event()
        self.registration = Registration(self.host, cluster.keeper, cluster.registry, self.requests)

    async def register(self) -> None:
        await self.registration.ensure(self.looks.set)

    @property
    def epoch(self) -> int:
        epoch: int = self.requests.broker_epoch
        return epoch


class Channels:
    """The channels of a controller, which may die before it has asked every broker."""

    epoch = 0
    storage_answered = None

    def __init__(self, dies_at: int = -1) -> None:
        self.brokers: set[int] = set()
        self._dies_at = dies_at

    def publish(self, metadata: object) -> None: ...

    def close(self) -> None: ...

    def ask_again(self, broker_id: int) -> None:
        if broker_id == self._dies_at:
            raise RuntimeError("the controller dies")
        self.brokers.add(broker_id)


class Elected:
    """The election that the controller has won."""

    stepped_down = False

    def step_down(self) -> None:
        self.stepped_down = True


def active(cluster: Cluster, channels: Any, election: Any) -> ActiveController:
    connected = asyncio.Event()
    connected.set()
    tasks = []

    def spawn(work: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    host: Any = SimpleNamespace(broker_id=1, settings=cluster.settings, spawn=spawn)
    detector: Any = SimpleNamespace(watch=lambda brokers: None)
    return ActiveController(
        host, cluster.registry, cluster.controller, channels, detector, election, connected
    )


async def test_a_controller_dies_over_news_of_disks(tmp_path: Path) -> None:
    """The next one finds them: a note goes when it has been acted on, and not before."""
    async with with_controller(tmp_path) as cluster:
        for broker_id in (2, 3):
            await cluster.registry.notify_log_dir_event(broker_id)
        election = Elected()
        dying = active(cluster, Channels(dies_at=3), election)
        await comes_true(lambda: election.stepped_down)
        dying.close()
        await cluster.elect()
        channels = Channels()
        next_one = active(cluster, channels, Elected())

        async def handled() -> bool:
            return not (await cluster.registry.log_dir_events(lambda: None))[1]

        await comes_true(handled, "the notifications are gone")
        assert channels.brokers == {2, 3}
        next_one.close()


async def test_our_registration_is_overwritten(tmp_path: Path) -> None:
    """The others take us for absent: we register again."""
    async with with_controller(tmp_path) as cluster:
        member = Registrant(cluster)
        await member.register()
        before = member.epoch
        await cluster.keeper.multi([Set(paths.broker(1), b"{")])
        async with asyncio.timeout(60):
            await member.looks.wait()
        await member.register()
        assert member.epoch > before
        assert (await cluster.registry.brokers())[1].epoch == member.epoch


@pytest.mark.parametrize("whose", ["another process's", "our ended session's"])
async def test_a_registration_at_our_address_when_we_wake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Our session has ended.  Who has taken our place stays; what is left of ours goes."""
    monkeypatch.setattr(registration_module, "_END_SECONDS", 0.05)
    async with with_controller(tmp_path) as cluster:
        member = Registrant(cluster)
        await member.register()
        await cluster.leave(1)
        value = paths.broker_value("host", 9091, None, 0)
        await cluster.keeper.multi([Create(paths.broker(1), value)])
        found = await cluster.registry.registration(1)
        assert found is not None
        epoch = found[1].czxid
        if whose == "another process's":
            with pytest.raises(IdTaken, match="running already, on host:9091"):
                await member.register()
            assert await cluster.registry.registration(1) == found
            return
        member.requests.registered(epoch)
        looks = []
        look = cluster.registry.registration

        async def counted(broker_id: int, watch: Any = None) -> Any:
            looks.append(broker_id)
            return await look(broker_id, watch)

        monkeypatch.setattr(cluster.registry, "registration", counted)
        registering = asyncio.create_task(member.register())
        await comes_true(lambda: len(looks) > 1, "it waits for it to go")
        assert await cluster.registry.registration(1) == found
        await cluster.leave(1)
        async with asyncio.timeout(60):
            await registering
        assert member.epoch > epoch


async def test_something_stands_in_place_of_our_registration(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        await cluster.leave(1)
        await cluster.keeper.multi([Create(paths.broker(1), b"junk")])
        with pytest.raises(
            SettingError, match=r"broker.id=1: /brokers/ids/1 makes no sense.*delet"
        ):
            await Registrant(cluster).register()


async def test_the_registration_of_the_controller_makes_no_sense(tmp_path: Path) -> None:
    """Then its session alone says whether it lives; it is no reason to give up."""
    async with with_controller(tmp_path) as cluster:
        await cluster.keeper.multi([Set(paths.broker(1), b"junk")])
        member = Registrant(cluster)
        member.host.broker_id = 2
        election = Election(
            member.host,
            cluster.keeper,
            cluster.registry,
            member.registration,
            member.requests,
            asyncio.Event(),
            dict,
        )
        await election._watch_controller()
        await election._detector._died(BrokerInfo(1, "host", 9091, None))
        assert await cluster.keeper.exists(paths.CONTROLLER)
