"""What is said while there is no session with ZooKeeper, and whether it is true."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.waiting import comes_true, until

from tidelog.errors import SettingError
from tidelog.keeper.keeper import Create, Unreachable
from tidelog.keeper.zookeeper import ZooKeeper
from tidelog.keeper.zookeeper_absence import DOWN, NO_MAJORITY, NO_SESSION, OTHER_DATA, look
from tidelog.keeper.zookeeper_server import ZooKeeperServer, ensemble
from tidelog.testing.ports import free_port


async def test_a_name_that_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SettingError, match=r"It cannot be reached \(none\.invalid: .+\): put"):
        await ZooKeeper.connect("none.invalid:2181", 4_000, 1_000)
    assert not [row for row in caplog.records if row.name.startswith("kazoo")], "we say it once"


def test_what_is_seen_from_outside(zookeeper_server: ZooKeeperServer) -> None:
    server, down = zookeeper_server.connect, f"127.0.0.1:{free_port()}"
    assert look(down, 0) == look(f"none.invalid:2181,{down}", 0) == DOWN
    assert look(server, 0) == look(f"{down},{server}", 0) == NO_SESSION
    assert look(server, 1 << 60) == OTHER_DATA


def test_one_of_three_is_too_few(tmp_path: Path) -> None:
    servers = ensemble(tmp_path, free_port(30))
    try:
        servers[0].start()
        connect = ",".join(server.connect for server in servers)
        until(lambda: look(connect, 0) == NO_MAJORITY, "it listens, and waits for the others")
    finally:
        servers[0].kill()


async def test_it_comes_back_without_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server refuses whom it has told more than it knows: it is there, and says nothing."""
    caplog.set_level(logging.INFO)
    port = free_port()
    own, empty = (ZooKeeperServer(tmp_path / name, port) for name in ("own", "empty"))

    async def problem() -> str:
        try:
            await keeper.reachable()
        except Unreachable as error:
            return str(error)
        return ""

    async def refused() -> bool:
        return "does not know what it has told before" in await problem()

    async def back() -> bool:
        return not await problem()

    try:
        own.start()
        own.wait_ready()
        keeper = await ZooKeeper.connect(own.connect, 30_000, 100_000)
        await keeper.multi([Create("/mine")])
        own.kill()
        empty.start()
        await comes_true(refused, "the caller hears why")
        await comes_true(lambda: "it answers, but does not know" in caplog.text, "so does the log")
        empty.kill()
        own.start()
        await comes_true(back, "it is there again")
        await keeper.close()
        assert "connected to ZooKeeper again" in caplog.text
    finally:
        own.kill()
        empty.kill()
