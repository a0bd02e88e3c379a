"""Raw batches from a real broker: codecs, limits, and what happens to a log meanwhile."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from support.record_reader import read_records
from support.waiting import until

from tidelog.client import admin
from tidelog.client.cluster import Cluster
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.fetcher import FetchedBatches, Fetcher, records_of
from tidelog.client.offsets import Extent
from tidelog.client.partitions import delete_records
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalBroker
from tidelog.topic_partition import TopicPartition
from tidelog.wire.batch import CONTROL
from tidelog.wire.records import encode_batch


@pytest.fixture
def cluster(broker: LocalBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as connected:
        yield connected


def produce(broker: LocalBroker, row: TopicPartition, values: list[bytes], **settings: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **settings})
    for value in values:
        producer.produce(row.topic, value, b"k", partition=row.partition, headers=[("h", value)])
    assert producer.flush(100) == 0


def poll_until(fetcher: Fetcher, count: int) -> list[FetchedBatches]:
    """Poll until so many parts came."""
    found: list[FetchedBatches] = []

    def enough() -> bool:
        found.extend(fetcher.poll(1.0))
        return len(found) >= count

    until(enough, f"{count} answers with something to tell")
    return found


def values_of(fetched: FetchedBatches) -> list[bytes | None]:
    return [
        record.value
        for batch in fetched.batches
        for record in records_of(batch)
        if record.offset >= fetched.offset
    ]


def test_a_program_with_many_open_files(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this system allows no 2000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    admin.create_topics(cluster, [NewTopic(topic)])
    row = TopicPartition(topic, 0)
    produce(broker, row, [b"x"])
    with contextlib.ExitStack() as files:
        for _ in range(1100):
            files.enter_context(open(os.devnull))
        assert [r.value for r in read_records(cluster, row, Extent(0, 1))] == [b"x"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(cluster: Cluster, broker: LocalBroker, topic: str, codec: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    row = TopicPartition(topic, 0)
    values = [b"value %d" % i * 20 for i in range(100)]
    produce(broker, row, values, **{"compression.type": codec})
    records = list(read_records(cluster, row, Extent(0, 100)))
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(100))
    assert records[7].key == b"k"
    assert list(records[7].headers) == [("h", values[7])]


def test_a_range_inside_batches(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    row = TopicPartition(topic, 0)
    produce(broker, row, [b"%d" % i for i in range(50)])
    records = list(read_records(cluster, row, Extent(13, 37)))
    assert [record.offset for record in records] == list(range(13, 37))


def test_many_partitions_take_turns(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic, 4)])
    rows = [TopicPartition(topic, i) for i in range(4)]
    for row in rows:
        produce(broker, row, [b"x" * 900] * 100, **{"batch.num.messages": "1"})
    # An answer has room for little, and yet no partition is left behind.
    fetcher = Fetcher(cluster, max_bytes=5000, partition_max_bytes=5000)
    for row in rows:
        fetcher.assign(row, 0)
    counts = dict.fromkeys(rows, 0)
    while min(counts.values()) < 20:
        for fetched in fetcher.poll(1.0):
            counts[fetched.partition] += len(values_of(fetched))
    assert max(counts.values()) <= 3 * min(counts.values())
    fetcher.close()


def test_a_batch_larger_than_the_limit_comes_whole(
    cluster: Cluster, broker: LocalBroker, topic: str
) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    row = TopicPartition(topic, 0)
    produce(broker, row, [b"x" * 100_000, b"y" * 100_000], **{"batch.num.messages": "1"})
    fetcher = Fetcher(cluster, max_bytes=1000, partition_max_bytes=1000)
    fetcher.assign(row, 0)
    parts = poll_until(fetcher, 2)
    assert [values_of(part) for part in parts] == [[b"x" * 100_000], [b"y" * 100_000]]


def test_a_waiting_fetch_is_woken(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    row = TopicPartition(topic, 0)
    fetcher = Fetcher(cluster, max_wait_ms=60_000)
    fetcher.assign(row, 0)
    assert fetcher.poll(0.01) == []
    produce(broker, row, [b"now"])
    (fetched,) = poll_until(fetcher, 1)
    assert values_of(fetched) == [b"now"]
    assert fetched.high_watermark == 1


def test_an_offset_that_is_gone_is_told(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    row = TopicPartition(topic, 0)
    produce(broker, row, [b"a", b"b", b"c"])
    delete_records(cluster, {row: 2})
    fetcher = Fetcher(cluster)
    fetcher.assign(row, 0)
    assert poll_until(fetcher, 1)[0].error == ErrorCode.OFFSET_OUT_OF_RANGE
    fetcher.assign(row, 2)
    parts = [part for part in poll_until(fetcher, 1) if not part.error]
    while not parts:  # an answer to the old offset may have been under way
        parts = [part for part in fetcher.poll(1.0) if not part.error]
    assert values_of(parts[0]) == [b"c"]


def test_a_deleted_topic_is_told_even_if_it_was_made_again(
    cluster: Cluster, broker: LocalBroker, topic: str
) -> None:
    for again in (False, True):
        admin.create_topics(cluster, [NewTopic(topic)])
        row = TopicPartition(topic, 0)
        fetcher = Fetcher(cluster)
        fetcher.assign(row, 0)
        fetcher.poll(0.01)
        admin.delete_topics(cluster, [topic])
        if again:
            admin.create_topics(cluster, [NewTopic(topic)])
        (fetched,) = poll_until(fetcher, 1)
        assert fetched.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not fetcher.positions


def test_a_restart_is_an_error_once_and_then_goes_on() -> None:
    row = TopicPartition("survivor", 0)
    with LocalBroker() as own, Cluster(own.bootstrap) as cluster:
        produce(own, row, [b"before"])
        fetcher = Fetcher(cluster)
        fetcher.assign(row, 0)
        assert values_of(poll_until(fetcher, 1)[0]) == [b"before"]
        own.kill()
        with pytest.raises(BrokerUnreachable):
            poll_until(fetcher, 1)
        with pytest.raises(BrokerUnreachable):
            fetcher.poll(1.0)
        own.start()
        produce(own, row, [b"after"])
        assert values_of(poll_until(fetcher, 1)[0]) == [b"after"]


def test_damaged_old_and_control_batches() -> None:
    rows = [(0, b"k", b"v", ())]
    batch = bytearray(encode_batch(rows))
    assert [record.value for record in records_of(memoryview(batch))] == [b"v"]
    assert list(records_of(memoryview(encode_batch(rows, attributes=CONTROL)))) == []
    batch[-1] ^= 1
    with pytest.raises(ApiError, match="CRC"):
        records_of(memoryview(batch))
    batch[16] = 1
    with pytest.raises(ApiError, match=r"older than Kafka 0\.11"):
        records_of(memoryview(batch))
