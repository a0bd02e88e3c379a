"""``tidelog demo``: a broker, a stream of search events, and what became of them.

The events are those of the Kafka paper's users: who searched for what, and when.  They go in
through librdkafka and come back through it; only the look at the disk uses our own client.
Then Spark loads them into a lake (``demo_lake.py``), if it is installed.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tidelog.client import admin
from tidelog.client.admin import NewTopic
from tidelog.client.cluster import Cluster
from tidelog.client.partitions import log_sizes
from tidelog.clock import Clock, SystemClock
from tidelog.coordination.metadata import INTERNAL_TOPICS
from tidelog.errors import ApiError, ErrorCode
from tidelog.testing import LocalBroker
from tidelog.text import plural
from tidelog.tools import demo_lake
from tidelog.tools.output import show_json, size_text

TOPIC, PARTITIONS, USERS = "searches", 3, 200
_KEYWORDS = (
    "weather", "news", "football", "recipes", "cheap flights", "python", "spark", "kafka",
    "log compaction", "zero copy", "exactly once", "second hand bikes", "moon phase",
    "train timetable", "sourdough", "translate", "maps", "opening hours",
)  # fmt: skip
_PATIENCE = 30.0
_WORTH_A_RATE = 100  # fewer events take no time that could be measured


@click.command()
@click.option("--events", default=5000, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--seed", default=2011, show_default=True, help="Another seed, other events.")
@click.option("--spark/--no-spark", default=None, help="Load them into a lake, too.")
@click.option("--stay", is_flag=True, help="Keep the broker up until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print what happened as JSON.")
def demo(events: int, seed: int, spark: bool | None, stay: bool, as_json: bool) -> None:
    """See a broker at work, in less than a minute.

    It starts a broker on a free port with its data in a temporary folder, writes search
    events with a real Kafka client, reads them back, and looks at what is on the disk.  Then
    Spark loads them into a lake, proves that all of them are there, and counts them.
    """
    if spark is None:
        spark = demo_lake.can_load()
    elif spark and not demo_lake.can_load():
        raise click.UsageError('Spark is not installed: pip install "tidelog[spark]"')
    clock = SystemClock()
    say = Account(as_json)
    begun = clock.monotonic()
    # A demo that is told to stop must not leave its broker behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with LocalBroker() as broker:
        say.title(
            f"tidelog demo: a broker, {plural(events, 'search event')}, and what becomes of them"
        )
        ready = f"ready on {broker.bootstrap} after {clock.monotonic() - begun:.2f} s"
        say("broker", ready, bootstrap=broker.bootstrap, data=str(broker.data))
        with Cluster(broker.bootstrap) as cluster:
            created = admin.create_topics(cluster, [NewTopic(TOPIC, PARTITIONS)])[TOPIC]
            if isinstance(created, ApiError):
                raise created
            say("topic", f"{TOPIC}, {PARTITIONS} partitions", topic=TOPIC, partitions=PARTITIONS)
            size, seconds = _write(broker.bootstrap, events, seed, clock)
            say.rate("written", events, seconds, "with librdkafka: idempotent, acks=all, zstd")
            keywords, users, seconds = _read_back(broker.bootstrap, events, clock)
            how = f"back, in order for each of {plural(users, 'user')}"
            say.rate("read", events, seconds, how)
            say.keywords(keywords)
            say.disk(cluster, str(broker.data), size)
        if spark:
            demo_lake.load_and_query(say, broker.bootstrap, TOPIC, events, clock)
        say.end(broker.bootstrap, stay)
        if stay:
            try:
                signal.pause()
            except KeyboardInterrupt:
                click.echo("\nstopped; the data is gone with it", err=True)


def _events(count: int, seed: int, now_ms: int) -> Iterator[dict[str, Any]]:
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


def _quiet() -> logging.Logger:
    """librdkafka's own log is for its authors."""
    logger = logging.getLogger("tidelog.demo.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _producer(bootstrap: str) -> Producer:
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
    producer = Producer(settings, logger=_quiet())
    for _ in range(200):
        if ready:
            break
        producer.poll(0.05)
    return producer


def _write(bootstrap: str, count: int, seed: int, clock: Clock) -> tuple[int, float]:
    """Write the events, keyed by user; returns the size of keys and values, and the time."""
    producer = _producer(bootstrap)
    events = [
        (event["user"].encode(), json.dumps(event).encode())
        for event in _events(count, seed, clock.now_ms())
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
        raise _failed(f"{plural(left or len(failures), 'event')} could not be written: {reason}")
    return sum(len(key) + len(value) for key, value in events), seconds


def _read_back(bootstrap: str, count: int, clock: Clock) -> tuple[Counter[str], int, float]:
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
        logger=_quiet(),
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
                raise _failed(f"only {plural(len(ids), 'event')} came back")
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise _failed(f"reading failed: {error.str()}")
                at_end += 1
                continue
            event = json.loads(message.value() or b"")
            if last_of.get(event["user"], -1) >= event["id"]:
                raise _failed(f"event {event['id']} of {event['user']} is out of order")
            last_of[event["user"]] = event["id"]
            ids.add(event["id"])
            last = clock.monotonic()
            first = first or last
            keywords[event["keyword"]] += 1
    finally:
        consumer.close()
    if len(ids) != count:
        raise _failed(f"{count} events were written, {len(ids)} came back")
    return keywords, len(last_of), last - first


def _failed(message: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the demo failed: {message}")


class Account:
    """Tells a person what happens as it happens, or a program at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._facts: dict[str, Any] = {}

    def title(self, text: str) -> None:
        if not self._as_json:
            click.secho(f"{text}\n", bold=True)

    def __call__(self, label: str, text: str, **facts: Any) -> None:
        self._facts.update(facts)
        if not self._as_json:
            click.secho(f"  {label:<10}", fg="cyan", nl=False)
            click.echo(text)

    def rate(self, label: str, count: int, seconds: float, how: str) -> None:
        text = f"{plural(count, 'event')} {how}"
        facts = {label: count, f"{label}_seconds": round(seconds, 4)}
        if count >= _WORTH_A_RATE:
            text += f"\n{'':12}{seconds:.2f} s, {count / max(seconds, 1e-6):,.0f} a second"
        self(label, text, **facts)

    def keywords(self, keywords: Counter[str]) -> None:
        top = keywords.most_common(5)
        self._facts["top_keywords"] = dict(top)
        longest = top[0][1]
        for i, (keyword, count) in enumerate(top):
            bar = "#" * max(1, round(24 * count / longest))
            self("searched" if i == 0 else "", f"{keyword:<16}{count:>7,}  {bar}")

    def windows(self, title: str, rows: Sequence[demo_lake.Searched]) -> None:
        self._facts["windows"] = [row._asdict() for row in rows]
        self("counted", title)
        shown = ""
        for row in rows:
            window = row.window if row.window != shown else ""
            self("", f"{window:<10}{row.keyword:<16}{row.searches:>7,}")
            shown = row.window

    def failed(self, message: str) -> ApiError:
        return _failed(message)

    def disk(self, cluster: Cluster, data: str, size: int) -> None:
        total = 0
        rows = [row for row in log_sizes(cluster) if row.partition.topic not in INTERNAL_TOPICS]
        rows.sort(key=lambda row: row.partition)
        for i, row in enumerate(rows):
            total += row.size
            folder = os.path.join(row.directory, str(row.partition))
            segments = [name for name in os.listdir(folder) if name.endswith(".log")]
            text = f"{folder}  {plural(len(segments), 'segment')}, {size_text(row.size)}"
            self("on disk" if i == 0 else "", text)
        ratio = (
            f"{size_text(size)} of keys and values are {size_text(total)}: {size / total:.1f} to 1"
        )
        self("", ratio, data=data, event_bytes=size, disk_bytes=total)

    def end(self, bootstrap: str, stay: bool) -> None:
        if self._as_json:
            show_json(self._facts)
            return
        if stay:
            click.secho("\nThe broker stays up until Ctrl-C.  In another terminal:", bold=True)
            click.echo(f"  export TIDELOG_BOOTSTRAP={bootstrap}")
            click.echo(f"  tidelog topics describe {TOPIC}")
            click.echo(f"  tidelog consume {TOPIC} --from -5 --exit --format offset")
            click.echo(f"  echo hello | tidelog produce {TOPIC} -k me")
            click.echo(f"  tidelog log check {self._facts['data']}")
            return
        click.secho("\nNext:", bold=True, nl=False)
        click.echo("  tidelog up                                 a broker that stays, on port 9092")
        click.echo("       tidelog produce hello                      type records, Ctrl-D ends")
        click.echo(
            "       tidelog consume hello --from start         read them; so can any Kafka client"
        )
        click.echo("       tidelog demo --stay                        this, to look around in")
