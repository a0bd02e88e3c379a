"""One broker for the tests of this folder that do not stop or break it."""

import itertools

import pytest
from support.raw_client import RawClient

from tidelog.testing import LocalBroker

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with LocalBroker() as running:
        yield running


@pytest.fixture
def client(broker):
    with RawClient(broker.port) as connected:
        yield connected


@pytest.fixture
def topic(client):
    """A fresh topic with one partition."""
    name = f"topic-{next(_numbers)}"
    client.create_topic(name)
    return name
