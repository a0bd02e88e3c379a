"""How long one record takes: to its acknowledgement, and to a waiting consumer."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

from bench import load
from bench.floor import Floor
from bench.report import Row, Section, percentile
from bench.system import ROLLING, Bench, running_broker
from bench.wire import (
    BenchError,
    batch_of,
    connect,
    end_offset,
    make_topic,
    offset_patcher,
    produce_request,
    read_frame,
    try_fetch,
    try_produce,
)

PERCENTS = (50, 99, 99.9)
Percentiles = dict[float, list[float]]


def measure(bench: Bench) -> Section:
    """One request in flight: Produce, and Produce to a parked Fetch."""
    section = Section(
        "latency",
        "100-byte record, one request in flight; loopback: ping-pong of the same sizes; "
        "floor: frames, rolling files, answers",
    )
    seconds = bench.seconds * 2
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(bench, ROLLING))
        control = stack.enter_context(connect(broker.port))
        make_topic(control)
        request = produce_request(batch_of(0)[0])
        answer = try_produce(control, request)
        loopback = stack.enter_context(Floor("discard", answer=answer, blocking=True))
        floor = stack.enter_context(Floor("write", answer=answer, data=bench.data))
        ports = {"loopback": loopback.port, "floor": floor.port, "tidelog": broker.port}
        got: dict[str, Percentiles] = {name: _empty() for name in [*ports, "wake"]}
        for i in range(bench.rounds):
            for name, port in ports.items():
                with connect(port) as sock:
                    load.ping_pong(sock, request, answer, seconds / 8)
                    _note(got[name], load.ping_pong(sock, request, answer, seconds))
            _note(got["wake"], _wake_up(broker.port, control, request, answer, seconds))
            bench.progress(f"round {i + 1}/{bench.rounds}")
    peers = got["loopback"], got["floor"]
    for percent in PERCENTS:
        section.rows.append(_row(f"Produce, p{percent}", percent, got["tidelog"], *peers))
    for percent in PERCENTS:
        section.rows.append(
            _row(f"Produce to parked Fetch, p{percent}", percent, got["wake"], peers[0], {})
        )
    return section


def _empty() -> Percentiles:
    return {percent: [] for percent in PERCENTS}


def _note(into: Percentiles, times: list[int]) -> None:
    for percent, values in into.items():
        values.append(percentile(times, percent) / 1000)


def _row(
    name: str, percent: float, got: Percentiles, loopback: Percentiles, floor: Percentiles
) -> Row:
    return Row(
        name, "us", got[percent], loopback[percent], floor.get(percent, ()), less_is_better=True
    )


def _wake_up(
    port: int, control: socket.socket, produce: bytes, answer: int, seconds: float
) -> list[int]:
    frame, move = offset_patcher(64 * 1024, max_wait_ms=10_000)
    with connect(port) as producer, connect(port) as consumer:
        offset = end_offset(control)
        move(offset)
        try_produce(producer, produce)
        fetched, records = try_fetch(consumer, bytes(frame))
        if not records:
            raise BenchError("the record that was acknowledged cannot be read")
        ping = _pinger(control)
        return load.wake_up(
            producer, consumer, ping, produce, answer, frame, fetched, move, offset + 1, seconds
        )


def _pinger(sock: socket.socket) -> Callable[[], None]:
    """A small question with an answer: what was sent before it has been seen."""
    question = bytes.fromhex("0000000a 0012 0000 00000001 0000".replace(" ", ""))  # ApiVersions 0

    def ping() -> None:
        sock.sendall(question)
        read_frame(sock)

    return ping
