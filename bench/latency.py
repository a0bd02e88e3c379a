"""How long one record takes: to its acknowledgement, and to a waiting consumer."""

from __future__ import annotations

import socket
import statistics
from contextlib import ExitStack
from functools import partial

from bench import load
from bench.background import Background
from bench.contest import Latencies, Process, contest
from bench.floor import Floor
from bench.peers import Broker, shared
from bench.report import Section
from bench.system import ROLLING, Bench
from bench.wire import (
    BenchError,
    batch_of,
    connect,
    end_offset,
    make_topic,
    offset_patcher,
    ping,
    produce_request,
    try_fetch,
    try_produce,
)

TOPIC = "latency"
_LOAD = 16 << 10  # the batches of the load beside
_PARKED = "send to receive (Produce to a parked Fetch)"


def measure(bench: Bench) -> Section:
    """One request in flight: Produce, and Produce to a parked Fetch; then the same under load."""
    section = Section(
        "latency",
        "100-byte record, one request in flight; loopback: ping-pong of the same sizes; "
        "floor: frames, rolling files, answers",
    )
    seconds = bench.seconds * 2
    brokers = shared(bench)
    request = produce_request(batch_of(0)[0], TOPIC)
    acknowledged, received = Latencies(), Latencies()
    with ExitStack() as stack:
        controls: dict[str, socket.socket] = {}
        for who, broker in brokers.items():
            controls[who] = stack.enter_context(connect(broker.port))
            make_topic(controls[who], TOPIC, 1, ROLLING)
            answer = try_produce(controls[who], request)
        peers: dict[str, Process] = {
            "loopback": stack.enter_context(Floor("discard", answer=answer, blocking=True)),
            "floor": stack.enter_context(Floor("write", answer=answer, data=bench.data)),
            **brokers,
        }
        for i in range(-1, bench.rounds):  # the first one warms up
            for who, peer in peers.items():
                with connect(peer.port) as sock:
                    load.ping_pong(sock, request, answer, seconds / 8)
                    times = load.ping_pong(sock, request, answer, seconds)
                if i >= 0:
                    acknowledged.note(who, times)
                if who in controls:
                    times = _wake_up(peer.port, controls[who], request, answer, seconds)
                if i >= 0 and who != "floor":
                    received.note(who, times)
            bench.progress(f"round {i + 1}/{bench.rounds}")
    section.rows += acknowledged.rows("Produce")
    section.rows += received.rows(_PARKED)
    return section


def under_load(bench: Bench) -> Section:
    """The same with another connection that keeps the broker half busy."""
    brokers = shared(bench)
    topic = "latency-load"
    request = produce_request(batch_of(0)[0], TOPIC)
    for broker in brokers.values():
        with connect(broker.port) as sock:
            make_topic(sock, TOPIC, 1, ROLLING)
            make_topic(sock, topic, 1, ROLLING)
    works = {who: partial(_most, broker, topic, bench.seconds) for who, broker in brokers.items()}
    meters = contest(bench, works, brokers, bench.few)
    most = {who: statistics.median(meter.per_second) for who, meter in meters.items()}
    half = min(most.values()) / 2
    section = Section(
        "latency-load",
        f"as above, while another process sends {half:,.0f} batches of 16 KiB a second, half of "
        "what the slower of the two brokers takes: the same load for both",
    )
    acknowledged, received = Latencies(), Latencies()
    seconds = bench.seconds * 2
    for i in range(-1, bench.rounds):
        for who, broker in brokers.items():
            with (
                connect(broker.port) as sock,
                connect(broker.port) as control,
                Background("produce", broker.port, topic, size=_LOAD, rate=half) as other,
            ):
                answer = try_produce(sock, request)
                load.ping_pong(sock, request, answer, seconds / 8)
                times = load.ping_pong(sock, request, answer, seconds)
                parked = _wake_up(broker.port, control, request, answer, seconds)
            if other.rate.per_second < 0.7 * half:
                bench.progress(f"{who} took only {other.rate.per_second:.0f} of {half:.0f}")
            if i >= 0:
                acknowledged.note(who, times)
                received.note(who, parked)
        bench.progress(f"round {i + 1}/{bench.rounds}")
    section.rows += acknowledged.rows("Produce")
    section.rows += received.rows(_PARKED)
    return section


def _most(broker: Broker, topic: str, seconds: float) -> load.Rate:
    request = produce_request(batch_of(_LOAD)[0], topic)
    with connect(broker.port) as sock:
        answer = try_produce(sock, request)
        load.pipelined(sock, request, answer, 5, seconds / 4)
        return load.pipelined(sock, request, answer, 5, seconds)


def _wake_up(
    port: int, control: socket.socket, produce: bytes, answer: int, seconds: float
) -> list[int]:
    frame, move = offset_patcher(64 * 1024, 10_000, TOPIC)
    with connect(port) as producer, connect(port) as consumer:
        offset = end_offset(control, TOPIC)
        move(offset)
        try_produce(producer, produce)
        fetched, records = try_fetch(consumer, bytes(frame))
        if not records:
            raise BenchError("the record that was acknowledged cannot be read")
        return load.wake_up(
            producer,
            consumer,
            partial(ping, control),
            produce,
            answer,
            frame,
            fetched,
            move,
            offset + 1,
            seconds,
        )
