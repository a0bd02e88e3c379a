"""Fetch: limits, waiting, sessions, ids."""

import select
import socket
import struct
import time

import pytest
from support.measure import descriptors
from support.raw_client import RawClient, batch_of, values_of
from support.waiting import comes_true, until

from tidelog.broker.broker import Broker
from tidelog.errors import ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.partition.partition import Partition
from tidelog.partition.purgatory import DelayedOperation
from tidelog.testing import LocalBroker
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.wire.messages.fetch import FetchResponse, ForgottenTopic
from tidelog.wire.messages.metadata import MetadataRequest


def fill(client, topic, count, size=100):
    for i in range(count):
        client.produce(topic, batch_of(b"%d-" % i + bytes(size)))


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_reads(client, topic, version):
    client.produce(topic, batch_of(b"a", b"b"))
    (part,) = client.fetch((topic, 0, 0), version=version)
    assert values_of(part.records) == [(0, b"a"), (1, b"b")]
    assert part.high_watermark == 2


@pytest.mark.parametrize("version", range(13, 19))
def test_topic_ids(client, version):
    topic_id = client.create_topic(f"fetch-by-id-{version}")
    client.produce(topic_id, batch_of(b"a"), version=13)
    (part,) = client.fetch((topic_id, 0, 0), version=version)
    assert values_of(part.records) == [(0, b"a")]
    (part,) = client.fetch((bytes(range(16)), 0, 0), version=version)
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_limits(client, topic):
    fill(client, topic, 20, size=1000)
    one = len(client.fetch((topic, 0, 0, 1))[0].records)
    assert 1000 < one < 1200, "the first batch is whole whatever the limit"
    (part,) = client.fetch((topic, 0, 0, 5 * one))
    assert len(part.records) == 5 * one
    (part,) = client.fetch((topic, 0, 0), max_bytes=3 * one)
    assert len(part.records) == 3 * one
    (part,) = client.fetch((topic, 0, 7, one))
    assert values_of(part.records)[0][0] == 7


def test_the_first_batch_comes_whatever_the_limit(client, topic):
    client.produce(topic, batch_of(b"one"))
    (part,) = client.fetch((topic, 0, 0), max_bytes=0)
    assert part.records


def test_only_the_first_partition_may_break_the_limit(client):
    client.create_topic("pair", partitions=2)
    for partition in (0, 1):
        client.produce("pair", batch_of(bytes(2000)), partition=partition)
    first, second = client.fetch(("pair", 0, 0), ("pair", 1, 0), max_bytes=100)
    assert len(first.records) > 2000
    assert len(second.records) == 0
    # Part of a batch is no use to a client, and the Java consumer takes it for a fault.
    first, second = client.fetch(("pair", 0, 0), ("pair", 1, 0), max_bytes=3000)
    assert (len(first.records) > 2000, len(second.records)) == (True, 0)
    first, second = client.fetch(("pair", 0, 0), ("pair", 1, 0, 500))
    assert (len(first.records) > 2000, len(second.records)) == (True, 0)


def test_offsets_out_of_range(client, topic):
    fill(client, topic, 3)
    for offset in (-1, 4, 10**9):
        (part,) = client.fetch((topic, 0, offset))
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    (part,) = client.fetch((topic, 0, 3))
    assert (part.error_code, part.records) == (0, b"")


def test_an_error_does_not_wait(client, topic):
    # Longer than the client waits.
    (part,) = client.fetch(("nobody", 0, 0), max_wait_ms=3_600_000)
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_parked_fetch_is_woken_by_a_produce(broker, client, topic):
    with RawClient(broker.port) as reader:
        reader.send(reader.fetch_request((topic, 0, 0), max_wait_ms=3_600_000), 12)
        client.produce(topic, batch_of(b"news"))
        _, answer = reader.receive(FetchResponse, 12)
    assert values_of(answer.responses[0].partitions[0].records) == [(0, b"news")]


def test_min_bytes_waits_for_more_and_the_clock_ends_it(broker, client, topic):
    with RawClient(broker.port) as reader:
        request = reader.fetch_request((topic, 0, 0), max_wait_ms=3_600_000, min_bytes=3000)
        reader.send(request, 12)
        fill(client, topic, 3, size=1000)
        _, answer = reader.receive(FetchResponse, 12)
        assert len(values_of(answer.responses[0].partitions[0].records)) == 3
        started = time.monotonic()
        (part,) = reader.fetch((topic, 0, 3), max_wait_ms=200)
        assert time.monotonic() - started >= 0.19
        assert part.records == b""


def test_no_more_is_waited_for_than_the_answer_may_hold(broker, client, topic):
    fill(client, topic, 3, size=1000)
    with RawClient(broker.port) as reader:
        (part,) = reader.fetch(
            (topic, 0, 0), max_wait_ms=3_600_000, min_bytes=1_000_000, max_bytes=2000
        )
        assert len(part.records) == 2000
    limited = {"fetch.max.bytes": 2000}  # of the broker, whatever the client asks for
    with LocalBroker(limited) as strict, RawClient(strict.port) as reader:
        reader.create_topic("t")
        fill(reader, "t", 3, size=1000)
        (part,) = reader.fetch(("t", 0, 0), max_wait_ms=3_600_000, min_bytes=1_000_000)
        assert len(part.records) == 2000


def test_what_does_not_fit_into_an_answer_counts_for_min_bytes(client):
    """As in Kafka's DelayedFetch: the bytes of all partitions, each up to its own limit."""
    client.create_topic("more-than-fits", partitions=2)
    for partition in (0, 1):
        client.produce("more-than-fits", batch_of(bytes(2000)), partition=partition)
    both = [("more-than-fits", partition, 0) for partition in (0, 1)]
    first, second = client.fetch(*both, max_bytes=3500, min_bytes=3500, max_wait_ms=3_600_000)
    assert (len(first.records) > 2000, len(second.records)) == (True, 0)


def test_a_reader_of_an_older_segment_does_not_wait_for_min_bytes(client):
    """As in Kafka's DelayedFetch: the rest of its segment is all that this fetch can have."""
    client.create_topic("segments", segment_bytes=3000)
    fill(client, "segments", 2, size=2000)
    (part,) = client.fetch(("segments", 0, 0), min_bytes=3000, max_wait_ms=3_600_000)
    assert [offset for offset, _ in values_of(part.records)] == [0]


def test_a_deleted_topic_wakes_its_readers(broker, client, topic):
    with RawClient(broker.port) as reader:
        reader.send(reader.fetch_request((topic, 0, 0), max_wait_ms=3_600_000), 12)
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000)
        client.call(request, DeleteTopicsResponse, 5)
        _, answer = reader.receive(FetchResponse, 12)
    code = answer.responses[0].partitions[0].error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_that_is_recreated_at_once_wakes_its_readers(tmp_path, monkeypatch):
    """The reader is woken when both have happened, and never sees the topic missing."""
    woken = []
    wake = DelayedOperation.wake
    monkeypatch.setattr(DelayedOperation, "wake", lambda operation: woken.append(operation))
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings) as broker:
        await broker.controller.create_topic(NewTopic("t"))
        partition = broker.replicas.partitions["t", 0]
        with RawClient(broker.port) as reader:
            reader.send(reader.fetch_request(("t", 0, 0), max_wait_ms=3_600_000), 12)
            await comes_true(lambda: partition.watchers.committed, "the fetch to be parked")
            await broker.controller.delete_topic("t")
            await broker.controller.create_topic(NewTopic("t"))
            wake(woken[0])
            readable = lambda: select.select([reader.sock], [], [], 0)[0]  # noqa: E731
            await comes_true(readable, "the reader to be answered")
            _, answer = reader.receive(FetchResponse, 12)
            assert answer.responses[0].partitions[0].records in (None, b"")


async def test_a_bug_while_a_fetch_waits_is_answered(tmp_path, monkeypatch, caplog):
    """Its reader must not wait for an answer that never comes."""
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings) as broker:
        await broker.controller.create_topic(NewTopic("t"))
        partition = broker.replicas.partitions["t", 0]
        with RawClient(broker.port) as reader:
            reader.send(reader.fetch_request(("t", 0, 0), max_wait_ms=3_600_000), 12)
            await comes_true(lambda: partition.watchers.committed, "the fetch to be parked")
            monkeypatch.setattr(Partition, "read", lambda *_, **__: 1 // 0)
            partition.log.high_watermark = 1
            partition.watchers.wake()
            readable = lambda: select.select([reader.sock], [], [], 0)[0]  # noqa: E731
            await comes_true(readable, "the reader to be answered")
            _, answer = reader.receive(FetchResponse, 12)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        partition.log.high_watermark = 0
    assert "ZeroDivisionError" in caplog.text


def test_a_reader_that_vanishes_with_a_request_behind_its_fetch(broker, client, topic):
    """Its connection is closed at once, though there is something to read from it."""
    before = descriptors(broker)
    with RawClient(broker.port) as waiting:
        waiting.send(waiting.fetch_request((topic, 0, 0), max_wait_ms=3_600_000), 12)
        until(lambda: descriptors(broker) > before)
        client.list_offset(topic, -1)  # by now the fetch is parked
        waiting.send(MetadataRequest(topics=[]), 9)
        client.list_offset(topic, -1)
        reset = struct.pack("ii", 1, 0)  # closing sends a reset
        waiting.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    until(lambda: descriptors(broker) <= before, "the connection to be closed")


def test_an_incremental_session_tells_only_news(client):
    client.create_topic("session", partitions=3)
    rows = [("session", p, 0) for p in range(3)]

    def call(request):
        return client.call(request, FetchResponse, 12)

    opened = call(client.fetch_request(*rows, session_epoch=0))
    session = opened.session_id
    assert session > 0
    assert sum(len(t.partitions) for t in opened.responses) == 3
    again = call(client.fetch_request(session_id=session, session_epoch=1))
    assert again.responses == []
    client.produce("session", batch_of(b"x"), partition=1)
    news = call(client.fetch_request(session_id=session, session_epoch=2))
    parts = [p for t in news.responses for p in t.partitions]
    assert [p.partition_index for p in parts] == [1]
    forget = [ForgottenTopic(topic="session", partitions=[1])]
    forgotten = call(
        client.fetch_request(session_id=session, session_epoch=3, forgotten_topics_data=forget)
    )
    assert forgotten.responses == []
    wrong = call(client.fetch_request(session_id=session, session_epoch=9))
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    gone = call(client.fetch_request(session_id=12345, session_epoch=1))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_nobody_has_heard_of():
    """The client is gone before it was answered: its session takes up no room."""
    settings = {"max.incremental.fetch.session.cache.slots": 1}
    with LocalBroker(settings) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        before = descriptors(broker)
        with RawClient(broker.port) as gone:
            gone.list_offset("t", -1)
            request = gone.fetch_request(("t", 0, 0), session_epoch=0, max_wait_ms=600_000)
            gone.send(request, 12)
        until(lambda: descriptors(broker) <= before, "the connection to be closed")
        opened = client.call(client.fetch_request(("t", 0, 0), session_epoch=0), FetchResponse, 12)
        assert opened.session_id > 0


def test_leader_epochs_are_checked(client, topic):
    request = client.fetch_request((topic, 0, 0))
    request.topics[0].partitions[0].current_leader_epoch = 5
    answer = client.call(request, FetchResponse, 12)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("transfer", ["mmap", "sendfile"])
def test_both_ways_out_carry_the_same_bytes(transfer):
    with LocalBroker({"fetch.transfer": transfer}) as broker, RawClient(broker.port) as client:
        client.create_topic("big")
        sent = [bytes([i]) * 300_000 for i in range(12)]
        for value in sent:
            client.produce("big", batch_of(value))
        assert client.read_values("big") == sent
        # A tail that grows after the file was mapped must be seen too.
        client.produce("big", batch_of(b"z" * 400_000))
        assert client.read_values("big", offset=12) == [b"z" * 400_000]
