"""Fetch: hot data, the tail while it is written, cold data."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from contextlib import ExitStack
from functools import partial

from bench import load
from bench.background import FETCH_BYTES, FILL_BATCH, Background
from bench.contest import Meter, Process, Work, contest, cpu_per_gb, row, throughput, values
from bench.floor import Floor
from bench.peers import shared
from bench.report import Section
from bench.system import (
    LISTENER,
    ROLLING,
    Bench,
    bytes_from_disk,
    drop_caches,
    running_broker,
)
from bench.wire import (
    BenchError,
    connect,
    end_offset,
    exact_batch,
    fetch_request,
    make_topic,
    offset_patcher,
    produce_request,
    try_fetch,
    try_produce,
)

HOT_BYTES = 256 << 20
SHARE_OF_SENDFILE = 0.7  # the goal
_TAIL_BATCH = 128 << 10
_TAIL_KEPT = 1 << 30  # a reader that is slower than the writer still finds its place


def fill(sock: socket.socket, topic: str, size: int) -> None:
    """Write ``size`` bytes to a topic that keeps everything."""
    make_topic(sock, topic)
    if end_offset(sock, topic):
        return
    request = produce_request(exact_batch(FILL_BATCH), topic)
    answer = try_produce(sock, request)
    load.fill(sock, request, answer, size // FILL_BATCH - 1)


def ranges(sock: socket.socket, topic: str, size: int) -> tuple[list[bytes], int]:
    """The requests that read a filled topic from end to end, and the size of an answer."""
    step = FETCH_BYTES // FILL_BATCH
    requests = [
        fetch_request(i * step, FETCH_BYTES, topic=topic) for i in range(size // FETCH_BYTES)
    ]
    answer = 0
    for request in (requests[0], requests[-1]):
        answer, records = try_fetch(sock, request)
        if records != FETCH_BYTES:
            raise BenchError(f"a Fetch of {FETCH_BYTES} bytes came with {records}")
    return requests, answer


def measure(bench: Bench) -> Section:
    """Fetches of hot data, by both ways out."""
    section = Section(
        "fetch",
        "1 MiB answers of 256 MB hot data, one in flight a connection; loopback: from memory; "
        "floor: the same ranges of a file by the same system call; Kafka: always sendfile",
    )
    kafka = shared(bench).get("kafka")
    for transfer in ("mmap", "sendfile"):
        with ExitStack() as stack:
            settings = {**LISTENER, "fetch.transfer": transfer}
            brokers: dict[str, Process] = {
                "tidelog": stack.enter_context(running_broker(bench, settings))
            }
            if kafka:
                brokers["kafka"] = kafka
            bench.progress("filling 256 MB")
            asks = {}
            for who, broker in brokers.items():
                control = stack.enter_context(connect(broker.port))
                fill(control, "hot", HOT_BYTES)
                asks[who] = ranges(control, "hot", HOT_BYTES)
            _hot(bench, section, transfer, brokers, asks)
    return section


def _hot(
    bench: Bench,
    section: Section,
    transfer: str,
    brokers: dict[str, Process],
    asks: dict[str, tuple[list[bytes], int]],
) -> None:
    requests, answer = asks["tidelog"]
    for readers in (1, 4):
        single = readers == 1
        name = f"{transfer}, {readers} reader{'' if single else 's'}"
        bench.progress(name)
        start = partial(
            Floor,
            answer=answer - FETCH_BYTES,
            size=FETCH_BYTES,
            blocking=single,
            data=bench.data,
        )
        with start("memory") as loopback, start(transfer) as floor:
            peers: dict[str, Process] = {"loopback": loopback, "floor": floor, **brokers}
            works: dict[str, Work] = {
                who: partial(
                    _read, peer.port, readers, *asks.get(who, (requests, answer)), bench.seconds
                )
                for who, peer in peers.items()
            }
            meters = contest(bench, works, peers)
        section.rows.append(throughput(name, meters, SHARE_OF_SENDFILE))
        if single:
            section.rows.append(cpu_per_gb(f"broker CPU, {name}", meters))


def _read(
    port: int, connections: int, requests: list[bytes], answer: int, seconds: float
) -> load.Rate:
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(port)) for _ in range(connections)]
        warm_up = load.fetch(socks, requests, answer, FETCH_BYTES, seconds / 4)
        rate = load.fetch(socks, requests, answer, FETCH_BYTES, seconds)
        return rate._replace(warm_up=warm_up.requests)


def tail(bench: Bench) -> Section:
    """A reader at the end of a log that another process writes as fast as it can."""
    section = Section(
        "tail",
        "one writer (128 KiB batches, 5 in flight) and one reader at the end of the log, each a "
        "process; MB/s read",
    )
    brokers = shared(bench)
    works: dict[str, Work] = {}
    written: dict[str, list[float]] = {}
    for who, broker in brokers.items():
        with connect(broker.port) as control:
            make_topic(control, "tail", 1, {**ROLLING, "retention.bytes": _TAIL_KEPT})
        written[who] = []
        works[who] = partial(_tail, broker.port, bench.seconds, written[who])
    meters = contest(bench, works, brokers)
    # What the warming up wrote is not a round.
    got = {who: rates[-bench.rounds :] for who, rates in written.items()}
    section.rows.append(row("read while writing", "MB/s", values(meters, "mb_per_second")))
    section.rows.append(row("written meanwhile", "MB/s", got))
    return section


def _tail(port: int, seconds: float, written: list[float]) -> load.Rate:
    with connect(port) as sock:
        options = {"size": _TAIL_BATCH, "exact": True}
        with Background("produce", port, "tail", **options) as writer:
            read_tail(sock, seconds / 4)
            rate = read_tail(sock, seconds)
        written.append(writer.rate.mb_per_second)
        return rate


def read_tail(sock: socket.socket, seconds: float) -> load.Rate:
    """Follow the end of the log; batches have one record and one size, so lengths tell all."""
    offset = end_offset(sock, "tail")
    frame, move = offset_patcher(FETCH_BYTES, 500, "tail")
    buffer = memoryview(bytearray(FETCH_BYTES + 4096))
    answers = batches = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        move(offset)
        sock.sendall(frame)
        size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        if sock.recv_into(buffer, size, socket.MSG_WAITALL) != size:
            raise load.gone()
        if size < _TAIL_BATCH:
            raise BenchError("the tail reader got nothing: it fell out of the log")
        answers += 1
        batches += size // _TAIL_BATCH
        offset += size // _TAIL_BATCH
    return load.Rate(answers, batches * _TAIL_BATCH, time.perf_counter() - started)


def cold(bench: Bench) -> Section:
    """Data that is not in memory: each round a topic that was never read before."""
    size = (64 if bench.quick else 256) << 20
    section = Section(
        "cold",
        f"{size >> 20} MB that no cache holds, read once by one reader, 1 MiB answers; floor: a "
        "file of that size by read()",
    )
    brokers = shared(bench)
    meters = {who: Meter(broker.pid) for who, broker in brokers.items()}
    floor: list[float] = []
    with ExitStack() as stack:
        controls = {who: stack.enter_context(connect(b.port)) for who, b in brokers.items()}
        for i in range(-1, bench.few):  # the first one warms up
            topic = f"cold-{i + 1}"
            for who, sock in controls.items():
                bench.progress(f"filling {size >> 20} MB, round {i + 1}/{bench.few}")
                fill(sock, topic, size)
                if not drop_caches():
                    section.caption += "; skipped: caches can only be dropped by root"
                    return section
                work = partial(_from_disk, brokers[who].pid, sock, topic, size)
                if i < 0:
                    work()
                else:
                    meters[who].run(work)
            if i >= 0:
                floor.append(_cold_file(bench, size))
    got = {**values(meters, "mb_per_second"), "floor": floor}
    section.rows.append(row("1 reader", "MB/s", got))
    section.rows.append(cpu_per_gb("broker CPU", meters))
    return section


def _from_disk(pid: int, sock: socket.socket, topic: str, size: int) -> load.Rate:
    """Read a topic once; that it came from the disk is seen, not believed."""
    before = bytes_from_disk(pid)
    rate = _through(sock, topic, size)
    read = bytes_from_disk(pid) - before
    if read < 0.9 * size:
        raise BenchError(f"the data was not cold: {read:,} of {size:,} bytes came from the disk")
    return rate


def _through(sock: socket.socket, topic: str, size: int) -> load.Rate:
    """Read a topic once, from the beginning to the end."""
    step, count = FETCH_BYTES // FILL_BATCH, size // FETCH_BYTES
    buffer = memoryview(bytearray(FETCH_BYTES + 4096))
    started = time.perf_counter()
    for i in range(count):
        sock.sendall(fetch_request(i * step, FETCH_BYTES, topic=topic))
        got = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        if got < FETCH_BYTES or sock.recv_into(buffer, got, socket.MSG_WAITALL) != got:
            raise BenchError(f"cold data: an answer of {got} bytes")
    return load.Rate(count, size, time.perf_counter() - started)


def _cold_file(bench: Bench, size: int) -> float:
    """Megabytes a second of a file that is not in memory, nothing else done with it."""
    buffer = memoryview(bytearray(b"x" * FETCH_BYTES))
    with tempfile.NamedTemporaryFile(dir=bench.data, buffering=0) as file:
        for _ in range(size // FETCH_BYTES):
            file.write(buffer)
        drop_caches()
        file.seek(0)
        started = time.perf_counter()
        while os.readv(file.fileno(), [buffer]):
            pass
        return size / (time.perf_counter() - started) / 1e6
