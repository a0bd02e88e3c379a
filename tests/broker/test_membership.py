"""A member of a cluster whose session ends, or whose office does, at the wrong moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coordination.test_cluster_controller import Office, in_office

from tidelog.broker.membership import Membership
from tidelog.coordination.keeper import ConnectionLost, SessionExpired
from tidelog.coordination.registry import patiently


def test_a_session_may_end_before_we_have_joined() -> None:
    troubles = [SessionExpired("/a"), ConnectionLost("/a")]

    async def read() -> str:
        if troubles:
            raise troubles.pop()
        return "value"

    assert asyncio.run(patiently(read)) == "value"


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
        broker: Any = SimpleNamespace(
            broker_id=1, settings=office.settings, clock=office.registry._clock
        )
        member = Membership(broker, office.keeper)
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
        async with asyncio.timeout(60):
            while (await office.registry.log_dir_events(lambda: None))[1]:
                await asyncio.sleep(0.001)
        assert asked.brokers == {2, 3}
        watching.cancel()

    in_office(tmp_path, work)
