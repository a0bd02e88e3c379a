"""Real clients: confluent-kafka (librdkafka) here, Java's in ``java``.

Often the client is the limit; how busy the broker was stands beside.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench import java
from bench.contest import row
from bench.peers import Brokers, shared
from bench.report import Row, Section
from bench.system import ROLLING, Bench, cpu_seconds
from bench.wire import BenchError, batch_of, connect, end_offset, make_topic, produce_request
from bench.wire import try_produce as produce_once

RECORDS = {100: 200_000, 1024: 100_000}
TUNED = {"linger.ms": 10, "batch.size": 1 << 20, "compression.type": "lz4", "acks": 1}
_RDKAFKA = {**TUNED, "queue.buffering.max.messages": 1_000_000}
# The defaults, but for librdkafka's habit of sleeping a second when its queue is full.
_CONSUMER = {"fetch.queue.backoff.ms": 10, "queued.min.messages": 1_000_000}

Run = Callable[[], float]  # seconds


def measure(bench: Bench) -> Section:
    """confluent-kafka and Kafka's own performance tool, at their defaults and tuned."""
    section = Section(
        "clients",
        "one partition, at their defaults and tuned (linger.ms=10, batch.size=1 MiB, lz4, "
        "acks=1); the busy share is of one core",
    )
    brokers = shared(bench)
    _prepare(brokers)
    for size, total in RECORDS.items():
        count = total // 4 if bench.quick else total
        for name, settings in (("defaults", {}), ("tuned", _RDKAFKA)):
            works = {
                who: partial(produce, broker.bootstrap, "clients", size, count, settings)
                for who, broker in brokers.items()
            }
            shown = f"confluent-kafka producer, {size} B, {name}"
            section.rows.append(_contest(bench, brokers, shown, size, count, works))
        works = {
            who: partial(_consume, broker.bootstrap, f"clients-read-{size}", size, count)
            for who, broker in brokers.items()
        }
        shown = f"confluent-kafka consumer, {size} B"
        section.rows.append(_contest(bench, brokers, shown, size, count, works))
    if bench.kafka:
        for name, settings in (("defaults", {}), ("tuned", TUNED)):
            count = 50_000 if bench.quick else 300_000
            works = {
                who: partial(java.produce, broker.bootstrap, "clients", 1024, count, settings)
                for who, broker in brokers.items()
            }
            shown = f"Java ProducerPerformance, 1024 B, {name}"
            section.rows.append(_contest(bench, brokers, shown, 1024, count, works))
    return section


def _prepare(brokers: Brokers) -> None:
    """A rolling topic to write, and filled ones to read."""
    for broker in brokers.values():
        with connect(broker.port) as sock:
            make_topic(sock, "clients", 1, ROLLING)
            for size, count in RECORDS.items():
                topic = f"clients-read-{size}"
                make_topic(sock, topic)
                batch, _ = batch_of(64 << 10, size)
                request = produce_request(batch, topic)
                while end_offset(sock, topic) < count + 1000:
                    produce_once(sock, request)


def _contest(
    bench: Bench, brokers: Brokers, name: str, size: int, count: int, works: Mapping[str, Run]
) -> Row:
    rates: dict[str, list[float]] = {who: [] for who in works}
    busy: dict[str, list[float]] = {who: [] for who in works}
    if "kafka" in works:
        works["kafka"]()  # warm
    for i in range(bench.few):
        for who, work in works.items():
            cpu = cpu_seconds(brokers[who].pid)
            seconds = work()
            rates[who].append(count / seconds)
            busy[who].append((cpu_seconds(brokers[who].pid) - cpu) / seconds)
        bench.progress(f"{name}, round {i + 1}/{bench.few}")
    middle = statistics.median(rates["tidelog"]) * size / 1e6
    shares = " / ".join(f"{who} busy {statistics.median(each):.0%}" for who, each in busy.items())
    return row(name, "records/s", rates, note=f"{middle:.0f} MB/s; {shares}")


def produce(
    bootstrap: str, topic: str, size: int, count: int, settings: Mapping[str, Any]
) -> float:
    """Seconds, from the first record to the last acknowledgement."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.list_topics(topic, timeout=10)
    producer.produce(topic, b"first")
    if producer.flush(30):  # connected before the clock starts
        raise BenchError("confluent-kafka could not deliver a record")
    value, send = bytes(size), producer.produce
    started = time.perf_counter()
    for i in range(count):
        try:
            send(topic, value)
        except BufferError:
            producer.poll(0.1)
            send(topic, value)
        if i % 1000 == 0:
            producer.poll(0)
    if producer.flush(60):
        raise BenchError("confluent-kafka could not deliver everything")
    return time.perf_counter() - started


def _consume(bootstrap: str, topic: str, size: int, count: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, **_CONSUMER})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        first = consumer.poll(30)  # connected; the clock measures the flow
        if first is None or first.error() or len(first.value() or b"") != size:
            raise BenchError("confluent-kafka could not read")
        got = 1
        started = time.perf_counter()
        while got < count:
            messages = consumer.consume(min(10_000, count - got), timeout=5)
            if not messages:
                raise BenchError(f"confluent-kafka got {got} of {count} records")
            got += len(messages)
        return time.perf_counter() - started
    finally:
        consumer.close()
