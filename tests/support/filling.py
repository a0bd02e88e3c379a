"""Topics with something in them, written by librdkafka."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from support.raw_client import RawClient, batch_of

from tidelog.client.admin import create_topics
from tidelog.client.cluster import Cluster
from tidelog.errors import ApiError
from tidelog.new_topic import NewTopic
from tidelog.wire.compression import Codec


def make_topic(
    bootstrap: str, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
) -> str:
    """Create a topic that keeps records of any age; its name is returned."""
    new = NewTopic(topic, partitions, config={"retention.ms": "-1", **(configs or {})})
    with Cluster(bootstrap) as cluster:
        result = create_topics(cluster, [new])[topic]
    if isinstance(result, ApiError):
        raise result
    return topic


def fill(
    bootstrap: str,
    topic: str,
    values: Iterable[Any],
    *,
    partitions: int = 1,
    configs: dict[str, str] | None = None,
    make: bool = True,
    **producer: Any,
) -> str:
    """Write values to a topic, in turn to each partition; its name is returned.

    A value is bytes, text, None, a list or a number (as JSON), or a dict: with ``value`` and any
    of ``key, headers, partition, timestamp`` it is a record, otherwise JSON too.  ``producer``
    are librdkafka's properties, with ``__`` for dots.  How many batches there are is not known:
    on a busy machine librdkafka sends in two what is flushed at once (see ``write_batch``).
    """
    if make:
        make_topic(bootstrap, topic, partitions, configs)
    settings = {"bootstrap.servers": bootstrap, "acks": "1", "linger.ms": 10_000}
    settings |= {name.replace("__", "."): value for name, value in producer.items()}
    client = Producer(settings)
    errors = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(error)

    for number, value in enumerate(values):
        record = dict(value) if isinstance(value, dict) and "value" in value else {"value": value}
        record.setdefault("partition", number % partitions)
        record["value"] = _encoded(record["value"])
        while True:
            try:
                client.produce(topic, on_delivery=delivered, **record)
                break
            except BufferError:
                client.poll(0.1)
        client.poll(0)
    client.flush()
    assert not errors, errors[0]
    return topic


def write_batch(
    bootstrap: str, topic: str, values: Iterable[Any], codec: Codec = Codec.NONE
) -> None:
    """Exactly one batch with these values, to partition 0."""
    with RawClient(int(bootstrap.rpartition(":")[2])) as client:
        answer = client.produce(topic, batch_of(*map(_encoded, values), codec=codec))
    assert answer.error_code == 0, answer


def _encoded(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()
