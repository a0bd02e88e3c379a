"""``tidelog demo --cluster``: three brokers, of which one is killed while it leads.

An idempotent producer writes all the while with acks=all.  In the end everything that was
acknowledged must be there, once and in order.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, Message

from tidelog.client import admin
from tidelog.client.cluster import Cluster, PartitionView
from tidelog.client.connection import BrokerUnreachable
from tidelog.clock import Clock
from tidelog.errors import ApiError
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalCluster
from tidelog.text import plural
from tidelog.tools.demo_events import (
    PARTITIONS,
    TOPIC,
    failed,
    read_back,
    ready_producer,
    search_events,
)
from tidelog.tools.stop_signal import StopSignal

if TYPE_CHECKING:
    from tidelog.tools.demo import Account

BROKERS = 3
_SETTINGS = {
    "default.replication.factor": BROKERS,
    "min.insync.replicas": 2,
    "zookeeper.session.timeout.ms": 6000,
}
_PAUSE = 0.001  # between events: about a thousand a second
_PATIENCE = 100.0
_LOOK_SECONDS = 0.02


def lose_a_leader(
    say: Account,
    events: int,
    seed: int,
    clock: Clock,
    stop: StopSignal,
    stay: Callable[[str], None],
) -> None:
    """The demo; ``stay`` is called with the address before the cluster goes."""
    begun = clock.monotonic()
    say.title("tidelog demo: three brokers, a stream of events, and a leader that dies")
    running = stop.closing(LocalCluster(BROKERS, _SETTINGS))
    with running as local, _client(local) as cluster:
        ready = f"ZooKeeper and {plural(BROKERS, 'broker')} ready after"
        facts = {"bootstrap": local.bootstrap, "data": str(local.data)}
        say("cluster", f"{ready} {clock.monotonic() - begun:.1f} s", **facts)
        created = admin.create_topics(cluster, [NewTopic(TOPIC, PARTITIONS, BROKERS)])[TOPIC]
        if isinstance(created, ApiError):
            raise created
        say(
            "topic",
            f"{TOPIC}, {PARTITIONS} partitions with {BROKERS} replicas each; "
            "of them 2 must have a record",
            topic=TOPIC,
        )
        with _EventWriter(
            local.bootstrap, search_events(events, seed, clock.now_ms()), clock
        ) as load:
            say("writing", "with librdkafka: idempotent, acks=all, a thousand events a second")
            load.wait(lambda: load.acknowledged >= events // 3)
            _kill_and_restart(say, local, cluster, load, clock, events)
            load.wait(lambda: load.acknowledged >= events)
        say("written", f"{plural(load.acknowledged, 'event')} acknowledged, none refused")
        _, users, _ = read_back(local.bootstrap, load.acknowledged, clock)
        say(
            "proof",
            f"{load.acknowledged:,} acknowledged = {load.acknowledged:,} read: none lost, none "
            f"twice,\n{'':12}in order for each of {plural(users, 'user')}; "
            f"{load.silence:.2f} s without a leader",
            acknowledged=load.acknowledged,
            read=load.acknowledged,
            seconds_without_leader=round(load.silence, 3),
        )
        stay(local.bootstrap)


def _client(local: LocalCluster) -> Cluster:
    return Cluster(local.bootstrap, patience=_PATIENCE)


def _kill_and_restart(
    say: Account,
    local: LocalCluster,
    cluster: Cluster,
    load: _EventWriter,
    clock: Clock,
    events: int,
) -> None:
    partition = 0
    rows = _await(cluster, lambda rows: rows[partition].leader >= 0, "there is no leader")
    victim = local.brokers[rows[partition].leader]
    begun = clock.monotonic()
    victim.kill()
    load.watch(partition, begun)
    say(
        "killed",
        f"broker {victim.broker_id} with kill -9: it led partition {partition}, and "
        f"{plural(load.acknowledged, 'event')} were acknowledged",
        killed=victim.broker_id,
    )
    load.wait(lambda: load.silence > 0)
    rows = _await(
        cluster,
        lambda rows: rows[partition].leader not in (-1, victim.broker_id),
        "no other leader is elected",
    )
    leader = rows[partition].leader
    say(
        "elected",
        f"broker {leader} leads partition {partition}; the next write was acknowledged "
        f"{load.silence:.2f} s\n{'':12}after the kill",
        elected=leader,
    )
    load.wait(lambda: load.acknowledged >= 2 * events // 3)
    begun = clock.monotonic()
    victim.start()
    caught_up = f"broker {victim.broker_id} does not catch up"
    _await(cluster, lambda rows: all(len(row.isr) == BROKERS for row in rows), caught_up)
    back = f"broker {victim.broker_id} was started again and has caught up, in"
    say("back", f"{back} {clock.monotonic() - begun:.1f} s")


def _await(
    cluster: Cluster, good: Callable[[Sequence[PartitionView]], bool], what: str
) -> Sequence[PartitionView]:
    """The partitions as soon as they are as they should be."""
    for _ in cluster.attempts():
        try:
            rows = cluster.metadata([TOPIC]).topics[TOPIC].partitions
        except BrokerUnreachable:  # it asked the broker that was killed: the next try asks another
            continue
        if good(rows):
            return rows
    raise failed(what)


class _EventWriter:
    """Writes events in a thread of its own, over and over, until it is stopped."""

    def __init__(self, bootstrap: str, events: Iterable[dict[str, Any]], clock: Clock) -> None:
        self.acknowledged = 0
        self.silence = 0.0  # see watch()
        self._clock = clock
        self._events = list(events)
        self._producer = ready_producer(bootstrap)
        self._failure: KafkaError | None = None
        self._sent = 0
        self._watched: tuple[int, int, float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        for number, event in enumerate(cycle(self._events)):
            value = json.dumps({**event, "id": number}).encode()
            while not self._stop.is_set():
                try:
                    self._producer.produce(
                        TOPIC, value, event["user"], on_delivery=partial(self._told, number)
                    )
                    break
                except BufferError:
                    self._producer.poll(_PAUSE)
            self._sent = number + 1
            self._producer.poll(0)
            if self._stop.wait(_PAUSE):
                return

    def _told(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = error
            return
        self.acknowledged += 1
        if self._watched is not None:
            partition, first, since = self._watched
            if message.partition() == partition and number >= first:
                self.silence = self._clock.monotonic() - since
                self._watched = None

    def watch(self, partition: int, since: float) -> None:
        """Measure the time until an event is acknowledged that is not even sent yet."""
        self._watched = partition, self._sent + 1, since

    def wait(self, condition: Callable[[], bool]) -> None:
        limit = self._clock.monotonic() + _PATIENCE
        while not condition():
            if self._failure is not None:
                raise failed(f"an event was refused: {self._failure.str()}")
            if self._clock.monotonic() > limit:
                raise failed("nothing is acknowledged any more")
            self._stop.wait(_LOOK_SECONDS)

    def __enter__(self) -> _EventWriter:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            left = self._producer.flush(_PATIENCE)
            if left or self._failure is not None:
                raise failed(f"{plural(left, 'event')} not acknowledged")
