"""What every keeper must do: the embedded one, and a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tidelog.errors import SettingError
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import (
    BadVersion,
    Check,
    Create,
    Delete,
    Keeper,
    KeeperError,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionEvent,
    Set,
)
from tidelog.keeper.zookeeper import ZooKeeper
from tidelog.testing.ports import free_port

Opener = Callable[[], Any]


@pytest.fixture(params=["embedded", "zookeeper"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens a keeper, with a tree that is empty at first; as often as you like."""
    connect = request.getfixturevalue("zookeeper") if request.param == "zookeeper" else ""

    @asynccontextmanager
    async def open_keeper() -> AsyncIterator[Keeper]:
        keeper: Keeper
        if connect:
            keeper = await ZooKeeper.connect(connect, 30_000, 100_000)
        else:
            keeper = EmbeddedKeeper.open(str(tmp_path / "journal"))
        try:
            yield keeper
        finally:
            await keeper.close()

    return open_keeper


async def refused(error: type, work: Awaitable[Any]) -> None:
    with pytest.raises(error):
        await work


async def test_read_and_write(opener: Opener) -> None:
    async with opener() as keeper:
        assert await keeper.exists("/a") is None
        await refused(NoNode, keeper.get("/a"))
        await refused(NoNode, keeper.children("/a"))
        assert await keeper.multi([Create("/a/b/c", b"1"), Create("/a/b/d")]) == [
            "/a/b/c",
            "/a/b/d",
        ]
        data, stat = await keeper.get("/a/b/c")
        assert (data, stat.version, stat.ephemeral) == (b"1", 0, False)
        assert await keeper.children("/a/b") == ["c", "d"]
        assert (await keeper.get("/a"))[0] == b""
        await keeper.multi([Set("/a/b/c", b"2", 0), Set("/a/b/c", b"3", 1)])
        assert (await keeper.get("/a/b/c"))[0] == b"3"
        await refused(BadVersion, keeper.multi([Set("/a/b/c", b"x", 1)]))
        await refused(NodeExists, keeper.multi([Create("/a/b/c")]))
        await refused(NoNode, keeper.multi([Set("/nowhere", b"")]))
        await refused(NotEmpty, keeper.multi([Delete("/a/b")]))
        later = await keeper.exists("/a/b/d")
        assert later is not None
        assert later.czxid == stat.czxid, "one transaction has one number"
        await keeper.sync()


async def test_all_or_none(opener: Opener) -> None:
    async with opener() as keeper:
        await keeper.multi([Create("/epoch", b"7"), Create("/state", b"old")])
        await refused(
            BadVersion, keeper.multi([Set("/state", b"new"), Create("/more"), Check("/epoch", 5)])
        )
        await refused(NoNode, keeper.multi([Create("/new/child"), Check("/gone", 0)]))
        assert (await keeper.get("/state"))[0] == b"old"
        assert await keeper.children("/") == ["epoch", "state"]
        await keeper.multi([Check("/epoch", 0), Set("/state", b"new")])
        assert (await keeper.get("/state"))[0] == b"new"


async def test_recursive_deletion(opener: Opener) -> None:
    async with opener() as keeper:
        await keeper.multi([Create(f"/t/partitions/{i}/state") for i in range(20)])
        await keeper.multi([Create("/tt")])
        await keeper.multi([Delete("/t", recursive=True), Create("/mark")])
        assert await keeper.exists("/t") is None
        assert await keeper.exists("/tt") is not None


async def test_sequential(opener: Opener) -> None:
    async with opener() as keeper:
        first = await keeper.multi([Create("/changes/change_", b"1", sequential=True)])
        assert first == ["/changes/change_0000000000"]
        both = await keeper.multi(
            [Create("/changes/change_", b"2", sequential=True), Delete(first[0])]
        )
        (last,) = await keeper.multi([Create("/changes/change_", b"3", sequential=True)])
        assert first[0] < both[0] < last
        assert (await keeper.get(last))[0] == b"3"


async def test_ephemeral_znodes_end_with_the_session(opener: Opener) -> None:
    async with opener() as keeper:
        await keeper.multi([Create("/ids/1", b"me", ephemeral=True), Create("/lasting")])
        stat = await keeper.exists("/ids/1")
        assert stat is not None
        assert stat.ephemeral
        assert stat.own
        await refused(KeeperError, keeper.multi([Create("/ids/1/child")]))
    async with opener() as keeper:
        assert await keeper.children("/ids") == []
        assert await keeper.exists("/lasting") is not None


async def test_watches(opener: Opener) -> None:
    async with opener() as keeper:
        await keeper.multi([Create("/ids"), Create("/data", b"1")])
        fired: asyncio.Queue[str] = asyncio.Queue()
        await keeper.children("/ids", lambda: fired.put_nowait("children"))
        await keeper.get("/data", lambda: fired.put_nowait("data"))
        await keeper.exists("/controller", lambda: fired.put_nowait("created"))
        await keeper.multi([Create("/ids/1", ephemeral=True)])
        assert await fired.get() == "children"
        await keeper.multi([Set("/data", b"2")])
        assert await fired.get() == "data"
        await keeper.multi([Create("/controller", ephemeral=True)])
        assert await fired.get() == "created"
        # Once only: no watch was set again.
        await keeper.multi([Create("/ids/2"), Set("/data", b"3"), Delete("/controller")])
        await keeper.exists("/ids/2", lambda: fired.put_nowait("deleted"))
        await keeper.multi([Delete("/ids/2")])
        assert await fired.get() == "deleted"
        assert fired.empty()


async def test_many_at_once(opener: Opener) -> None:
    """Tasks that count together, each with the version that it has read."""
    async with opener() as keeper:
        await keeper.multi([Create("/n", b"0")])

        async def add() -> None:
            while True:
                data, stat = await keeper.get("/n")
                try:
                    await keeper.multi([Set("/n", str(int(data) + 1).encode(), stat.version)])
                    return
                except BadVersion:
                    continue

        await asyncio.gather(*(add() for _ in range(20)))
        assert (await keeper.get("/n"))[0] == b"20"


async def test_two_sessions(zookeeper: str) -> None:
    """What one session does, the other sees; and the loop goes on while it waits."""
    one = await ZooKeeper.connect(zookeeper, 30_000, 100_000)
    two = await ZooKeeper.connect(zookeeper, 30_000, 100_000)
    await one.multi([Create("/ids")])
    seen = asyncio.Event()
    await two.children("/ids", seen.set)
    await one.multi([Create("/ids/1", ephemeral=True)])
    await asyncio.wait_for(seen.wait(), 100)
    stat = await two.exists("/ids/1")
    assert stat is not None
    assert not stat.own
    gone = asyncio.Event()
    await two.exists("/ids/1", gone.set)
    await one.close()
    await asyncio.wait_for(gone.wait(), 100)
    assert await two.children("/ids") == []
    await two.close()


async def test_an_expired_session(zookeeper: str) -> None:
    """The ephemeral znodes go; a listener is notified and makes them again."""
    keeper = await ZooKeeper.connect(zookeeper, 30_000, 100_000)
    events: asyncio.Queue[SessionEvent] = asyncio.Queue()
    keeper.on_session(events.put_nowait)
    await keeper.multi([Create("/ids/1", ephemeral=True)])
    fired = asyncio.Event()
    await keeper.exists("/ids/1", fired.set)
    await expire(keeper, zookeeper)
    seen = []
    while SessionEvent.EXPIRED not in seen or seen[-1] is not SessionEvent.CONNECTED:
        seen.append(await asyncio.wait_for(events.get(), 60))
    assert fired.is_set(), "a watch says: look again"
    assert await keeper.exists("/ids/1") is None
    await keeper.multi([Create("/ids/1", ephemeral=True)])
    stat = await keeper.exists("/ids/1")
    assert stat is not None
    assert stat.own
    await keeper.close()


async def expire(keeper: ZooKeeper, connect: str) -> None:
    """End a session behind its back: another client with its id and password may close it."""
    from kazoo.client import KazooClient

    def close_it() -> None:
        thief = KazooClient(connect, client_id=keeper._client.client_id)
        thief.start()
        thief.stop()
        thief.close()

    await asyncio.get_running_loop().run_in_executor(None, close_it)


async def test_no_answer() -> None:
    with pytest.raises(SettingError, match=r"no ZooKeeper answers within 0\.2 s"):
        await ZooKeeper.connect(f"127.0.0.1:{free_port()}", 4_000, 200)


@pytest.mark.parametrize("old_server", [False, True])
async def test_many_znodes_at_once(opener: Opener, old_server: bool) -> None:
    """More than fit into one question; a server before ZooKeeper 3.6 is asked one by one."""
    async with opener() as keeper:
        if isinstance(keeper, ZooKeeper):
            keeper._one_by_one = old_server
        count = 1200
        operations = [Create(f"/many/{i}", b"%d" % i if i % 7 else b"") for i in range(count)]
        await keeper.multi(operations)
        await keeper.multi([Set("/many/5", "größer".encode())])
        await keeper.multi([Delete("/many/600"), Create("/many/x", b"mine", ephemeral=True)])
        names = [*range(count), "x", "nowhere/below"]
        found = await keeper.get_many([f"/many/{name}" for name in names])
        assert len(found) == len(names)
        for name, row in zip(names, found, strict=True):
            if name in (600, "nowhere/below"):
                assert row is None
            else:
                assert row == await keeper.get(f"/many/{name}")
        assert await keeper.get_many([]) == []
