"""A member of a cluster whose session ends, or whose office does, at the wrong moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from controller.test_cluster_controller import Office, in_office
from support.waiting import comes_true

from tidelog.controller import membership as membership_module
from tidelog.controller.membership import IdTaken, Membership
from tidelog.errors import SettingError
from tidelog.keeper import paths
from tidelog.keeper.keeper import ConnectionLost, Create, SessionExpired, Set
from tidelog.keeper.registry import patiently
from tidelog.metadata import BrokerInfo


async def test_a_session_may_end_before_we_have_joined() -> None:
    troubles = [SessionExpired("/a"), ConnectionLost("/a")]

    async def read() -> str:
        if troubles:
            raise troubles.pop()
        return "value"

    assert await patiently(read) == "value"


def membership(office: Office) -> Membership:
    """Of broker 1, as far as ZooKeeper goes."""
    info = BrokerInfo(1, "host", 9091, None)
    broker: Any = SimpleNamespace(
        broker_id=1,
        settings=office.settings,
        clock=office.registry._clock,
        own_info=lambda: info,
    )
    return Membership(broker, office.keeper)


class Asked:
    """The channels of a controller, which may die before it has asked everybody."""

    def __init__(self, dies_at: int = -1) -> None:
        self.brokers: set[int] = set()
        self._dies_at = dies_at

    def ask_again(self, broker_id: int) -> None:
        if broker_id == self._dies_at:
            raise RuntimeError("the controller dies")
        self.brokers.add(broker_id)


def test_a_controller_dies_over_news_of_disks(tmp_path: Path) -> None:
    """The next one finds them: a note goes when it has been acted on, and not before."""

    async def work(office: Office) -> None:
        member = membership(office)
        member.controller = office.controller
        for broker_id in (2, 3):
            await office.registry.tell_log_dir_event(broker_id)
        dying: Any = Asked(dies_at=3)
        await member._watch_disks(office.controller, dying)
        assert member.controller is None, "it has stepped down"
        await office.elect()
        member.controller = office.controller
        asked: Any = Asked()
        watching = asyncio.create_task(member._watch_disks(office.controller, asked))

        async def handled() -> bool:
            return not (await office.registry.log_dir_events(lambda: None))[1]

        await comes_true(handled, "the notes are gone")
        assert asked.brokers == {2, 3}
        watching.cancel()

    in_office(tmp_path, work)


def test_somebody_spoils_our_registration(tmp_path: Path) -> None:
    """The others take us for absent: we register again."""

    async def work(office: Office) -> None:
        member = membership(office)
        await member._register()
        before = member.orders.broker_epoch
        await office.keeper.multi([Set(paths.broker(1), b"{")])
        async with asyncio.timeout(60):
            await member._look_again.wait()  # we hear of it
        await member._register()
        assert member.orders.broker_epoch > before
        assert (await office.registry.brokers())[1].epoch == member.orders.broker_epoch

    in_office(tmp_path, work)


@pytest.mark.parametrize("whose", ["another process's", "our ended session's"])
def test_a_registration_at_our_address_when_we_wake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Our session has ended.  Who has taken our place stays; what is left of ours goes."""
    monkeypatch.setattr(membership_module, "_END_SECONDS", 0.05)

    async def work(office: Office) -> None:
        member = membership(office)
        await member._register()
        member._joined = True
        await office.leave(1)
        value = paths.broker_value("host", 9091, None, 0)
        await office.keeper.multi([Create(paths.broker(1), value)])
        found = await office.registry.registration(1)
        assert found is not None
        epoch = found[1].czxid
        if whose == "another process's":
            with pytest.raises(IdTaken, match="running already, on host:9091"):
                await member._register()
            assert await office.registry.registration(1) == found
            return
        member.orders.registered(epoch)
        looks = []
        look = member.registry.registration

        async def counted(broker_id: int, watch: Any = None) -> Any:
            looks.append(broker_id)
            return await look(broker_id, watch)

        monkeypatch.setattr(member.registry, "registration", counted)
        registering = asyncio.create_task(member._register())
        await comes_true(lambda: len(looks) > 1, "it waits for it to go")
        assert await office.registry.registration(1) == found
        await office.leave(1)
        async with asyncio.timeout(60):
            await registering
        assert member.orders.broker_epoch > epoch

    in_office(tmp_path, work)


def test_something_stands_in_place_of_our_registration(tmp_path: Path) -> None:
    async def work(office: Office) -> None:
        await office.leave(1)
        await office.keeper.multi([Create(paths.broker(1), b"junk")])
        with pytest.raises(
            SettingError, match=r"broker.id=1: /brokers/ids/1 makes no sense.*delet"
        ):
            await membership(office)._register()

    in_office(tmp_path, work)


def test_the_registration_of_the_controller_makes_no_sense(tmp_path: Path) -> None:
    """Then its session alone says whether it lives; it is no reason to give up."""

    async def work(office: Office) -> None:
        await office.keeper.multi([Set(paths.broker(1), b"junk")])
        member = membership(office)
        await member._watch_over_controller()
        await member._has_died(BrokerInfo(1, "host", 9091, None))
        assert await office.keeper.exists(paths.CONTROLLER)

    in_office(tmp_path, work)
