"""Produce, Fetch and many connections: bytes and requests a second.

The figures of merit on a machine with few cores are two: how fast it goes, and how much
of a core the broker needs for it (CPU seconds per GB).
"""

from __future__ import annotations

import socket
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from bench import load
from bench.floor import Floor
from bench.report import Row, Section
from bench.system import LISTENER, ROLLING, Bench, cpu_seconds, running_broker
from bench.wire import (
    BenchError,
    batch_of,
    connect,
    end_offset,
    exact_batch,
    fetch_request,
    make_topic,
    produce_request,
    try_fetch,
    try_produce,
)
from tidelog.testing.local import LocalBroker

PRODUCE_SIZES = {"1 record": 0, "16 KiB": 16 << 10, "128 KiB": 128 << 10, "1 MiB": 1 << 20}
WINDOWS = (1, 5)
FETCH_BYTES = 1 << 20
HOT_BYTES = 256 << 20
CONNECTIONS = 100
_FILL_BATCH = 64 << 10  # FETCH_BYTES is a whole number of these

Work = Callable[[], load.Rate]
Peers = dict[str, Floor | LocalBroker]
Meters = dict[str, "Meter"]


class Meter:
    """What a process did with a load, round by round, and what it cost that process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.mb_per_second: list[float] = []
        self.per_second: list[float] = []
        self.cpu_per_gb: list[float] = []
        self.cpu_us: list[float] = []  # a request

    def run(self, work: Work) -> None:
        before = cpu_seconds(self._pid)
        rate = work()
        used = cpu_seconds(self._pid) - before
        self.mb_per_second.append(rate.mb_per_second)
        self.per_second.append(rate.per_second)
        requests = rate.requests + rate.warm_up
        self.cpu_per_gb.append(used / (rate.payload / rate.requests * requests / 1e9))
        self.cpu_us.append(used / requests * 1e6)


def _run(bench: Bench, works: Mapping[str, Work], peers: Peers) -> Meters:
    """All contenders in turn, round by round."""
    meters = {who: Meter(peer.pid) for who, peer in peers.items()}
    for i in range(bench.rounds):
        for who, work in works.items():
            meters[who].run(work)
        bench.progress(f"round {i + 1}/{bench.rounds}")
    return meters


def produce(bench: Bench) -> Section:
    """Produce with acks=1, no compression, on a rolling log."""
    section = Section(
        "produce",
        "acks=1, one connection, rolling log; loopback: same requests and answers, nothing "
        "between; floor: frames, rolling files, answers",
    )
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(bench, ROLLING))
        control = stack.enter_context(connect(broker.port))
        make_topic(control)
        answer = try_produce(control, produce_request(batch_of(0)[0]))
        loopback = stack.enter_context(Floor("discard", answer=answer, blocking=True))
        floor = stack.enter_context(Floor("write", answer=answer, data=bench.data))
        peers: Peers = {"loopback": loopback, "floor": floor, "tidelog": broker}
        for name, size in PRODUCE_SIZES.items():
            batch, count = batch_of(size)
            request = produce_request(batch)
            try_produce(control, request)
            for window in WINDOWS:
                shown = f"{name}, {window} in flight"
                bench.progress(shown)
                works: dict[str, Work] = {
                    who: partial(_send, peer.port, request, answer, window, bench.seconds)
                    for who, peer in peers.items()
                }
                works["tidelog"] = partial(_checked, control, count, works["tidelog"])
                meters = _run(bench, works, peers)
                section.rows.append(_throughput(shown, meters))
                if window == WINDOWS[-1] and not size:
                    section.rows.append(_cpu_request(f"broker CPU, {shown}", meters))
        section.rows.append(_cpu(f"broker CPU, {shown}", meters))
    return section


def _send(port: int, request: bytes, answer: int, window: int, seconds: float) -> load.Rate:
    with connect(port) as sock:
        # Buffers grow and pages come back to life before the clock starts.
        warm_up = load.pipelined(sock, request, answer, window, seconds / 4)
        rate = load.pipelined(sock, request, answer, window, seconds)
        return rate._replace(warm_up=warm_up.requests)


def _checked(control: socket.socket, count: int, work: Work) -> load.Rate:
    """Every acknowledged record is in the log, or the figure means nothing."""
    before = end_offset(control)
    rate = work()
    found = end_offset(control) - before
    expected = (rate.warm_up + rate.requests) * count
    if found != expected:
        raise BenchError(f"{expected} records acknowledged, {found} in the log")
    return rate


def _throughput(name: str, meters: Meters) -> Row:
    per_second = statistics.median(meters["tidelog"].per_second)
    return Row(
        name,
        "MB/s",
        meters["tidelog"].mb_per_second,
        meters["loopback"].mb_per_second,
        meters["floor"].mb_per_second,
        note=f"{per_second:,.0f} requests/s",
    )


def _cpu_request(name: str, meters: Meters) -> Row:
    tidelog, floor = meters["tidelog"].cpu_us, meters["floor"].cpu_us
    return Row(name, "us/request", tidelog, floor=floor, less_is_better=True)


def _cpu(name: str, meters: Meters) -> Row:
    tidelog, floor = meters["tidelog"].cpu_per_gb, meters["floor"].cpu_per_gb
    return Row(name, "s/GB", tidelog, floor=floor, less_is_better=True)


def fetch(bench: Bench) -> Section:
    """Fetches of hot data, by both ways out."""
    section = Section(
        "fetch",
        "1 MiB answers of 256 MB hot data, one in flight a connection; loopback: from memory; "
        "floor: the same ranges of a file by the same system call",
    )
    for transfer in ("mmap", "sendfile"):
        with ExitStack() as stack:
            settings = {**LISTENER, "fetch.transfer": transfer}
            broker = stack.enter_context(running_broker(bench, settings))
            control = stack.enter_context(connect(broker.port))
            requests, answer = _hot_data(bench, control)
            for connections in (1, 4):
                single = connections == 1
                name = f"{transfer}, {connections} connection{'' if single else 's'}"
                bench.progress(name)
                start = partial(
                    Floor,
                    answer=answer - FETCH_BYTES,
                    size=FETCH_BYTES,
                    blocking=single,
                    data=bench.data,
                )
                with start("memory") as loopback, start(transfer) as floor:
                    peers: Peers = {"loopback": loopback, "floor": floor, "tidelog": broker}
                    works = {
                        who: partial(_read, peer.port, connections, requests, answer, bench.seconds)
                        for who, peer in peers.items()
                    }
                    meters = _run(bench, works, peers)
                section.rows.append(_throughput(name, meters))
                if single:
                    section.rows.append(_cpu(f"broker CPU, {name}", meters))
    return section


def _read(
    port: int, connections: int, requests: list[bytes], answer: int, seconds: float
) -> load.Rate:
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(port)) for _ in range(connections)]
        warm_up = load.fetch(socks, requests, answer, FETCH_BYTES, seconds / 4)
        rate = load.fetch(socks, requests, answer, FETCH_BYTES, seconds)
        return rate._replace(warm_up=warm_up.requests)


def _hot_data(bench: Bench, control: socket.socket) -> tuple[list[bytes], int]:
    """Fill a topic; the requests that read it from end to end, and the size of an answer."""
    bench.progress("filling 256 MB")
    make_topic(control)
    batch = produce_request(exact_batch(_FILL_BATCH))
    answer = try_produce(control, batch)
    load.fill(control, batch, answer, HOT_BYTES // _FILL_BATCH - 1)
    step = FETCH_BYTES // _FILL_BATCH
    requests = [fetch_request(i * step, FETCH_BYTES) for i in range(HOT_BYTES // FETCH_BYTES)]
    for request in (requests[0], requests[-1]):
        size, records = try_fetch(control, request)
        if records != FETCH_BYTES:
            raise BenchError(f"a Fetch of {FETCH_BYTES} bytes came with {records}")
    return requests, size


def connections(bench: Bench) -> Section:
    """Small requests over many connections, one in flight on each."""
    section = Section(
        "connections",
        f"1-record Produce over {CONNECTIONS} connections, one in flight each; peers as above, "
        "but with an epoll loop",
    )
    bench.progress(f"{CONNECTIONS} connections")
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(bench, ROLLING))
        control = stack.enter_context(connect(broker.port))
        make_topic(control)
        request = produce_request(batch_of(0)[0])
        answer = try_produce(control, request)
        loopback = stack.enter_context(Floor("discard", answer=answer))
        floor = stack.enter_context(Floor("write", answer=answer, data=bench.data))

        peers: Peers = {"loopback": loopback, "floor": floor, "tidelog": broker}
        works: dict[str, Work] = {
            who: partial(_crowd, peer.port, request, answer, bench.seconds)
            for who, peer in peers.items()
        }
        works["tidelog"] = partial(_checked, control, 1, works["tidelog"])
        meters = _run(bench, works, peers)
    section.rows.append(
        Row(
            f"Produce, {CONNECTIONS} connections",
            "requests/s",
            meters["tidelog"].per_second,
            meters["loopback"].per_second,
            meters["floor"].per_second,
        )
    )
    section.rows.append(_cpu_request(f"broker CPU, {CONNECTIONS} connections", meters))
    return section


def _crowd(port: int, request: bytes, answer: int, seconds: float) -> load.Rate:
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(port)) for _ in range(CONNECTIONS)]
        warm_up = load.many(socks, request, answer, seconds / 4)
        rate = load.many(socks, request, answer, seconds)
        return rate._replace(warm_up=warm_up.requests)
