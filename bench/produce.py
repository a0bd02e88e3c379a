"""Produce, and small requests over many connections: bytes and requests a second.

The figures of merit on a machine with few cores are two: how fast it goes, and how much
of a core the broker needs for it (CPU seconds per GB).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from bench import load
from bench.contest import (
    Meters,
    Process,
    Work,
    contest,
    cpu_per_gb,
    cpu_per_request,
    row,
    throughput,
    values,
)
from bench.floor import Floor
from bench.peers import shared
from bench.report import Section
from bench.system import ROLLING, Bench
from bench.wire import (
    BenchError,
    batch_of,
    connect,
    end_offset,
    make_topic,
    produce_request,
    try_produce,
)

SIZES = {"1 record": 0, "16 KiB": 16 << 10, "128 KiB": 128 << 10, "1 MiB": 1 << 20}
WINDOWS = (1, 5)
PARTITIONS = 6
CONNECTIONS = 100
SHARE_OF_FLOOR = 0.6  # the goal with large batches
_LARGE = 128 << 10


def measure(bench: Bench) -> Section:
    """Produce with acks=1, no compression, on a rolling log."""
    section = Section(
        "produce",
        "acks=1, one connection, records of 100 bytes, rolling log; loopback: same requests and "
        "answers, nothing between; floor: frames, rolling files, answers",
    )
    run = _Run(bench, "produce", 1)
    with ExitStack() as stack:
        run.open(stack)
        for name, size in SIZES.items():
            for window in WINDOWS:
                shown = f"{name}, {window} in flight"
                meters = run.contest(shown, batch_of(size), window)
                goal = SHARE_OF_FLOOR if size >= _LARGE and window > 1 else 0
                section.rows.append(throughput(shown, meters, goal))
                if window == WINDOWS[-1] and not size:
                    section.rows.append(cpu_per_request(f"broker CPU, {shown}", meters))
        section.rows.append(cpu_per_gb(f"broker CPU, {shown}", meters))
        shown = f"1 MiB of 1 KiB records, {WINDOWS[-1]} in flight"
        meters = run.contest(shown, batch_of(1 << 20, 1024), WINDOWS[-1])
        section.rows.append(throughput(shown, meters, SHARE_OF_FLOOR))
        section.rows.append(cpu_per_gb(f"broker CPU, {shown}", meters))
    return section


def measure_partitions(bench: Bench) -> Section:
    """The same, each request with a batch for every one of six partitions."""
    section = Section(
        "produce-6",
        f"each request has a batch for every one of {PARTITIONS} partitions; as above otherwise",
    )
    run = _Run(bench, "produce-6", PARTITIONS)
    with ExitStack() as stack:
        run.open(stack)
        for name, size in SIZES.items():
            for window in WINDOWS:
                shown = f"{PARTITIONS} x {name}, {window} in flight"
                section.rows.append(throughput(shown, run.contest(shown, batch_of(size), window)))
    return section


class _Run:
    """The contenders on one topic, and a connection to each to look at what was written."""

    def __init__(self, bench: Bench, topic: str, partitions: int) -> None:
        self._bench, self._topic, self._partitions = bench, topic, partitions
        self._brokers = shared(bench)
        self._peers: dict[str, Process] = {}
        self._controls: dict[str, socket.socket] = {}
        self._answer: dict[str, int] = {}

    def open(self, stack: ExitStack) -> None:
        for who, broker in self._brokers.items():
            control = stack.enter_context(connect(broker.port))
            make_topic(control, self._topic, self._partitions, ROLLING)
            request = produce_request(batch_of(0)[0], self._topic, partitions=self._partitions)
            self._answer[who] = try_produce(control, request)
            self._controls[who] = control
        if self._partitions == 1:
            answer = self._answer["tidelog"]
            self._peers = {
                "loopback": stack.enter_context(Floor("discard", answer=answer, blocking=True)),
                "floor": stack.enter_context(Floor("write", answer=answer, data=self._bench.data)),
            }
            self._answer |= dict.fromkeys(self._peers, answer)
        self._peers |= self._brokers

    def contest(self, shown: str, batch: tuple[bytes, int], window: int) -> Meters:
        self._bench.progress(shown)
        request = produce_request(batch[0], self._topic, partitions=self._partitions)
        seconds = self._bench.seconds
        works: dict[str, Work] = {
            who: partial(_send, peer.port, request, self._answer[who], window, seconds)
            for who, peer in self._peers.items()
        }
        for who, control in self._controls.items():
            try_produce(control, request)
            works[who] = partial(
                checked, control, self._topic, self._partitions, batch[1], works[who]
            )
        return contest(self._bench, works, self._peers)


def _send(port: int, request: bytes, answer: int, window: int, seconds: float) -> load.Rate:
    with connect(port) as sock:
        # Buffers grow and pages come back to life before the clock starts.
        warm_up = load.pipelined(sock, request, answer, window, seconds / 4)
        rate = load.pipelined(sock, request, answer, window, seconds)
        return rate._replace(warm_up=warm_up.requests)


def checked(
    control: socket.socket, topic: str, partitions: int, count: int, work: Work
) -> load.Rate:
    """Every acknowledged record is in the log, or the figure means nothing."""
    before = end_offset(control, topic, partitions)
    rate = work()
    found = end_offset(control, topic, partitions) - before
    expected = (rate.warm_up + rate.requests) * count * partitions
    if found != expected:
        raise BenchError(f"{expected} records acknowledged, {found} in the log")
    return rate


def connections(bench: Bench) -> Section:
    """Small requests over many connections, one in flight on each."""
    section = Section(
        "connections",
        f"1-record Produce over {CONNECTIONS} connections, one in flight each; peers as above, "
        "but with an epoll loop",
    )
    bench.progress(f"{CONNECTIONS} connections")
    topic = "connections"
    request = produce_request(batch_of(0)[0], topic)
    brokers = shared(bench)
    with ExitStack() as stack:
        works: dict[str, Work] = {}
        answer = 0
        for who, broker in brokers.items():
            control = stack.enter_context(connect(broker.port))
            make_topic(control, topic, 1, ROLLING)
            answer = try_produce(control, request)
            crowd = partial(_crowd, broker.port, request, answer, bench.seconds)
            works[who] = partial(checked, control, topic, 1, 1, crowd)
        peers: Mapping[str, Process] = {
            "loopback": stack.enter_context(Floor("discard", answer=answer)),
            "floor": stack.enter_context(Floor("write", answer=answer, data=bench.data)),
            **brokers,
        }
        for who in ("loopback", "floor"):
            works[who] = partial(_crowd, peers[who].port, request, answer, bench.seconds)
        meters = contest(bench, works, peers)
    name = f"Produce, {CONNECTIONS} connections"
    section.rows.append(row(name, "requests/s", values(meters, "per_second")))
    section.rows.append(cpu_per_request(f"broker CPU, {CONNECTIONS} connections", meters))
    return section


def _crowd(port: int, request: bytes, answer: int, seconds: float) -> load.Rate:
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(port)) for _ in range(CONNECTIONS)]
        warm_up = load.many(socks, request, answer, seconds / 4)
        rate = load.many(socks, request, answer, seconds)
        return rate._replace(warm_up=warm_up.requests)
