"""The pipeline on Spark, beside Spark's own Kafka connector on the same broker.

Both formats take turns in one warmed-up session, so the start of Java, the classes of Spark
and the compiled decoder fall on nobody.  The planning of every query is in its time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench import spark_jobs
from bench.contest import row
from bench.kafka_jars import NoKafka
from bench.report import Row, Section, in_turn
from bench.spark_data import fill
from bench.spark_jars import connector, connector_version
from bench.spark_jobs import Jobs
from bench.system import LISTENER, ROLLING, Bench, allow_descriptors, data_folder, running_broker
from bench.wire import batch_of, connect, make_topic, produce_request, try_produce
from tidelog.testing.local import LocalBroker
from tidelog.wire.compression import Codec

ROWS = {100: 1_000_000, 1024: 200_000}  # a fifth of it in a quick run
PARTITIONS = 4
LOAD_GOAL = 3.0
MANY = 1000
GROWTH = 10
MOST_GROWTH = 1.1  # of the cost of a row, and of the memory of a task
# At its defaults Spark's connector takes 500 records out of a fetch, then asks for the start and
# the end of the log and fetches again, what it had fetched ahead is lost; and it waits for
# fetches at the end of the log, which brokers hold back for half a second.
TUNED = {
    "kafka.max.poll.records": 50_000,
    "kafka.max.partition.fetch.bytes": 8 << 20,
    "kafka.fetch.max.wait.ms": 10,
}
_STREAM_BATCHES = 4
_SMALL_BATCHES = 12

Run = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Topic:
    """What there is to read."""

    name: str
    value: int  # bytes
    rows: int

    @property
    def megabytes(self) -> float:
        return self.rows * self.value / 1e6


@dataclass(frozen=True, slots=True)
class Contest:
    """The contenders of every row."""

    bench: Bench
    broker: LocalBroker
    jobs: Mapping[str, Jobs]  # by contender
    peer: str  # for captions
    topics: list[Topic] = field(default_factory=list)

    @property
    def tuned(self) -> list[Topic]:
        """Those that are also read by a connector whose user knows its settings."""
        some = "kafka" in self.jobs and not self.bench.quick
        return self.topics[: len(ROWS)] if some else []

    def run(self, runs: Mapping[str, Run], name: str) -> dict[str, list[float]]:
        """All in turn, after a run of each that is not recorded."""
        if not (self.bench.quick and name.startswith("read")):  # warm already
            self.bench.progress(f"{name}: warming up")
            for work in runs.values():
                work()
        said = self.bench.progress
        return in_turn(self.bench.few, dict(runs), lambda text: said(f"{name}: {text}"))

    def rates(self, name: str, runs: Mapping[str, Run], topic: Topic, goal: float = 1) -> Row:
        """Rows a second; megabytes of values beside."""
        got = {
            who: [topic.rows / seconds for seconds in times]
            for who, times in self.run(runs, name).items()
        }
        each = topic.megabytes / topic.rows
        shown = " / ".join(
            f"{_SHOWN[who]} {statistics.median(rates) * each:.0f}" for who, rates in got.items()
        )
        return row(name, "rows/s", got, goal=goal, note=f"MB/s: {shown}")

    def times(self, name: str, unit: str, runs: Mapping[str, Run], note: str = "") -> Row:
        return row(name, unit, self.run(runs, name), less_is_better=True, note=note)


_CAPTION = (
    f"{PARTITIONS} partitions on a tidelog broker, records with a key in batches of 64 KiB before "
    "compression, all columns, one warm session, planning included"
)
_TUNED_CAPTION = (
    ", same broker, at its defaults or tuned (max.poll.records 50,000, max.partition.fetch.bytes "
    "8 MiB, fetch.max.wait.ms 10)"
)
_FLOOR_CAPTION = (
    "; read: into noop; floor: one confluent-kafka consumer that touches the values, no Spark"
)
_LOAD_CAPTION = (
    "; into snappy Parquet: tidelog.pipeline.load, with files that are flushed to disk and a "
    "ledger, against df.write.parquet"
)
_SHOWN = {"tidelog": "tidelog", "kafka": "connector", "floor": "consumer"}


_shared: list[Contest] = []  # while it runs


def shared(bench: Bench) -> Contest:
    """The session, the broker and the topics of both sections; ended with the bench's stack."""
    if not _shared:
        bench.stack.callback(_shared.clear)
        _shared.append(_start(bench, bench.stack))
    return _shared[0]


def _start(bench: Bench, stack: ExitStack) -> Contest:
    allow_descriptors(40_000)  # the broker inherits it
    jars: list[Path] = []
    peer = "; without Spark's own connector"
    if bench.kafka:
        try:
            jars = connector()
            peer = f"; Kafka: Spark's connector {connector_version()}, Spark {version('pyspark')}"
        except NoKafka as error:
            peer += f": {error}"
    folder = stack.enter_context(data_folder(bench))
    folder.mkdir()
    broker = stack.enter_context(running_broker(bench, LISTENER))
    bench.progress("starting Spark")
    spark = stack.enter_context(spark_jobs.session(jars))
    jobs = {"tidelog": Jobs(spark, "tidelog", broker.bootstrap, folder)}
    if jars:
        jobs["kafka"] = Jobs(spark, "kafka", broker.bootstrap, folder)
    contest = Contest(bench, broker, jobs, peer)
    contest.topics.extend(_fill(contest))
    _warm_up(contest)
    return contest


def measure(bench: Bench) -> Section:
    """Reading, streaming, writing, planning, growth."""
    contest = shared(bench)
    section = Section("spark", _CAPTION + contest.peer + _TUNED_CAPTION + _FLOOR_CAPTION)
    section.rows += [_noop(contest, topic) for topic in contest.topics]
    section.rows += [_tuned_noop(contest, topic) for topic in contest.tuned]
    section.rows += _streams(contest, contest.topics[0])
    section.rows += [_write(contest, value) for value in ROWS]
    section.rows.append(_plan(contest))
    section.rows += _growth(contest, contest.topics[0])
    return section


def loads(bench: Bench) -> Section:
    """Into Parquet."""
    contest = shared(bench)
    section = Section("spark-load", _CAPTION + contest.peer + _TUNED_CAPTION + _LOAD_CAPTION)
    section.rows += [_load(contest, topic) for topic in contest.topics]
    section.rows += [_tuned_load(contest, topic) for topic in contest.tuned]
    if not bench.quick:
        section.rows.append(_parquet(contest, contest.topics[0]))
    return section


def _fill(contest: Contest) -> list[Topic]:
    topics = []
    for codec in (Codec.NONE,) if contest.bench.quick else (Codec.NONE, Codec.ZSTD):
        for value, wanted in ROWS.items():
            topic = f"spark-{value}-{codec.name.lower()}"
            contest.bench.progress(f"filling {topic}")
            rows = wanted // 5 if contest.bench.quick else wanted
            rows = fill(contest.broker.port, topic, value, rows, codec, PARTITIONS)
            topics.append(Topic(topic, value, rows))
    return topics


def _warm_up(contest: Contest) -> None:
    """The first queries of a JVM are several times slower; and everybody must find every row."""
    for topic in contest.topics:
        for who, jobs in contest.jobs.items():
            contest.bench.progress(f"warming up: {who}, {topic.name}")
            spark_jobs.check(who, jobs.count(topic.name), topic.rows)


def _size(value: int) -> str:
    return f"{value >> 10} KiB" if value >= 1 << 10 else f"{value} B"


def _named(topic: Topic) -> str:
    return _size(topic.value) + (", zstd" if topic.name.endswith("zstd") else "")


def _noop(contest: Contest, topic: Topic) -> Row:
    runs: dict[str, Run] = {
        who: partial(jobs.noop, topic.name) for who, jobs in contest.jobs.items()
    }
    bootstrap = contest.broker.bootstrap
    runs["floor"] = partial(spark_jobs.consume, bootstrap, topic.name, PARTITIONS, topic.rows)
    return contest.rates(f"read, {_named(topic)}", runs, topic)


def _load(contest: Contest, topic: Topic) -> Row:
    runs = {who: partial(jobs.load, topic.name, topic.rows) for who, jobs in contest.jobs.items()}
    return contest.rates(f"{_named(topic)}", runs, topic, LOAD_GOAL)


def _tuned_noop(contest: Contest, topic: Topic) -> Row:
    runs = {
        "tidelog": partial(contest.jobs["tidelog"].noop, topic.name),
        "kafka": partial(contest.jobs["kafka"].noop, topic.name, **TUNED),
    }
    return contest.rates(f"read, {_named(topic)}, connector tuned", runs, topic)


def _tuned_load(contest: Contest, topic: Topic) -> Row:
    runs = {
        "tidelog": partial(contest.jobs["tidelog"].load, topic.name, topic.rows),
        "kafka": partial(contest.jobs["kafka"].load, topic.name, topic.rows, **TUNED),
    }
    return contest.rates(f"{_named(topic)}, connector tuned", runs, topic, LOAD_GOAL)


def _parquet(contest: Contest, topic: Topic) -> Row:
    runs = {
        who: partial(jobs.parquet, topic.name, topic.rows) for who, jobs in contest.jobs.items()
    }
    return contest.rates(f"{_named(topic)}, both by df.write.parquet", runs, topic)


def _streams(contest: Contest, topic: Topic) -> list[Row]:
    runs = {
        who: partial(jobs.stream, topic.name, topic.rows, _STREAM_BATCHES)
        for who, jobs in contest.jobs.items()
    }
    name = f"stream, available now in {_STREAM_BATCHES} batches, {_named(topic)}"
    rows = [contest.rates(name, runs, topic)]
    with connect(contest.broker.port) as sock:
        make_topic(sock, "spark-small")
        for _ in range(_SMALL_BATCHES // 2 if contest.bench.quick else _SMALL_BATCHES):
            try_produce(sock, produce_request(batch_of(0)[0], "spark-small"))
    runs = {who: partial(jobs.small_batch, "spark-small") for who, jobs in contest.jobs.items()}
    return [*rows, contest.times("a micro-batch of one record", "ms", runs)]


def _write(contest: Contest, value: int) -> Row:
    count = ROWS[value] // (20 if contest.bench.quick else 4)
    with connect(contest.broker.port) as sock:
        make_topic(sock, f"spark-write-{value}", PARTITIONS, ROLLING)
    topic = Topic(f"spark-write-{value}", value, count)
    runs = {
        who: partial(jobs.write, topic.name, value, count) for who, jobs in contest.jobs.items()
    }
    return contest.rates(f"write, {_size(value)}", runs, topic)


def _plan(contest: Contest) -> Row:
    many = MANY // 5 if contest.bench.quick else MANY
    with connect(contest.broker.port) as sock:
        make_topic(sock, "spark-many", many)
        try_produce(sock, produce_request(batch_of(0)[0], "spark-many", partitions=many))
    tasks: dict[str, int] = {}

    def plan(who: str, jobs: Jobs) -> float:
        seconds, tasks[who] = jobs.plan("spark-many")
        return seconds * 1e3

    runs = {who: partial(plan, who, jobs) for who, jobs in contest.jobs.items()}
    result = contest.times(f"planning of {many:,} partitions", "ms", runs)
    result.note = " / ".join(f"{_SHOWN[who]} {count:,} tasks" for who, count in tasks.items())
    return result


def _growth(contest: Contest, small: Topic) -> list[Row]:
    """Ten times the records in as many partitions, each one task."""
    bench, jobs = contest.bench, contest.jobs["tidelog"]
    bench.progress(f"filling {GROWTH} times the data")
    large = Topic(
        "spark-large",
        small.value,
        fill(contest.broker.port, "spark-large", small.value, GROWTH * small.rows),
    )
    whole = {"maxBytesPerPartition": 1 << 40}
    works = {topic: partial(jobs.noop, topic.name, **whole) for topic in (small, large)}
    works[small]()  # what earlier jobs have left behind is let go
    peaks = {topic: spark_jobs.peak_mib(work) for topic, work in works.items()}
    times = in_turn(bench.few, {topic.name: work for topic, work in works.items()}, bench.progress)
    costs = [
        (long / large.rows) / (short / small.rows)
        for long, short in zip(times[large.name], times[small.name], strict=True)
    ]
    shown = " -> ".join(f"{rows / 1e6:.1f} M rows" for rows in (small.rows, large.rows))
    return [
        Row(f"cost of a row, {GROWTH} times the data", "times", costs, less_is_better=True,
            most=MOST_GROWTH, note=shown),
        Row(f"peak memory of a task, {GROWTH} times the data", "times",
            [peaks[large] / peaks[small]], less_is_better=True, most=MOST_GROWTH,
            note=f"{peaks[small]:.0f} -> {peaks[large]:.0f} MiB"),
    ]  # fmt: skip
