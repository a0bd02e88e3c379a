"""What a broker takes when it does nothing, and when it works."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from bench import load
from bench.contest import row
from bench.peers import Broker, running_kafka
from bench.report import Section
from bench.system import (
    BROKER,
    ROLLING,
    Bench,
    allow_descriptors,
    memory_kib,
    running_broker,
)
from bench.wire import (
    batch_of,
    connect,
    end_offset,
    fetch_request,
    make_topic,
    produce_request,
    try_fetch,
    try_produce,
)

IDLE_CONNECTIONS = 1000
AN_EIGHTH = 8  # the goal, as a ratio
_BARE = "import asyncio, sys; print(flush=True); sys.stdin.read()"


def measure(bench: Bench) -> Section:
    """Resident memory: idle, under load, with many idle connections."""
    section = Section("memory", "resident; floor: a Python that has imported asyncio")
    idle: dict[str, list[float]] = {"floor": []}
    loaded: dict[str, list[float]] = {}
    each: dict[str, list[float]] = {}
    rounds = min(2, bench.few)
    for i in range(rounds):
        idle["floor"].append(_bare_memory())
        for who, start in starters(bench).items():
            with start() as broker, ExitStack() as stack:
                idle.setdefault(who, []).append(memory_kib(broker.pid) / 1024)
                most = _work(broker, bench.seconds * 2)
                loaded.setdefault(who, []).append(most / 1024)
                count = min(IDLE_CONNECTIONS, allow_descriptors(IDLE_CONNECTIONS + 200) - 100)
                before = memory_kib(broker.pid, "RssAnon")
                for _ in range(count):
                    sock = stack.enter_context(connect(broker.port))
                    end_offset(sock)  # each has spoken once
                more = memory_kib(broker.pid, "RssAnon") - before
                each.setdefault(who, []).append(max(more, 1) / count)
        bench.progress(f"round {i + 1}/{rounds}")
    note = "the most, without mapped log files"
    section.rows += [
        row("idle, after the start", "MiB", idle, less_is_better=True, goal=AN_EIGHTH),
        row("under load", "MiB", loaded, less_is_better=True, goal=AN_EIGHTH, note=note),
        row(f"{IDLE_CONNECTIONS:,} idle connections, each", "KiB", each, less_is_better=True,
            goal=0, note="Kafka's is taken from its heap, which is there already"),
    ]  # fmt: skip
    return section


def starters(
    bench: Bench,
) -> dict[str, Callable[[], contextlib.AbstractContextManager[Broker]]]:
    """How to start each broker on an empty folder."""

    @contextlib.contextmanager
    def tidelog() -> Iterator[Broker]:
        with running_broker(bench, BROKER) as broker:
            yield broker

    @contextlib.contextmanager
    def kafka() -> Iterator[Broker]:
        with running_kafka(bench, BROKER) as node:
            yield node

    return {"tidelog": tidelog, "kafka": kafka} if bench.kafka else {"tidelog": tidelog}


def _bare_memory() -> float:
    process = subprocess.Popen(
        [sys.executable, "-c", _BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        return memory_kib(process.pid) / 1024
    finally:
        process.communicate(timeout=10)


def _work(broker: Broker, seconds: float) -> int:
    """A bit of everything, small and large batches in, large answers out; the most it took."""
    most = 0
    with connect(broker.port) as sock:
        make_topic(sock, configs=ROLLING)
        for size in (0, 16 << 10, 1 << 20):
            request = produce_request(batch_of(size)[0])
            load.pipelined(sock, request, try_produce(sock, request), 5, seconds)
            most = max(most, memory_kib(broker.pid, "RssAnon"))
        newest = end_offset(sock) - 1
        frame = fetch_request(newest, 1 << 20)
        answer, records = try_fetch(sock, frame)
        load.fetch([sock], [frame], answer, records, seconds)
        return max(most, memory_kib(broker.pid, "RssAnon"))
