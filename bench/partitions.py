"""Many partitions: a thousand in one topic, and a thousand topics."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from bench import load
from bench.contest import Work, contest, row, values
from bench.peers import pair
from bench.report import Section
from bench.system import LISTENER, Bench, allow_descriptors, memory_kib
from bench.wire import (
    batch_of,
    connect,
    fetch_many,
    make_topics,
    produce_request,
    produce_topics,
    try_fetch,
    try_produce,
)

COUNT = 1000
_QUICK_COUNT = 200
_CREATIONS = 2
_TOGETHER = 50


def measure(bench: Bench) -> Section:
    """Creation, one record to each in one request, and one Fetch of all."""
    many = _QUICK_COUNT if bench.quick else COUNT
    section = Section(
        "partitions",
        f"{many:,} partitions in one topic, then {many:,} topics of one; created in one request "
        "until each can be asked; one request has a record for each, one Fetch asks for all",
    )
    allow_descriptors(40_000)  # the brokers inherit it
    created: dict[str, dict[str, list[float]]] = {"topic": {}, "topics": {}}
    with pair(bench, LISTENER) as brokers, ExitStack() as stack:
        socks = {who: stack.enter_context(connect(b.port)) for who, b in brokers.items()}
        if kafka := socks.get("kafka"):
            make_topics(kafka, [f"warm-up-{i}" for i in range(100)])
        for i in range(1 if bench.quick else _CREATIONS):
            for who, sock in socks.items():
                for kind, times in created.items():
                    seconds = _timed(partial(_create, sock, kind, i, many))
                    times.setdefault(who, []).append(seconds * 1e3)
                    bench.progress(f"{who}: {many} {kind}, {seconds:.1f} s")
        shown = {"topic": f"{many:,} partitions", "topics": f"{many:,} topics"}
        for kind, name in shown.items():
            section.rows.append(row(f"create {name}", "ms", created[kind], less_is_better=True))
            produce, fetch = _requests(kind, many)
            for who, sock in socks.items():
                bench.progress(f"{who}: first writes to {name}")
                _touch(sock, kind, many, produce)
            works: dict[str, Work] = {
                who: partial(_send, sock, produce, bench.seconds) for who, sock in socks.items()
            }
            got = values(contest(bench, works, brokers), "per_second")
            records = {who: [v * many for v in each] for who, each in got.items()}
            section.rows.append(row(f"produce over {name}", "records/s", records))
            works = {who: partial(_read, sock, fetch, bench.seconds) for who, sock in socks.items()}
            got = values(contest(bench, works, brokers), "per_second")
            each = {who: [1e3 / v for v in rates] for who, rates in got.items()}
            section.rows.append(row(f"Fetch of {name}", "ms", each, less_is_better=True))
        total = 2 * many * (1 if bench.quick else _CREATIONS)
        memory = {who: [memory_kib(b.pid, "RssAnon") / 1024] for who, b in brokers.items()}
        name = f"resident memory with {total:,} partitions"
        section.rows.append(row(name, "MiB", memory, less_is_better=True))
    return section


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _names(index: int, many: int) -> list[str]:
    return [f"t{index}-{i}" for i in range(many)]


def _create(sock: socket.socket, kind: str, index: int, many: int) -> None:
    if kind == "topic":
        make_topics(sock, [f"wide-{index}"], many)
    else:
        make_topics(sock, _names(index, many))


def _requests(kind: str, many: int) -> tuple[bytes, bytes]:
    """One Produce with a record for each partition, one Fetch of that record of each."""
    batch, _ = batch_of(0)
    if kind == "topic":
        fetch = fetch_many({"wide-0": many}, len(batch))
        return produce_request(batch, "wide-0", partitions=many), fetch
    names = _names(0, many)
    return produce_topics(batch, names), fetch_many(dict.fromkeys(names, 1), len(batch))


def _touch(sock: socket.socket, kind: str, many: int, produce: bytes) -> None:
    """The small record that is fetched, then enough that every index has its first entries.

    Those are slow in Kafka (page faults in new files), once a partition: a cost of creation,
    not of each record.
    """
    try_produce(sock, produce)
    batch, _ = batch_of(16 << 10)
    names = _names(0, many)
    for first in list(range(0, many, _TOGETHER)) * 4:
        count = min(_TOGETHER, many - first)
        if kind == "topic":
            frame = produce_request(batch, "wide-0", partitions=count, first=first)
        else:
            frame = produce_topics(batch, names[first : first + count])
        try_produce(sock, frame)


def _send(sock: socket.socket, request: bytes, seconds: float) -> load.Rate:
    answer = try_produce(sock, request)
    load.pipelined(sock, request, answer, 1, seconds / 4)
    return load.pipelined(sock, request, answer, 1, seconds)


def _read(sock: socket.socket, request: bytes, seconds: float) -> load.Rate:
    answer, records = try_fetch(sock, request)
    load.fetch([sock], [request], answer, records, seconds / 4)
    return load.fetch([sock], [request], answer, records, seconds)
