"""Requests that are right but ask for far too much: bounded memory, and others are served."""

import contextlib
import select
import socket

import pytest
from support.measure import MIB, peak, resident
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.frame import encode_request
from tidelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.wire.messages.produce import PartitionProduceData, TopicProduceData

LARGE = 30 * MIB


@pytest.fixture(scope="module")
def broker():
    with LocalBroker() as running:
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.fixture
def client(broker):
    with RawClient(broker.port) as connected:
        yield connected


def send_all(sock, data):
    """Send until the other side hangs up."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        sock.sendall(data)


def many_names():
    """Metadata v4: an array of names of one byte."""
    count = LARGE // 3
    return 3, 4, count.to_bytes(4, "big") + b"\0\x01a" * count + b"\0"


def many_fetches():
    count = LARGE // 24
    head = b"\xff" * 4 + bytes(4) + b"\0\0\0\1" + b"\0\xff\xff\xff" + b"\0" + b"\0\0\0\1"
    rows = (bytes(4) + bytes(8) + bytes(8) + b"\0\0\x10\0") * count
    return 1, 5, head + b"\0\x01t" + count.to_bytes(4, "big") + rows


def many_produces():
    """Produce v7: null records for the same partition, again and again."""
    count = LARGE // 8
    rows = (bytes(4) + b"\xff" * 4) * count
    head = b"\xff\xff" + b"\0\x01" + bytes(4) + b"\0\0\0\1" + b"\0\x01t"
    return 0, 7, head + count.to_bytes(4, "big") + rows


def frame_of(key, version, body):
    start = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\0\x01x"
    return (len(start) + len(body)).to_bytes(4, "big") + start + body


def test_a_produce_of_millions_of_rows_is_refused(broker, client):
    before = peak(broker)
    with RawClient(broker.port) as greedy:
        send_all(greedy.sock, frame_of(*many_produces()))
        assert greedy.hung_up()
    assert peak(broker) - before < 2 * LARGE, "its rows were decoded"
    assert client.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers


@pytest.mark.parametrize("make", [many_names, many_fetches])
def test_another_request_of_millions_of_rows_is_refused_by_its_size(broker, client, make):
    """Its rest is not awaited."""
    with RawClient(broker.port) as greedy:
        send_all(greedy.sock, frame_of(*make())[:1000])
        assert greedy.hung_up()
    assert client.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers


def test_a_large_produce_is_still_a_request(client):
    """The limit of the other APIs is not that of Produce."""
    names = [f"large-{i}" for i in range(4)]
    for name in names:
        client.create_topic(name)
    request = client.produce_request(names[0], batch_of(bytes(900_000)))
    for name in names[1:]:
        row = PartitionProduceData(index=0, records=batch_of(bytes(900_000)))
        request.topic_data.append(TopicProduceData(name=name, partition_data=[row]))
    client.send(request, 9)
    client.read_frame()
    for name in names:
        assert client.list_offset(name, -1).offset == 1


def test_a_topic_named_a_thousand_times_is_described_once(client):
    client.create_topic("wide", partitions=50)
    one = MetadataRequestTopic(name="wide")
    answer = client.call(MetadataRequest(topics=[one] * 1000), MetadataResponse, 9)
    assert [topic.name for topic in answer.topics] == ["wide"]
    resource = DescribeConfigsResource(
        resource_type=2, resource_name="wide", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource] * 1000)
    answer = client.call(request, DescribeConfigsResponse, 4)
    assert len(answer.results) == 1


def test_looking_the_same_time_up_ten_thousand_times(client):
    client.create_topic("old")
    client.produce("old", batch_of(*[b"x"] * 20_000))
    row = ListOffsetsPartition(partition_index=0, timestamp=10)
    topic = ListOffsetsTopic(name="old", partitions=[row] * 10_000)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
    answer = client.call(request, ListOffsetsResponse, 7)
    codes = {row.error_code for row in answer.topics[0].partitions}
    assert codes == {ErrorCode.INVALID_REQUEST}, "as in Kafka"


def test_many_unknown_names_do_not_hold_up_the_others(broker, client):
    """Others are answered while the topics are created: they see some of them, and not all."""
    wanted = 200
    names = [MetadataRequestTopic(name=f"made-{i}") for i in range(wanted)]
    seen = set()
    with RawClient(broker.port) as greedy:
        greedy.send(MetadataRequest(topics=names), 9)
        while not select.select([greedy.sock], [], [], 0)[0]:
            answer = client.call(MetadataRequest(topics=None), MetadataResponse, 9)
            seen.add(sum(topic.name.startswith("made-") for topic in answer.topics))
        _, answer = greedy.receive(MetadataResponse, 9)
    assert not any(topic.error_code for topic in answer.topics)
    assert seen - {0, wanted}, "no other client was answered in between"


def test_answers_do_not_heap_up_behind_one_that_waits(broker, client):
    """A Produce that waits for its flush, and requests behind it: answers keep their order."""
    client.create_topic("slow", visibility="flushed", flush_ms=3_600_000)
    with RawClient(broker.port) as greedy:
        produce = greedy.produce_request("slow", batch_of(b"x"), timeout_ms=3_600_000)
        greedy.send(produce, 9)
        until(lambda: client.list_offset("slow", -1).error_code == 0)
        before = resident(broker)
        resource = DescribeConfigsResource(
            resource_type=4, resource_name="0", configuration_keys=None
        )
        described = DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=True
        )
        request = encode_request(described, 4, 2, "greedy") * 200
        greedy.sock.settimeout(0.5)
        sent = 0
        try:
            while sent < 5 * MIB:
                sent += greedy.sock.send(request)
        except TimeoutError:
            pass
        assert client.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
        assert resident(broker) - before < 10 * MIB


def test_different_questions_do_not_fill_the_cache_of_answers(broker, client):
    before = resident(broker)
    names = [MetadataRequestTopic(name=f"{n}?{'x' * 240}") for n in range(3000)]
    asked = encode_request(MetadataRequest(topics=names), 9, 1, "curious")
    for i in range(32):  # with their answers 50 MB
        client.sock.sendall(asked.replace(b"1000?xxxxxx", b"1000?%06d" % i))
        client.read_frame()
    assert resident(broker) - before < 40 * MIB


def test_fetch_sessions_are_bounded_by_their_partitions(broker, client):
    before = resident(broker)
    rows = [
        FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1000) for n in range(10_000)
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=0,
        session_epoch=0,
        topics=[FetchTopic(topic="nothing", partitions=rows)],
    )
    asked = encode_request(request, 12, 1, "greedy")
    for _ in range(32):  # 320,000 partitions would be 80 MB
        client.sock.sendall(asked)
        client.read_frame()
    assert client.call(request, FetchResponse, 12).error_code == 0
    assert resident(broker) - before < 65 * MIB


def test_a_stranger_who_only_connects_costs_nothing(broker, client):
    for _ in range(500):
        socket.create_connection(("127.0.0.1", broker.port)).close()
    assert client.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers


def test_topics_of_a_request_are_deleted_some_at_a_time():
    rows = [DeleteTopicState(name=f"n{i}") for i in range(30_000)]
    rows.append(DeleteTopicState(name="last"))
    request = DeleteTopicsRequest(topics=rows, timeout_ms=60_000)
    with LocalBroker() as broker, RawClient(broker.port) as client:
        client.create_topic("last")
        before = peak(broker)
        answer = client.call(request, DeleteTopicsResponse, 6).responses
        assert peak(broker) - before < 50 * MIB  # 80 MiB if all of them wait at once
    assert [row.name for row in answer] == [row.name for row in rows]
    codes = [row.error_code for row in answer]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 30_000 + [ErrorCode.NONE]


def test_a_topic_named_a_thousand_times_is_deleted_once(client):
    rows = [DeleteTopicState(name="made")] * 1_000
    request = DeleteTopicsRequest(topics=rows, timeout_ms=60_000)
    client.create_topic("made")
    (answer,) = client.call(request, DeleteTopicsResponse, 6).responses
    assert (answer.name, answer.error_code) == ("made", ErrorCode.NONE)
