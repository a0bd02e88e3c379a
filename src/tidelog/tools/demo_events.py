"""The events of ``tidelog demo``: made up, written and read back with librdkafka.

They are those of the Kafka paper's users: who searched for what, and when.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tidelog.clock import Clock
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.tools.librdkafka import silent_logger

TOPIC, PARTITIONS, USERS = "searches", 3, 200
_KEYWORDS = (
    "weather", "news", "football", "recipes", "cheap flights", "python", "spark", "kafka",
    "log compaction", "zero copy", "exactly once", "second hand bikes", "moon phase",
    "train timetable", "sourdough", "translate", "maps", "opening hours",
)  # fmt: skip
_PATIENCE = 30.0


def search_events(count: int, seed: int, now_ms: int) -> Iterator[dict[str, Any]]:
    """Popular keywords are searched for often, rare ones rarely."""
    chance = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(_KEYWORDS) + 1)]
    words = chance.choices(_KEYWORDS, weights, k=count)
    for number, keyword in enumerate(words):
        moment = time.gmtime((now_ms - (count - number) * 20) / 1000)
        yield {
            "id": number,
            "user": f"user-{chance.randrange(USERS):03d}",
            "keyword": keyword,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", moment),
        }


def ready_producer(bootstrap: str) -> Producer:
    """A producer that is connected and has its producer id: the rate is to be that of writing."""
    ready = []

    def statistics(text: str) -> None:
        if json.loads(text).get("eos", {}).get("idemp_state") == "Assigned":
            ready.append(True)

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "compression.type": "zstd",
        "statistics.interval.ms": 20,
        "stats_cb": statistics,
    }
    producer = Producer(settings, logger=silent_logger())
    for _ in range(200):
        if ready:
            break
        producer.poll(0.05)
    return producer


def write(bootstrap: str, count: int, seed: int, clock: Clock) -> tuple[int, float]:
    """Write the events, keyed by user; returns the size of keys and values, and the time."""
    producer = ready_producer(bootstrap)
    events = [
        (event["user"].encode(), json.dumps(event).encode())
        for event in search_events(count, seed, clock.now_ms())
    ]
    begun = clock.monotonic()
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Any) -> None:  # noqa: ARG001
        if error is not None:
            failures.append(error)

    for key, value in events:
        while True:
            try:
                producer.produce(TOPIC, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(_PATIENCE)
    seconds = clock.monotonic() - begun
    if left or failures:
        reason = failures[0].str() if failures else "the broker does not answer"
        raise failed(f"{plural(left or len(failures), 'event')} could not be written: {reason}")
    return sum(len(key) + len(value) for key, value in events), seconds


def read_back(bootstrap: str, count: int, clock: Clock) -> tuple[Counter[str], int, float]:
    """Read everything and check it: none missing, none twice, each user's in order.

    Returns the keywords, the number of users, and the time from the first event to the last.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",  # librdkafka wants a name, though we join no group
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        },
        logger=silent_logger(),
    )
    consumer.assign([TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    keywords: Counter[str] = Counter()
    last_of: dict[str, int] = {}
    ids: set[int] = set()
    at_end, first, last = 0, 0.0, 0.0
    try:
        while at_end < PARTITIONS:
            message = consumer.poll(_PATIENCE)
            if message is None:
                raise failed(f"only {plural(len(ids), 'event')} came back")
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise failed(f"reading failed: {error.str()}")
                at_end += 1
                continue
            event = json.loads(message.value() or b"")
            if last_of.get(event["user"], -1) >= event["id"]:
                raise failed(f"event {event['id']} of {event['user']} is out of order")
            last_of[event["user"]] = event["id"]
            ids.add(event["id"])
            last = clock.monotonic()
            first = first or last
            keywords[event["keyword"]] += 1
    finally:
        consumer.close()
    if len(ids) != count:
        raise failed(f"{count} events were written, {len(ids)} came back")
    return keywords, len(last_of), last - first


def failed(message: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the demo failed: {message}")
