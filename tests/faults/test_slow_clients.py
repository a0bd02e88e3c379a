"""Slow clients by the thousand: bounded memory, and a small client is served meanwhile.

The bounds are those of docs/run-a-broker.md.  How soon a small client is served beside others
is measured by ``./dev bench --only mixed``.
"""

import contextlib
import resource
import socket

import pytest
from support.measure import MIB, descriptors, resident
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.testing import LocalBroker
from tidelog.wire.frame import encode_request
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

SLOW_READERS = 1000
ONE_BYTE_WRITERS = 200
PER_READER = 64 * 1024  # of the broker's memory, with a fetch of a mebibyte pending


@pytest.fixture(scope="module")
def broker():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < SLOW_READERS + 200:
        pytest.skip(f"this machine allows {hard} descriptors, {SLOW_READERS + 200} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with LocalBroker() as running:
        with RawClient(running.port) as client:
            client.create_topic("small")
            client.create_topic("large")
            for _ in range(4):
                client.produce("large", batch_of(bytes(500_000)))
            client.read_values("large")  # the file is open and mapped from here on
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.fixture
def connections(broker):
    """Many connections, closed whatever happens."""
    with contextlib.ExitStack() as stack:
        yield lambda count: [stack.enter_context(RawClient(broker.port)) for _ in range(count)]


def serves_others(broker):
    with RawClient(broker.port) as client:
        for _ in range(100):
            assert client.produce("small", batch_of(b"small"), acks=1).error_code == 0


def test_a_thousand_slow_readers(broker):
    memory, files = resident(broker), descriptors(broker)
    with contextlib.ExitStack() as stack:
        slow = []
        for _ in range(SLOW_READERS):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", broker.port))
            slow.append(sock)
        with RawClient(broker.port) as client:
            request = client.fetch_request(("large", 0, 0, 1 << 20))
        fetch = encode_request(request, 12, 1, "slow")
        for sock in slow:
            sock.sendall(fetch)
        for _ in range(3):
            for sock in slow:
                assert len(sock.recv(1)) == 1
            serves_others(broker)
        assert resident(broker) - memory < SLOW_READERS * PER_READER
    until(lambda: descriptors(broker) <= files + 2, "their connections to be closed")
    assert resident(broker) - memory < SLOW_READERS * PER_READER


def test_many_that_send_one_byte_at_a_time(broker, connections):
    """As if each sent a byte a second, only sooner."""
    memory = resident(broker)
    request = encode_request(MetadataRequest(topics=[]), 9, 5, "slow")
    clients = connections(ONE_BYTE_WRITERS)
    half = len(request) // 2
    for byte in request[:half]:
        for client in clients:
            client.sock.send(bytes([byte]))
    serves_others(broker)
    assert resident(broker) - memory < ONE_BYTE_WRITERS * 16 * 1024 + MIB
    for byte in request[half:]:
        for client in clients:
            client.sock.send(bytes([byte]))
    for client in clients:
        correlation, answer = client.receive(MetadataResponse, 9)
        assert (correlation, bool(answer.brokers)) == (5, True)


def test_a_hundred_that_send_and_never_read(broker, connections):
    """Each pipelines large answers until nobody takes its requests any more."""
    with RawClient(broker.port) as client:
        client.create_topic("wide", partitions=200)
    memory = resident(broker)
    request = encode_request(MetadataRequest(topics=None), 9, 1, "greedy") * 100
    clients = connections(100)
    for greedy in clients:
        greedy.sock.settimeout(0.02)
        with contextlib.suppress(TimeoutError):
            for _ in range(50):
                greedy.sock.sendall(request)
    serves_others(broker)
    assert resident(broker) - memory < 100 * 3 * MIB
    for greedy in clients:
        greedy.sock.close()
    until(lambda: resident(broker) - memory < 30 * MIB, "the memory to be given back")
