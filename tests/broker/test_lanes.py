"""Small requests go before large ones, and nothing depends on there being epoll."""

import asyncio
import contextlib
import select
import socket

import pytest
from support.raw_client import batch_of

from tidelog.broker.broker import Broker
from tidelog.broker.lanes import Lanes, OneLane
from tidelog.new_topic import NewTopic
from tidelog.wire.frame import encode_request
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

LARGE = batch_of(bytes(900_000))


def produce(batch):
    rows = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name="t", partition_data=rows)]
    message = ProduceRequest(transactional_id=None, acks=1, timeout_ms=10_000, topic_data=topics)
    return encode_request(message, 9, 1, "bulk")


METADATA = encode_request(MetadataRequest(topics=[]), 9, 2, "small")


@contextlib.asynccontextmanager
async def running(tmp_path):
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings) as broker:
        if "t" not in broker.metadata.topics:
            await broker.controller.create_topic(NewTopic("t"))
        yield broker


@contextlib.asynccontextmanager
async def client(broker):
    """A client's socket, and the broker's end of it."""
    loop = asyncio.get_running_loop()
    before = set(broker.server.connections)
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", broker.port))
        while not (new := broker.server.connections.keys() - before):
            await asyncio.sleep(0)
        yield sock, new.pop()


async def ask(sock, request):
    """Send a request and receive its whole answer."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, request)
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        answer += await loop.sock_recv(sock, 65536)
    return answer


async def test_a_small_request_is_served_between_the_slices_of_a_large_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tidelog.broker.connection._SLICE_IN", 100_000)
    async with (
        running(tmp_path) as broker,
        client(broker) as (bulk, end),
        client(broker) as (
            small,
            _,
        ),
    ):
        assert not end.bulk
        await ask(bulk, produce(LARGE))
        assert end.bulk
        served = []
        inner = broker.server.dispatch
        broker.server.dispatch = lambda connection, frame: (
            served.append("bulk" if connection is end else "small"),
            inner(connection, frame),
        )
        # Both are there before the broker looks, and it looks at the large one first.
        request = memoryview(produce(LARGE))
        sent = bulk.send(request)
        small.send(METADATA)
        assert sent > 200_000, "this needs more than one slice in the socket"
        end.on_readable()
        assert served[0] == "small"
        await asyncio.get_running_loop().sock_sendall(bulk, request[sent:])
        while "bulk" not in served:
            await asyncio.sleep(0)


async def test_a_silent_client_goes_back_to_the_small_lane(tmp_path):
    async with running(tmp_path) as broker, client(broker) as (sock, end):
        await ask(sock, produce(LARGE))
        assert end.bulk
        end.shrink()
        assert not end.bulk
        await ask(sock, METADATA)
    async with running(tmp_path) as broker, client(broker) as (sock, end):
        # A consumer, whose requests are small: its answer is more than one slice.
        row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="t", partitions=[row])]
        fetch = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
        await ask(sock, encode_request(fetch, 11, 3, "consumer"))
        assert end.bulk
        end.shrink()
        assert not end.bulk
        await ask(sock, METADATA)


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="this platform has no epoll")
async def test_a_fetch_that_waited_is_answered_before_every_bulk_client_is_served(tmp_path):
    async with running(tmp_path) as broker, contextlib.AsyncExitStack() as stack:
        bulk = [await stack.enter_async_context(client(broker)) for _ in range(8)]
        request = produce(batch_of(bytes(200_000)))
        for sock, end in bulk:
            await ask(sock, request)
            assert end.bulk
        consumer, parked = await stack.enter_async_context(client(broker))
        row = FetchPartition(partition=0, fetch_offset=8, partition_max_bytes=1000)
        topics = [FetchTopic(topic="t", partitions=[row])]
        fetch = FetchRequest(max_wait_ms=600_000, min_bytes=1, max_bytes=1000, topics=topics)
        consumer.send(encode_request(fetch, 11, 3, "consumer"))
        while not parked._blocked:
            await asyncio.sleep(0)
        waits = []
        inner = broker.server.dispatch
        broker.server.dispatch = lambda connection, frame: (
            waits.append(parked._blocked),
            inner(connection, frame),
        )
        for sock, _ in bulk:  # all are there before the broker looks
            assert sock.send(request) == len(request)
        while len(waits) < len(bulk):
            await asyncio.sleep(0)
        assert waits[0], "it waits for the first record"
        assert not waits[-1]


@pytest.mark.parametrize("epoll", [True, False])
async def test_large_requests_and_answers_with_and_without_epoll(tmp_path, monkeypatch, epoll):
    if not epoll:
        monkeypatch.setattr("tidelog.broker.lanes.select", object())
    elif not hasattr(select, "epoll"):
        pytest.skip("this platform has no epoll")
    async with running(tmp_path) as broker, client(broker) as (sock, _):
        assert type(broker.server.lanes) is (Lanes if epoll else OneLane)
        first = await ask(sock, produce(LARGE))
        second = await ask(sock, produce(LARGE))
        assert len(first) == len(second)
        await ask(sock, METADATA)
        assert broker.replicas.partitions["t", 0].log.end_offset == 2
