"""One ZooKeeper for the tests of a worker; each test has a tree of its own (a chroot)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.keeper.zookeeper_server import ZooKeeperServer
from tidelog.testing.ports import free_port


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A real server.  Tests that stop it must start it again."""
    data: Path = tmp_path_factory.mktemp("zookeeper")
    with ZooKeeperServer(data, free_port(), sync=False) as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeperServer) -> str:
    """``zookeeper.connect`` with an empty tree."""
    return f"{zookeeper_server.connect}/{uuid.uuid4().hex}"
