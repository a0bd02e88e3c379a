"""A small client beside large ones: does it still get its answers in time?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from bench import load
from bench.background import Background
from bench.contest import Latencies, row
from bench.fetch import HOT_BYTES, fill
from bench.peers import shared
from bench.report import Section
from bench.system import ROLLING, Bench
from bench.wire import batch_of, connect, make_topic, produce_request, try_produce

TOPIC = "mixed"
BULK = "mixed-bulk"
HOT = "mixed-hot"


def measure(bench: Bench) -> Section:
    """One request in flight beside two bulk producers, then beside two bulk readers."""
    section = Section(
        "mixed",
        "1-record Produce, one in flight, beside two other processes: producers of 1 MiB batches "
        "with 5 in flight, or readers of 1 MiB answers; and what these get meanwhile",
    )
    for broker in shared(bench).values():
        with connect(broker.port) as sock:
            make_topic(sock, TOPIC, 1, ROLLING)
            make_topic(sock, BULK, 1, ROLLING)
            fill(sock, HOT, HOT_BYTES)
    kinds: dict[str, Callable[[int], Background]] = {
        "two bulk producers": lambda port: Background("produce", port, BULK, size=1 << 20),
        "two bulk readers": lambda port: Background("fetch", port, HOT, count=HOT_BYTES >> 20),
    }
    for name, start in kinds.items():
        _measure(bench, section, name, start)
    return section


def _measure(bench: Bench, section: Section, name: str, start: Callable[[int], Background]) -> None:
    brokers = shared(bench)
    request = produce_request(batch_of(0)[0], TOPIC)
    latencies, bulk = Latencies(), {who: list[float]() for who in brokers}
    rounds = bench.few if bench.quick else bench.rounds
    for i in range(-1, rounds):  # the first one warms up
        for who, broker in brokers.items():
            with ExitStack() as stack:
                sock = stack.enter_context(connect(broker.port))
                answer = try_produce(sock, request)
                others = [stack.enter_context(start(broker.port)) for _ in range(2)]
                load.ping_pong(sock, request, answer, bench.seconds / 2)
                times = load.ping_pong(sock, request, answer, bench.seconds * 2)
            if i >= 0:
                latencies.note(who, times)
                bulk[who].append(sum(other.rate.mb_per_second for other in others))
        bench.progress(f"{name}, round {i + 1}/{rounds}")
    section.rows += latencies.rows(f"beside {name}", (50, 99))
    section.rows.append(row(f"{name} meanwhile", "MB/s", bulk))
