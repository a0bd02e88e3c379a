"""pytest fixtures: put ``pytest_plugins = ["tidelog.testing.plugin"]`` into conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog.testing.local import LocalBroker


@pytest.fixture
def tidelog_broker() -> Iterator[LocalBroker]:
    """A fresh broker for one test."""
    with LocalBroker() as broker:
        yield broker
