"""A load in a process of its own, beside the one that is measured.

    python -m bench.background produce PORT --topic T --size N [--window W] [--rate R]
    python -m bench.background fetch PORT --topic T [--count N]

``produce`` keeps ``window`` requests in flight, or sends ``rate`` requests a second.
``fetch`` reads ``count`` answers of 1 MiB, round and round.  The process says ``ready``,
works until its standard input ends, and then says how many requests and bytes it moved in
how many seconds.
"""

from __future__ import annotations

import argparse
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from bench import load
from bench.wire import (
    batch_of,
    connect,
    exact_batch,
    fetch_request,
    produce_request,
    try_fetch,
    try_produce,
)

FILL_BATCH = 64 << 10  # of topics that are read: FETCH_BYTES is a whole number of these
FETCH_BYTES = 1 << 20
_SLICE = 0.1
_TICK = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.background")
    parser.add_argument("kind", choices=("produce", "fetch"))
    parser.add_argument("port", type=int)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--exact", action="store_true", help="one record of that size")
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--count", type=int, default=64)
    options = parser.parse_args()
    with connect(options.port) as sock:
        work = _produce(sock, options) if options.kind == "produce" else _fetch(sock, options)
        work(_SLICE)
        print("ready", flush=True)
        requests = payload = 0
        seconds = 0.0
        while not select.select([sys.stdin], [], [], 0)[0]:
            rate = work(_SLICE)
            requests, payload = requests + rate.requests, payload + rate.payload
            seconds += rate.seconds
        print(requests, payload, seconds, flush=True)


def _produce(sock: socket.socket, options: argparse.Namespace) -> Callable[[float], load.Rate]:
    batch = exact_batch(options.size) if options.exact else batch_of(options.size)[0]
    request = produce_request(batch, options.topic)
    answer = try_produce(sock, request)
    if options.rate:
        return lambda seconds: paced(sock, request, answer, options.rate, seconds)
    return lambda seconds: load.pipelined(sock, request, answer, options.window, seconds)


def _fetch(sock: socket.socket, options: argparse.Namespace) -> Callable[[float], load.Rate]:
    step = FETCH_BYTES // FILL_BATCH
    requests = [
        fetch_request(i * step, FETCH_BYTES, topic=options.topic) for i in range(options.count)
    ]
    answer, _ = try_fetch(sock, requests[0])
    return lambda seconds: load.fetch([sock], requests, answer, FETCH_BYTES, seconds)


def paced(
    sock: socket.socket, request: bytes, answer_size: int, rate: float, seconds: float
) -> load.Rate:
    """So many requests a second, the due ones together every few milliseconds."""
    answers = bytearray(64 << 10)
    clock = time.perf_counter
    started = clock()
    sent = 0
    while (now := clock() - started) < seconds:
        due = int(rate * now) - sent
        if due <= 0:
            time.sleep(_TICK)
            continue
        due = min(due, 16)
        for _ in range(due):
            sock.sendall(request)
        missing = due * answer_size
        while missing:
            n = sock.recv_into(answers, min(missing, len(answers)))
            if not n:
                raise load.gone()
            missing -= n
        sent += due
    return load.Rate(sent, sent * len(request), clock() - started)


class Background:
    """``with Background("produce", port, topic, size=1 << 20) as other: ...; other.rate``"""

    def __init__(self, kind: str, port: int, topic: str, **options: float | bool) -> None:
        self._command = [sys.executable, "-m", "bench.background", kind, str(port)]
        self._command += ["--topic", topic]
        for name, value in options.items():
            self._command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        self.rate = load.Rate(0, 0, 1)

    def __enter__(self) -> Background:
        root = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(
            self._command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            self._process.kill()
            self._process.wait()
            raise load.gone()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            said, _ = self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, _ = self._process.communicate()
        if said and error is None:
            requests, payload, seconds = said.split()
            self.rate = load.Rate(int(requests), int(payload), float(seconds))


if __name__ == "__main__":
    main()
