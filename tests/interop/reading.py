"""Everything that a topic holds, in order, by librdkafka."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

_PATIENCE = 100


class Record(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: tuple[int, int]  # its type, and milliseconds


def read_topic(bootstrap: str, topic: str) -> list[Record]:
    """Read every partition to its end."""
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "allow.auto.create.topics": False,
            **settings,
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=_PATIENCE).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found, ended = [], set()
        while len(ended) < len(partitions):
            message = consumer.poll(_PATIENCE)
            assert message is not None, f"{topic}: nothing more came"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended.add(message.partition())
                continue
            found.append(
                Record(
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                    message.timestamp(),
                )
            )
    finally:
        consumer.close()
    return sorted(found, key=lambda record: record[:2])
