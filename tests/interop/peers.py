"""Strangers' clients behind one face: write rows to a topic, read them back.

Only what all of them can do; what one of them does beyond that is in its own test file.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from interop.kafkajs_driver import kafkajs, message, why_not
from support.client_records import CODECS, Row

TIMEOUT = 100  # seconds; nothing here takes one, but a busy machine may be slow


class Peer:
    """What the tests need to know of a client."""

    def can_write(self, row: Row) -> bool:
        """Can this client send such a record at all?"""
        return True


class Confluent(Peer):
    """confluent-kafka: the newest librdkafka."""

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none") -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        failed = []
        for row in rows:
            producer.produce(
                topic,
                key=row.key,
                value=row.value,
                headers=list(row.headers),
                timestamp=row.timestamp,
                partition=0,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(TIMEOUT) == 0
        assert not failed

    def read(self, bootstrap: str, topic: str, count: int) -> list[Row]:
        with self.consumer(bootstrap, TopicPartition(topic, 0, 0)) as consumer:
            messages = consumer.consume(count, TIMEOUT)
        for found in messages:
            assert found.error() is None, found.error()
        return [
            Row(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in messages
        ]

    @contextmanager
    def consumer(
        self, bootstrap: str, *assigned: TopicPartition, **settings: Any
    ) -> Iterator[Consumer]:
        """A consumer of partitions assigned by hand; it must not commit, nor wait to."""
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        try:
            consumer.assign(list(assigned))
            yield consumer
        finally:
            consumer.close()


class KafkaPython(Peer):
    """kafka-python: pure Python, idempotent by default."""

    def can_write(self, row: Row) -> bool:
        return all(value is not None for _, value in row.headers)

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none") -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec
        )
        try:
            sent = [
                producer.send(
                    topic,
                    key=row.key,
                    value=row.value,
                    headers=list(row.headers),
                    timestamp_ms=row.timestamp,
                    partition=0,
                )
                for row in rows
            ]
            for future in sent:
                future.get(TIMEOUT)
        finally:
            producer.close()

    def read(self, bootstrap: str, topic: str, count: int) -> list[Row]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, consumer_timeout_ms=TIMEOUT * 1000
        )
        try:
            partition = kafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            messages = [found for _, found in zip(range(count), consumer, strict=False)]
        finally:
            consumer.close()
        return [Row(m.key, m.value, tuple(m.headers), m.timestamp) for m in messages]


class AioKafka(Peer):
    """aiokafka: asyncio, with its own record code in C."""

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none") -> None:
        asyncio.run(self._write(bootstrap, topic, rows, codec))

    async def _write(self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str) -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec
        ) as producer:
            sent = [
                await producer.send(
                    topic,
                    key=row.key,
                    value=row.value,
                    headers=list(row.headers),
                    timestamp_ms=row.timestamp,
                    partition=0,
                )
                for row in rows
            ]
            await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT)

    def read(self, bootstrap: str, topic: str, count: int) -> list[Row]:
        return asyncio.run(self._read(bootstrap, topic, count))

    async def _read(self, bootstrap: str, topic: str, count: int) -> list[Row]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            messages = [await asyncio.wait_for(consumer.getone(), TIMEOUT) for _ in range(count)]
        return [Row(m.key, m.value, tuple(m.headers), m.timestamp) for m in messages]


class Kcat(Peer):
    """kcat with the librdkafka of the system, often years old.

    It cannot set timestamps, and takes an empty key or value for none.
    """

    # Delimiters that no record contains, so that any bytes go through standard input.
    _KEY, _END = "<key:5f1d>", "<end:5f1d>"
    _FORMAT = r"%K %S %T %h\n%k%s"

    def can_write(self, row: Row) -> bool:
        return row.key != b"" and row.value != b""

    def run(self, bootstrap: str, *arguments: str, data: bytes = b"") -> bytes:
        """What kcat prints; raises CalledProcessError with its complaint if it fails."""
        command = ["kcat", "-b", bootstrap, *arguments]
        done = subprocess.run(command, input=data, capture_output=True, timeout=60, check=True)
        return done.stdout

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none") -> None:
        for headers, group in groupby(rows, lambda row: row.headers):
            lines = [
                (row.key or b"") + self._KEY.encode() + (row.value or b"") + self._END.encode()
                for row in group
            ]
            flags = [f"-H{name}" if v is None else f"-H{name}={v.decode()}" for name, v in headers]
            self.run(
                bootstrap,
                *("-P", "-t", topic, "-p", "0", "-z", codec, "-Z"),
                *("-K", self._KEY, "-D", self._END, *flags),
                data=b"".join(lines),
            )

    def read(self, bootstrap: str, topic: str, count: int) -> list[Row]:
        data = self.run(
            bootstrap,
            *("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-e", "-q"),
            *("-f", self._FORMAT),
        )
        rows = []
        while data:
            head, _, data = data.partition(b"\n")
            key_size, value_size, timestamp, headers = head.split(b" ", 3)
            key, data = _take(data, int(key_size))
            value, data = _take(data, int(value_size))
            rows.append(Row(key, value, _parse_headers(headers), int(timestamp)))
        return rows


def _take(data: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, data) if size < 0 else (data[:size], data[size:])


def _parse_headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """kcat's ``a=1,none=NULL``."""
    pairs = [item.partition(b"=") for item in text.split(b",") if item]
    return tuple((name.decode(), None if v == b"NULL" else v) for name, _, v in pairs)


class KafkaJs(Peer):
    """kafkajs: writes only, because its consumer needs groups."""

    def can_write(self, row: Row) -> bool:
        return all(value is not None for _, value in row.headers)

    def write(self, bootstrap: str, topic: str, rows: Sequence[Row], codec: str = "none") -> None:
        messages = [message(row) for row in rows]
        sent = {"topic": topic, "compression": CODECS.index(codec), "messages": messages}
        kafkajs(bootstrap, ["producer", "send", sent])


needs_kcat = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed: ./dev setup --clients"
)
needs_kafkajs = pytest.mark.skipif(bool(why_not()), reason=why_not())

READERS = [
    pytest.param(Confluent(), id="confluent"),
    pytest.param(KafkaPython(), id="kafka-python"),
    pytest.param(AioKafka(), id="aiokafka"),
    pytest.param(Kcat(), id="kcat", marks=needs_kcat),
]
WRITERS = [*READERS, pytest.param(KafkaJs(), id="kafkajs", marks=needs_kafkajs)]
