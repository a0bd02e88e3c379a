"""A real client, for information: here the client is the limit, and Python its slowest part."""

from __future__ import annotations

import time
from typing import Any

from bench.report import Row, Section
from bench.system import LISTENER, Bench, cpu_seconds, running_broker
from bench.wire import BenchError

RECORDS = {100: 200_000, 1024: 100_000}
# Kafka's defaults, but for librdkafka's habit of sleeping a second when its queue is full.
_CONSUMER = {"fetch.queue.backoff.ms": 10, "queued.min.messages": 1_000_000}


def measure(bench: Bench) -> Section:
    """confluent-kafka, producer and consumer."""
    section = Section("clients", "confluent-kafka at its defaults, one partition; information only")
    rounds = 1 if bench.quick else min(3, bench.rounds)
    with running_broker(bench, LISTENER) as broker:
        for size, total in RECORDS.items():
            count = total // 4 if bench.quick else total
            written, read = _Runs(broker.pid), _Runs(broker.pid)
            for i in range(rounds):
                topic = f"clients-{size}-{i}"
                written.run(_produce, broker.bootstrap, topic, size, count)
                read.run(_consume, broker.bootstrap, topic, size, count)
                bench.progress(f"{size} bytes, round {i + 1}/{rounds}")
            section.rows.append(written.row(f"producer, {size} B records", size))
            section.rows.append(read.row(f"consumer, {size} B records", size))
    return section


class _Runs:
    """Records a second, and how busy the broker was meanwhile."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._rates: list[float] = []
        self._busy: list[float] = []

    def run(self, work: Any, bootstrap: str, topic: str, size: int, count: int) -> None:
        cpu = cpu_seconds(self._pid)
        seconds = work(bootstrap, topic, size, count)
        self._rates.append(count / seconds)
        self._busy.append((cpu_seconds(self._pid) - cpu) / seconds)

    def row(self, name: str, size: int) -> Row:
        middle = sorted(self._rates)[len(self._rates) // 2]
        busy = sorted(self._busy)[len(self._busy) // 2]
        note = f"{middle * size / 1e6:.0f} MB/s, broker busy {busy:.0%}"
        return Row(name, "records/s", self._rates, note=note)


def _produce(bootstrap: str, topic: str, size: int, count: int) -> float:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.list_topics(topic, timeout=10)  # the topic is there before the clock starts
    value, produce = bytes(size), producer.produce
    started = time.perf_counter()
    for i in range(count):
        try:
            produce(topic, value)
        except BufferError:
            producer.poll(0.1)
            produce(topic, value)
        if i % 1000 == 0:
            producer.poll(0)
    if producer.flush(30):
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
