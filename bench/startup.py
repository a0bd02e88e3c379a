"""From a process to its first acknowledged record: on nothing, on much, after kill -9."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bench import load
from bench.contest import row
from bench.kafka_peer import KafkaNode
from bench.peers import Broker
from bench.report import Section
from bench.system import LISTENER, Bench, data_folder
from bench.wire import (
    batch_of,
    connect,
    make_topic,
    produce_request,
    produce_until,
)
from tidelog.testing.local import LocalBroker

A_TENTH = 10  # the goal, as a ratio
_PARTITION_BYTES = 512 << 20  # less than a segment: nothing has been flushed by rolling
_FILL = 64 << 10

Figures = dict[str, list[float]]


def measure(bench: Bench) -> Section:
    """Start on an empty folder and on a large one; recovery."""
    gigabytes = 0.1 if bench.quick else 10.0 if bench.full else 2.0
    section = Section(
        "start",
        "a process to its first acknowledged record (Kafka's storage is formatted before); "
        f"large: {gigabytes:g} GB in partitions of up to 0.5 GB, all in active segments; floor: "
        "python -c 'import asyncio', to its end",
    )
    starts: Figures = {"floor": []}
    stops: Figures = {}
    for i in range(bench.few):
        starts["floor"].append(_bare())
        for who in contenders(bench):
            with ExitStack() as stack:
                broker = _broker(stack, bench, who)
                starts.setdefault(who, []).append(_first_record(broker) * 1e3)
                stops.setdefault(who, []).append(_stop(broker) * 1e3)
        bench.progress(f"round {i + 1}/{bench.few}")
    section.rows += [
        row("empty folder", "ms", starts, less_is_better=True, goal=A_TENTH),
        row("clean stop", "ms", stops, less_is_better=True),
    ]
    _large(bench, section, gigabytes)
    return section


def _large(bench: Bench, section: Section, gigabytes: float) -> None:
    clean: Figures = {}
    killed: Figures = {}
    recovery: Figures = {}
    rounds = min(2, bench.few)
    for i in range(rounds):
        for who in contenders(bench):
            with ExitStack() as stack:
                broker = _broker(stack, bench, who)
                bench.progress(f"{who}: filling {gigabytes:g} GB, round {i + 1}/{rounds}")
                _first_record(broker)
                _fill(broker.port, int(gigabytes * 1e9))
                broker.kill()
                after_kill = _first_record(broker)
                broker.stop()
                after_stop = _first_record(broker)
            killed.setdefault(who, []).append(after_kill * 1e3)
            clean.setdefault(who, []).append(after_stop * 1e3)
            # Zero cannot be divided by; a millisecond is nothing here.
            recovery.setdefault(who, []).append(max(after_kill - after_stop, 1e-3) / gigabytes)
    section.rows += [
        row("large folder, after a clean stop", "ms", clean, less_is_better=True, goal=A_TENTH),
        row("large folder, after kill -9", "ms", killed, less_is_better=True),
        row("recovery", "s/GB", recovery, less_is_better=True, note="the difference of the two"),
    ]


def contenders(bench: Bench) -> list[str]:
    return ["tidelog", "kafka"] if bench.kafka else ["tidelog"]


def _broker(stack: ExitStack, bench: Bench, who: str) -> Broker:
    """Not started; ended with the stack."""
    data: Path = stack.enter_context(data_folder(bench))
    broker = KafkaNode(LISTENER, data) if who == "kafka" else LocalBroker(LISTENER, data)
    stack.callback(broker.kill)
    return broker


def _bare() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import asyncio"], check=True)
    return (time.perf_counter() - began) * 1e3


def _first_record(broker: Broker) -> float:
    """Start, and seconds until a record has been acknowledged."""
    began = time.perf_counter()
    broker.start()
    with connect(broker.port) as sock:
        make_topic(sock)
        produce_until(sock, produce_request(batch_of(0)[0]))
    return time.perf_counter() - began


def _stop(broker: Broker) -> float:
    began = time.perf_counter()
    broker.stop()
    return time.perf_counter() - began


def _fill(port: int, size: int) -> None:
    batch, _ = batch_of(_FILL)
    with connect(port) as sock:
        for i in range(-(-size // _PARTITION_BYTES)):
            topic = f"large-{i}"
            make_topic(sock, topic)
            request = produce_request(batch, topic)
            answer = produce_until(sock, request)
            load.fill(sock, request, answer, min(size, _PARTITION_BYTES) // _FILL)
            size -= _PARTITION_BYTES
