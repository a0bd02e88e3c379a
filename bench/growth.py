"""``--growth``: does a record cost more when there are more of them, or more partitions?"""

from __future__ import annotations

import socket
import statistics
from pathlib import Path

from bench import load
from bench.background import FETCH_BYTES
from bench.peers import Broker, pair
from bench.picture import Chart, as_svg
from bench.system import LISTENER, Bench, allow_descriptors, cpu_seconds
from bench.wire import batch_of, connect, end_offset, fetch_request, make_topic, produce_request
from bench.wire import try_produce as produce_once

PICTURE = Path(__file__).with_name("growth.svg")
DATA_MB = (200, 400, 800, 1200, 1600, 2000)  # a tenth of it in a quick run
PARTITIONS = (50, 100, 200, 350, 500)
_BATCH = 16 << 10
_READS = 100
_TOGETHER = 50
_FIRST_TURNS = 4
_BATCHES = 8000  # written at each number of partitions

Points = dict[float, list[float]]


def measure(bench: Bench) -> None:
    """Nanoseconds of the broker's CPU a record, over data and over partitions."""
    allow_descriptors(40_000)
    rounds = 1 if bench.quick else 3
    scale = 0.1 if bench.quick else 1
    write: dict[str, Points] = {}
    read: dict[str, Points] = {}
    wide: dict[str, Points] = {}
    for i in range(rounds):
        bench.progress(f"round {i + 1}/{rounds}")
        with pair(bench, LISTENER) as brokers:
            for who, broker in brokers.items():
                _over_data(broker, scale, write.setdefault(who, {}), read.setdefault(who, {}))
                _over_partitions(broker, wide.setdefault(who, {}))
    charts = [
        Chart("Produce, by data in the log", "MB", _curves(write)),
        Chart("Fetch from the beginning, by data in the log", "MB", _curves(read)),
        Chart("Produce over all partitions, by partitions", "partitions", _curves(wide)),
    ]
    unit = "broker CPU, nanoseconds a record of 100 bytes"
    PICTURE.write_text(as_svg("Cost of a record as the log grows ten times", unit, charts))
    for chart in charts:
        for who, points in chart.curves.items():
            shown = "  ".join(f"{x:g}: {y:.0f}" for x, y in points)
            print(f"{chart.title}, {who}, ns a record: {shown}")


def _curves(got: dict[str, Points]) -> dict[str, list[tuple[float, float]]]:
    return {
        who: [(x, statistics.median(values)) for x, values in sorted(points.items())]
        for who, points in got.items()
    }


def _over_data(broker: Broker, scale: float, write: Points, read: Points) -> None:
    """Fill one partition step by step; at each step the cost of writing and of reading."""
    batch, count = batch_of(_BATCH)
    request = produce_request(batch, "growth")
    with connect(broker.port) as sock:
        make_topic(sock, "growth")
        answer = produce_once(sock, request)
        done = len(batch)
        for step, whole in enumerate(DATA_MB):
            megabytes = whole * scale
            requests = int(megabytes * 1e6 - done) // len(batch)
            if not step:  # the first half warms up
                load.fill(sock, request, answer, requests // 2)
                done += requests // 2 * len(batch)
                requests -= requests // 2
            done += requests * len(batch)
            cpu = cpu_seconds(broker.pid)
            load.fill(sock, request, answer, requests)
            used = cpu_seconds(broker.pid) - cpu
            write.setdefault(megabytes, []).append(used / requests / count * 1e9)
            read.setdefault(megabytes, []).append(_read_cost(broker, sock, count))


def _read_cost(broker: Broker, sock: socket.socket, count: int) -> float:
    """Fetches of whole megabytes at places all over the log, again and again."""
    end = end_offset(sock, "growth")
    step = FETCH_BYTES // _BATCH
    places = range(0, end - step * count, max(1, end // _READS))
    buffer = memoryview(bytearray(FETCH_BYTES + 4096))
    size = 0
    for warm in (True, False):
        cpu = cpu_seconds(broker.pid)
        for _ in range(1 if warm else 2):
            for place in places:
                frame = fetch_request(place, FETCH_BYTES, topic="growth")
                sock.sendall(frame)
                size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
                if sock.recv_into(buffer, size, socket.MSG_WAITALL) != size:
                    raise load.gone()
    used = cpu_seconds(broker.pid) - cpu
    return used / (2 * len(places) * (size // _BATCH) * count) * 1e9


def _over_partitions(broker: Broker, wide: Points) -> None:
    """Topics of more and more partitions, all written in turn, fifty in a request."""
    batch, count = batch_of(_BATCH)
    with connect(broker.port) as sock:
        for partitions in PARTITIONS:
            topic = f"growth-{partitions}"
            make_topic(sock, topic, partitions)
            requests = [
                produce_request(batch, topic, partitions=_TOGETHER, first=first)
                for first in range(0, partitions, _TOGETHER)
            ]
            answers = [produce_once(sock, request) for request in requests]
            turns = max(2, _BATCHES // partitions)
            cpu = 0.0
            # The first turns are not counted: the first entry of a new index file costs Kafka
            # tens of milliseconds of page faults, once a partition and not once a record.
            for turn in range(_FIRST_TURNS + turns):
                if turn == _FIRST_TURNS:
                    cpu = cpu_seconds(broker.pid)
                for request, answer in zip(requests, answers, strict=True):
                    load.fill(sock, request, answer, 1)
            used = cpu_seconds(broker.pid) - cpu
            wide.setdefault(partitions, []).append(used / (turns * partitions * count) * 1e9)
