"""``tidelog demo``: a broker, a stream of search events, and what became of them.

The events (``demo_events.py``) go in through librdkafka and come back through it; only the look
at the disk uses our own client.  Then Spark loads them into a lake (``demo_lake.py``), if it is
installed.  With ``--cluster`` there are three brokers, and one of them is killed
(``demo_cluster.py``).
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click

from tidelog.client import admin
from tidelog.client.cluster import Cluster
from tidelog.client.partitions import log_sizes
from tidelog.clock import Clock, SystemClock
from tidelog.errors import ApiError
from tidelog.java import spark_extra
from tidelog.metadata import INTERNAL_TOPICS
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalBroker
from tidelog.text import plural
from tidelog.tools import demo_lake
from tidelog.tools.demo_events import PARTITIONS, TOPIC, failed, read_back, write
from tidelog.tools.output import show_json, size_text
from tidelog.tools.stop_signal import StopSignal

_WORTH_A_RATE = 100  # fewer events take no time that could be measured
_NEXT = (
    ("tidelog up", "a broker that stays, on port 9092"),
    ("tidelog produce hello", "type records, Ctrl-D ends"),
    ("tidelog consume hello --from start", "read them; so can any Kafka client"),
    ("tidelog demo --stay", "this, to look around in"),
)
_NEXT_CLUSTER = (
    ("tidelog cluster up --brokers 3", "a cluster that stays, on ports 9092 to 9094"),
    ("tidelog cluster kill 2", "and see for yourself"),
    ("tidelog demo --cluster --stay", "this, to look around in"),
)


@click.command()
@click.option(
    "--events",
    default=5000,
    show_default=True,
    type=click.IntRange(1),
    help="The number of events.",
)
@click.option("--seed", default=2011, show_default=True, help="Seed of the random events.")
@click.option("--spark/--no-spark", default=None, help="Load them into a lake as well.")
@click.option("--cluster", is_flag=True, help="Run three brokers, and kill one of them.")
@click.option("--stay", is_flag=True, help="Keep everything running until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def demo(
    events: int, seed: int, spark: bool | None, cluster: bool, stay: bool, as_json: bool
) -> None:
    """See a broker at work, in less than a minute on an idle machine.

    Starts a broker on a free port with its data in a temporary folder, writes search events with
    a real Kafka client, reads them back, and shows what is on disk.  Then Spark loads them into
    a lake, verifies that all of them are there, and counts them.

    With --cluster three brokers and ZooKeeper are started, the leader of a partition is killed
    (kill -9) while events are written, and the demo verifies that none was lost.
    """
    if spark is None:
        spark = demo_lake.can_load() and not cluster
    elif spark and cluster:
        raise click.UsageError("--cluster and --spark are two demos: choose one")
    elif spark and not demo_lake.can_load():
        raise click.UsageError(f"Spark is not installed: {spark_extra()}")
    clock = SystemClock()
    say = Account(as_json)

    def end(bootstrap: str) -> None:
        say.end(bootstrap, cluster, stay)
        if stay:
            try:
                signal.pause()
            except KeyboardInterrupt:
                click.echo("\nstopped; the data is gone with it", err=True)

    # However the demo ends, it must not leave its brokers behind.
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with StopSignal(*numbers, raising=True) as stop:
        if cluster:
            from tidelog.tools.demo_cluster import lose_a_leader

            lose_a_leader(say, events, seed, clock, stop, end)
        else:
            _one_broker(say, events, seed, spark, clock, stop, end)


def _one_broker(
    say: Account,
    events: int,
    seed: int,
    spark: bool,
    clock: Clock,
    stop: StopSignal,
    end: Callable[[str], None],
) -> None:
    begun = clock.monotonic()
    with stop.closing(LocalBroker()) as broker:
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
            size, seconds = write(broker.bootstrap, events, seed, clock)
            say.rate("written", events, seconds, "with librdkafka: idempotent, acks=all, zstd")
            keywords, users, seconds = read_back(broker.bootstrap, events, clock)
            how = f"back, in order for each of {plural(users, 'user')}"
            say.rate("read", events, seconds, how)
            say.keywords(keywords)
            say.disk(cluster, str(broker.data), size)
        if spark:
            demo_lake.load_and_query(say, broker.bootstrap, TOPIC, events, clock)
        end(broker.bootstrap)


class Account:
    """Prints each step as it happens, or all results as JSON at the end."""

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
        return failed(message)

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

    def end(self, bootstrap: str, cluster: bool, stay: bool) -> None:
        if self._as_json:
            show_json(self._facts)
            return
        if stay:
            what = "The cluster stays" if cluster else "The broker stays"
            click.secho(f"\n{what} up until Ctrl-C.  In another terminal:", bold=True)
            click.echo(f"  export TIDELOG_BOOTSTRAP={bootstrap}")
            if cluster:
                click.echo("  tidelog cluster describe")
            click.echo(f"  tidelog topics describe {TOPIC}")
            click.echo(f"  tidelog consume {TOPIC} --from -5 --exit --format offset")
            click.echo(f"  echo hello | tidelog produce {TOPIC} -k me")
            if not cluster:
                click.echo(f"  tidelog log check {self._facts['data']}")
            return
        click.secho("\nNext:", bold=True, nl=False)
        for i, (command, text) in enumerate(_NEXT_CLUSTER if cluster else _NEXT):
            click.echo(f"{'  ' if i == 0 else '       '}{command:<43}{text}")
