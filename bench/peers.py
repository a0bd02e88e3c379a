"""tidelog and Apache Kafka side by side, with the same settings.

``shared`` is one pair for the whole run: sections use topics of their own on it.  ``pair``
is a fresh one.  A Java program is slow until it has been compiled, so Kafka is warmed up
twice: here, for some seconds with small and large requests and fetches, and before the
first round of every row with that row's own load, unrecorded (``contest``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bench import load
from bench.kafka_peer import KafkaNode
from bench.system import BROKER, ROLLING, Bench, data_folder, running_broker
from bench.wire import (
    batch_of,
    connect,
    end_offset,
    fetch_request,
    make_topic,
    produce_request,
    try_fetch,
    try_produce,
)
from tidelog.testing.local import LocalBroker

Broker = LocalBroker | KafkaNode
Brokers = dict[str, Broker]

_shared: Brokers = {}  # while it runs


def shared(bench: Bench) -> Brokers:
    """The pair that serves most sections; started once, ended with the bench's stack."""
    if not _shared:
        bench.stack.callback(_shared.clear)
        _shared.update(bench.stack.enter_context(pair(bench, BROKER)))
    return dict(_shared)


@contextlib.contextmanager
def pair(bench: Bench, settings: Mapping[str, Any], warm: bool = True) -> Iterator[Brokers]:
    """Both brokers, running and, if so wanted, warm."""
    with contextlib.ExitStack() as stack:
        brokers: Brokers = {"tidelog": stack.enter_context(running_broker(bench, settings))}
        if bench.kafka:
            bench.progress("starting Kafka")
            node = stack.enter_context(running_kafka(bench, settings))
            brokers["kafka"] = node
            if warm:
                bench.progress("warming up Kafka")
                warm_up(node.port, 4 if bench.quick else 12)
        yield brokers


@contextlib.contextmanager
def running_kafka(bench: Bench, settings: Mapping[str, Any]) -> Iterator[KafkaNode]:
    """Kafka with its data in a temporary folder; killed at the end, nothing is kept."""
    with data_folder(bench) as data:
        node = KafkaNode(settings, data=data)
        try:
            yield node.start()
        finally:
            node.kill()


def warm_up(port: int, seconds: float) -> None:
    """Some of everything, for about so long."""
    deadline = time.monotonic() + seconds
    with connect(port) as sock:
        make_topic(sock, "warm-up", 6, ROLLING)
        while time.monotonic() < deadline:
            for size, partitions in ((0, 1), (0, 6), (16 << 10, 1), (16 << 10, 6), (1 << 20, 1)):
                batch, _ = batch_of(size)
                request = produce_request(batch, "warm-up", partitions=partitions)
                answer = try_produce(sock, request)
                load.pipelined(sock, request, answer, 5, 0.2)
                frame = fetch_request(end_offset(sock, "warm-up") - 1, 1 << 20, topic="warm-up")
                answer, records = try_fetch(sock, frame)
                load.fetch([sock], [frame], answer, records, 0.1)
