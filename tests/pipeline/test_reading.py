"""Ranges of offsets from a real broker, whatever happens to it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from tidelog.client import admin
from tidelog.client.admin import NewTopic
from tidelog.client.cluster import Cluster
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import ALL_WITH_HEADERS, Columns, OffsetRange
from tidelog.pipeline.reading import read_range
from tidelog.pipeline.schema import arrow_schema
from tidelog.testing import LocalBroker


@pytest.fixture
def cluster(broker: LocalBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as connected:
        yield connected


def produce(broker: LocalBroker, topic: str, values: list[bytes], **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **settings})
    for value in values:
        producer.produce(topic, value, b"k", partition=0, headers=[("h", value)])
        producer.poll(0)
    assert producer.flush(30) == 0


def client_of(broker: LocalBroker, **options: object) -> ClientOptions:
    return ClientOptions(broker.bootstrap, **options)


def read(client: ClientOptions, part: OffsetRange, columns=ALL_WITH_HEADERS, **options) -> pa.Table:
    batches = list(read_range(client, part, columns, **options))
    return pa.Table.from_batches(batches, arrow_schema(columns))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(cluster: Cluster, broker: LocalBroker, topic: str, codec: str) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    values = [b"value %d" % i * 20 for i in range(1000)]
    produce(broker, topic, values, **{"compression.type": codec, "batch.num.messages": 100})
    found = read(client_of(broker), OffsetRange(topic, 0, 0, 1000))
    assert found["value"].to_pylist() == values
    assert found["offset"].to_pylist() == list(range(1000))
    assert found["headers"][7].as_py() == [{"key": "h", "value": values[7]}]


def test_a_range_inside_batches_and_few_columns(
    cluster: Cluster, broker: LocalBroker, topic: str
) -> None:
    admin.create_topics(cluster, [NewTopic(topic)])
    produce(broker, topic, [b"%d" % i for i in range(50)])
    found = read(client_of(broker), OffsetRange(topic, 0, 13, 37), Columns(("offset",)))
    assert found.to_pydict() == {"offset": list(range(13, 37))}
