"""Fixtures for tests that need a running broker: one broker per worker, a topic per test."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from interop.recording import served

from tidelog.testing import LocalBroker

pytest_plugins = ["support.directories", "support.mounting", "support.zookeeper"]
pytest.register_assert_rewrite("support")

# On a busy machine one example, or making examples up, may take long: that is no failure.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# A shell starts what runs in the background with Ctrl-C ignored, and children inherit that:
# commands that tests interrupt would never hear of it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Also for those that run in processes of their own.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs Spark comes first; what is slow is skipped without --clients.

    pytest-xdist gives each of two workers one half, and the first that is done takes from the
    end of the other's: so one worker has all of Spark, and the only session, while the other
    waits for clusters.
    """
    if not os.environ.get("TIDELOG_CLIENTS"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: only with ./dev test --clients"))
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in with_spark)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """``async def test_...`` runs in an event loop of its own: no plugin is needed for that."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalBroker]:
    """A broker with default settings, shared by the tests of a worker."""
    with served() as broker:
        yield broker


@pytest.fixture(scope="session")
def strict_broker() -> Iterator[LocalBroker]:
    """A broker that does not create topics by itself."""
    with served({"auto.create.topics.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{name[:80]}-{uuid.uuid4().hex[:8]}"
