"""A cluster of three: acks=all, fail-over, many partitions, and a follower that catches up.

All processes of both clusters share this machine's cores, so a figure is that of a whole
cluster at work, not of a broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from bench import load
from bench.clients import produce as produce_records
from bench.cluster_peers import (
    ALL,
    BROKERS,
    Peer,
    Peers,
    client,
    clusters,
    controller,
    drop,
    in_sync,
    make,
    rows,
    until,
)
from bench.contest import PERCENTS, Latencies, row
from bench.report import Row, Section, in_turn
from bench.system import ROLLING, Bench
from bench.wire import (
    BenchError,
    batch_of,
    connect,
    produce_request,
    produce_until,
    try_produce,
)
from tidelog.client import admin
from tidelog.client.cluster import Cluster
from tidelog.client.partitions import LATEST, list_offsets
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.topic_partition import TopicPartition

SIZES = {"1 record": 0, "16 KiB": 16 << 10, "1 MiB": 1 << 20}
WINDOW = 5
MANY = 1000  # partitions
RECORD, RECORDS = 1024, 200_000
_SPREAD = 6  # partitions of the producer's topic
_COPIED = 512 << 20  # bytes that a follower catches up with

Run = Callable[[], float]


def measure(bench: Bench) -> Section:
    """Three brokers of tidelog on ZooKeeper, three of Kafka in KRaft mode."""
    section = Section(
        "cluster",
        f"{BROKERS} brokers on this machine: tidelog's with ZooKeeper, Kafka's as combined KRaft "
        f"nodes with heaps of 512 MB; {BROKERS} replicas, acks=all, min.insync.replicas="
        f"{BROKERS - 1}, defaults otherwise",
    )
    with clusters(bench) as peers:
        section.rows += _throughput(bench, peers)
        section.rows.append(_producer(bench, peers))
        section.rows += _latency(bench, peers)
        section.rows.append(_catch_up(bench, peers))
        section.rows.append(_fail_over(bench, peers))
        section.rows += _many_partitions(bench, peers)
    return section


def _contest(
    bench: Bench, peers: Peers, name: str, run: Callable[[Peer], float]
) -> dict[str, list[float]]:
    """The few rounds of what takes long."""
    bench.progress(name)
    runs: dict[str, Run] = {who: partial(run, peer) for who, peer in peers.items()}
    return in_turn(bench.few, runs, bench.progress)


# -- acks=all -------------------------------------------------------------------------


def _throughput(bench: Bench, peers: Peers) -> list[Row]:
    """Raw requests to the leader of one partition."""
    ports = {who: _leader_of(peer, "throughput") for who, peer in peers.items()}
    found = []
    for name, size in SIZES.items():
        batch, count = batch_of(size)
        request = produce_request(batch, "throughput", ALL)
        shown = f"acks=all, {name}, {WINDOW} in flight"
        bench.progress(shown)
        runs: dict[str, Run] = {}
        for who, port in ports.items():
            runs[who] = partial(_send, port, request, len(batch), bench.seconds)
            for _ in range(2):
                runs[who]()  # warm
        got = in_turn(bench.rounds, runs, bench.progress)
        each = sorted(got["tidelog"])[len(got["tidelog"]) // 2] * 1e6 / len(batch) * count
        found.append(row(shown, "MB/s", got, note=f"{each:,.0f} records/s"))
    return found


def _leader_of(peer: Peer, topic: str) -> int:
    """Make a topic of one partition; the port of its leader."""
    with client(peer) as cluster:
        make(cluster, topic, 1, config=ROLLING)
        return peer.brokers[rows(cluster, topic)[0].leader].port


def _send(port: int, request: bytes, size: int, seconds: float) -> float:
    with connect(port) as sock:
        answer = produce_until(sock, request)
        load.pipelined(sock, request, answer, WINDOW, seconds / 4)
        rate = load.pipelined(sock, request, answer, WINDOW, seconds)
        return rate.requests * size / rate.seconds / 1e6


def _producer(bench: Bench, peers: Peers) -> Row:
    """confluent-kafka as it comes, which waits for all replicas."""
    count = RECORDS // 4 if bench.quick else RECORDS
    for peer in peers.values():
        with client(peer) as cluster:
            make(cluster, "producer", _SPREAD, config=ROLLING)
    settings = {"queue.buffering.max.messages": 1_000_000}

    def run(peer: Peer) -> float:
        return count / produce_records(peer.bootstrap, "producer", RECORD, count, settings)

    if "kafka" in peers:
        run(peers["kafka"])  # warm
    name = f"confluent-kafka producer, {RECORD} B, {_SPREAD} partitions"
    return row(name, "records/s", _contest(bench, peers, name, run))


def _latency(bench: Bench, peers: Peers) -> list[Row]:
    bench.progress("latency")
    times = Latencies()
    request = produce_request(batch_of(0)[0], "latency", ALL)
    ports = {who: _leader_of(peer, "latency") for who, peer in peers.items()}
    seconds = bench.seconds * 2
    for i in range(-1, bench.rounds):  # the first one warms up
        for who, port in ports.items():
            with connect(port) as sock:
                answer = produce_until(sock, request)
                load.ping_pong(sock, request, answer, seconds / 4)
                taken = load.ping_pong(sock, request, answer, seconds)
            if i >= 0:
                times.note(who, taken)
    return times.rows("acks=all, one record at a time", PERCENTS[:2])


# -- when a broker dies ---------------------------------------------------------------


def _fail_over(bench: Bench, peers: Peers) -> Row:
    name = "kill -9 of a leader to the next acknowledged write"
    for peer in peers.values():
        with client(peer) as cluster:
            make(cluster, "fail-over", 1)
    return row(name, "s", _contest(bench, peers, name, _kill_leader), less_is_better=True)


def _kill_leader(peer: Peer) -> float:
    topic = "fail-over"
    request = produce_request(batch_of(0)[0], topic, ALL)
    with client(peer) as cluster:
        until(lambda: in_sync(cluster, topic), "all are in sync")
        leader = rows(cluster, topic)[0].leader
        with connect(peer.brokers[leader].port) as sock:
            produce_until(sock, request)
    victim = peer.brokers[leader]

    def written() -> bool:
        """Through whoever leads now: it may still be the dead one, by what others know."""
        now = rows(others, topic)[0].leader
        if now in (-1, leader):
            return False
        with connect(peer.brokers[now].port) as sock:
            try_produce(sock, request)
        return True

    with client(peer, without=leader) as others:
        rows(others, topic)  # connected before the clock starts
        begun = time.perf_counter()
        victim.kill()
        until(written, "a write after the death of a leader")
        taken = time.perf_counter() - begun
        victim.start()
        until(lambda: in_sync(others, topic), "all are in sync again")
    return taken


# -- many partitions --------------------------------------------------------------------


def _many_partitions(bench: Bench, peers: Peers) -> list[Row]:
    """Create, lose the controller, delete: round by round."""
    many = MANY // 4 if bench.quick else MANY
    names = (
        f"create {many:,} partitions",
        f"kill -9 of the controller to the next new topic, {many:,} partitions",
        f"delete {many:,} partitions",
    )
    steps: tuple[Callable[[Peer, int], float], ...] = (
        partial(_create, many),
        _lose_controller,
        _delete,
    )
    times: dict[str, dict[str, list[float]]] = {name: {who: [] for who in peers} for name in names}
    for i in range(bench.few):
        for who, peer in peers.items():
            for name, step in zip(names, steps, strict=True):
                bench.progress(f"{name}, {who}, round {i + 1}/{bench.few}")
                times[name][who].append(step(peer, i))
    return [row(name, "s", got, less_is_better=True) for name, got in times.items()]


def _create(many: int, peer: Peer, number: int) -> float:
    name = f"many-{number}"
    with client(peer) as cluster:
        begun = time.perf_counter()
        make(cluster, name, many)
        until(lambda: _serves(cluster, name, many), f"{many} partitions can be used")
        return time.perf_counter() - begun


def _serves(cluster: Cluster, name: str, many: int) -> bool:
    """Every leader has its partitions and says where they end."""
    asked = {TopicPartition(name, i): LATEST for i in range(many)}
    return len(list_offsets(cluster, asked)) == many


def _lose_controller(peer: Peer, number: int) -> float:
    """The broker whose process is the controller dies; another one must take over."""
    dead = controller(peer)
    with client(peer, without=dead) as others:
        others.metadata([])
        begun = time.perf_counter()
        peer.brokers[dead].kill()
        alive = [i for i in peer.brokers if i != dead]
        until(partial(_make, others, f"after-{number}", alive), "a topic of the next controller")
        taken = time.perf_counter() - begun
        peer.brokers[dead].start()
        until(lambda: in_sync(others, f"many-{number}"), "all are in sync again")
    return taken


def _make(cluster: Cluster, name: str, brokers: list[int]) -> bool:
    """Ask once for a topic on the brokers that live; an earlier try may have made it."""
    new = NewTopic(name, assignment=[brokers])
    created = admin.create_topics(cluster, [new])[name]
    made = not isinstance(created, ApiError) or created.code == ErrorCode.TOPIC_ALREADY_EXISTS
    return made and rows(cluster, name)[0].leader in brokers


def _delete(peer: Peer, number: int) -> float:
    name = f"many-{number}"
    begun = time.perf_counter()
    with client(peer) as cluster:
        drop(cluster, name)
    for node in peer.brokers.values():
        with Cluster(node.bootstrap) as one:
            until(lambda c=one: name not in c.metadata().topics, f"{name} is gone")  # type: ignore[misc]
    return time.perf_counter() - begun


# -- catching up --------------------------------------------------------------------------


def _catch_up(bench: Bench, peers: Peers) -> Row:
    """Two leaders have a partition each; the third broker gets a replica of both."""
    size = _COPIED // (8 if bench.quick else 1)
    name = f"catch-up of an empty follower, {size >> 20} MiB"
    return row(name, "MB/s", _contest(bench, peers, name, partial(_copy, size)))


def _copy(size: int, peer: Peer) -> float:
    topic = f"copied-{time.monotonic_ns()}"
    with client(peer) as cluster:
        make(cluster, topic, assignment=[(1, 2), (2, 1)])
        for i, broker in enumerate((1, 2)):
            _fill(peer.brokers[broker].port, topic, i, size // 2)
        begun = time.perf_counter()
        moves = {(topic, 0): (1, 2, 3), (topic, 1): (2, 1, 3)}
        failed = [error for error in admin.reassign(cluster, moves).values() if error]
        if failed:
            raise BenchError(f"reassignment: {failed[0].message}")
        until(lambda: in_sync(cluster, topic), "the new replica is in sync")
        taken = time.perf_counter() - begun
        drop(cluster, topic)
    return size / taken / 1e6


def _fill(port: int, topic: str, partition: int, size: int) -> None:
    batch, _ = batch_of(1 << 20)
    request = produce_request(batch, topic, ALL, first=partition)
    with connect(port) as sock:
        answer = produce_until(sock, request)
        load.fill(sock, request, answer, size // len(batch))
