"""What a broker takes when it does nothing, and how fast it comes and goes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench import load
from bench.report import Row, Section
from bench.system import (
    LISTENER,
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
from tidelog.testing.local import LocalBroker

IDLE_CONNECTIONS = 1000
_BARE = "import asyncio, sys; print(flush=True); sys.stdin.read()"


def memory(bench: Bench) -> Section:
    """Resident memory: idle, after load, with many idle connections."""
    section = Section("memory", "resident; floor: a Python that has imported asyncio")
    rounds = 1 if bench.quick else min(3, bench.rounds)
    idle, loaded, each, bare = [], [], [], []
    for i in range(rounds):
        bare.append(_bare_memory())
        with running_broker(bench, ROLLING) as broker, ExitStack() as stack:
            idle.append(memory_kib(broker.pid) / 1024)
            _work(broker.port, bench.seconds)
            loaded.append(memory_kib(broker.pid, "RssAnon") / 1024)
            count = min(IDLE_CONNECTIONS, allow_descriptors(IDLE_CONNECTIONS + 200) - 100)
            before = memory_kib(broker.pid, "RssAnon")
            for _ in range(count):
                sock = stack.enter_context(connect(broker.port))
                end_offset(sock)  # each has spoken once
            each.append((memory_kib(broker.pid, "RssAnon") - before) / count)
        bench.progress(f"round {i + 1}/{rounds}")
    section.rows += [
        Row("idle, after the start", "MiB", idle, floor=bare, less_is_better=True),
        Row("after load", "MiB", loaded, note="without mapped log files"),
        Row(f"{IDLE_CONNECTIONS:,} idle connections, each", "KiB", each),
    ]
    return section


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


def _work(port: int, seconds: float) -> None:
    """A bit of everything: small and large batches in, large answers out."""
    with connect(port) as sock:
        make_topic(sock)
        for size in (0, 16 << 10, 1 << 20):
            request = produce_request(batch_of(size)[0])
            load.pipelined(sock, request, try_produce(sock, request), 5, seconds)
        newest = end_offset(sock) - 1
        frame = fetch_request(newest, 1 << 20)
        answer, records = try_fetch(sock, frame)
        load.fetch([sock], [frame], answer, records, seconds)


def start(bench: Bench) -> Section:
    """From nothing to the first acknowledged record, and back."""
    section = Section(
        "start", "a process on an empty folder; floor: python -c 'import asyncio', to its end"
    )
    starts, stops, bare = [], [], []
    for i in range(bench.rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import asyncio"], check=True)
        bare.append((time.perf_counter() - began) * 1e3)
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=bench.data) as parent:
            began = time.perf_counter()
            broker = LocalBroker(LISTENER, data=Path(parent) / "data")
            try:
                broker.start()
                with connect(broker.port) as sock:
                    make_topic(sock)
                    try_produce(sock, produce_request(batch_of(0)[0]))
                starts.append((time.perf_counter() - began) * 1e3)
                began = time.perf_counter()
                broker.stop()
                stops.append((time.perf_counter() - began) * 1e3)
            finally:
                broker.kill()
        bench.progress(f"round {i + 1}/{bench.rounds}")
    section.rows += [
        Row("start to first acknowledged record", "ms", starts, floor=bare, less_is_better=True),
        Row("clean stop", "ms", stops, floor=bare, less_is_better=True),
    ]
    return section
