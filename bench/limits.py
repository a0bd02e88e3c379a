"""The machine by itself: what no broker on it can pass."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from crc32c import crc32c

from bench import load
from bench.floor import ROLL_BYTES, Floor, RollingFiles
from bench.report import Row, Section, in_turn
from bench.system import Bench
from bench.wire import batch_of, connect

_AGAIN_BYTES = 32 << 20
SIZES = {"1 record": 170, "16 KiB": 16 << 10, "128 KiB": 128 << 10, "1 MiB": 1 << 20}


def measure(bench: Bench) -> Section:
    """Loopback, files to sockets, the page cache, CRC-32C, the disk."""
    section = Section("limits", "this machine without a broker; loopback is one way, no answers")
    seconds = bench.seconds / 2
    with ExitStack() as stack:
        sink = stack.enter_context(Floor("sink", blocking=True))
        runs: dict[str, Callable[[], float]] = {
            f"loopback, sends of {name}": partial(_stream, sink.port, size, seconds)
            for name, size in SIZES.items()
        }
        for kind in ("mmap", "sendfile"):
            floor = stack.enter_context(Floor(kind, answer=64, blocking=True, data=bench.data))
            label = "mmap + send" if kind == "mmap" else kind
            runs[f"file to socket, 1 MiB, {label}"] = partial(_ranges, floor, seconds)
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=bench.data)
        )
        for name, size in SIZES.items():
            runs[f"write, rolling files, {name}"] = partial(_rolling, directory, size, seconds)
        runs["write, same pages again, 1 MiB"] = partial(_again, directory, 1 << 20, seconds)
        for name, size in SIZES.items():
            runs[f"crc32c, {name}"] = partial(_crc, size)
        for name, values in in_turn(bench.rounds, runs, bench.progress).items():
            section.rows.append(Row(name, "MB/s", values))
        syncs: dict[str, Callable[[], float]] = {
            f"fdatasync after {name}, p50": partial(_fdatasync, directory, size)
            for name, size in (("1 KiB", 1 << 10), ("1 MiB", 1 << 20))
        }
        for name, values in in_turn(bench.rounds, syncs, bench.progress).items():
            section.rows.append(Row(name, "us", values))
    return section


def _stream(port: int, size: int, seconds: float) -> float:
    with connect(port) as sock:
        return load.stream(sock, size, seconds).mb_per_second


def _ranges(floor: Floor, seconds: float) -> float:
    with connect(floor.port) as sock:
        request = (60).to_bytes(4, "big") + bytes(60)
        return load.fetch([sock], [request], 64 + (1 << 20), 1 << 20, seconds).mb_per_second


def _rolling(directory: str, size: int, seconds: float) -> float:
    files = RollingFiles(directory)
    chunk = b"x" * size
    clock, append, done = time.perf_counter, files.append, 0
    try:
        for _ in range(ROLL_BYTES // size if size >= 4096 else 1):
            append(chunk)  # pages come back to life before the clock starts
        started = clock()
        while clock() < started + seconds:
            for _ in range(16):
                append(chunk)
            done += 16
        return done * size / (clock() - started) / 1e6
    finally:
        files.close()


def _again(directory: str, size: int, seconds: float) -> float:
    chunk = b"x" * size
    clock, done = time.perf_counter, 0
    with tempfile.TemporaryFile(dir=directory) as file:
        fd, positions = file.fileno(), range(0, _AGAIN_BYTES, size)
        for position in positions:
            os.pwrite(fd, chunk, position)
        started = clock()
        while clock() < started + seconds:
            for position in positions:
                os.pwrite(fd, chunk, position)
            done += len(positions)
        return done * size / (clock() - started) / 1e6


def _crc(size: int) -> float:
    batch, _ = batch_of(size)
    view = memoryview(batch)[21:]
    count = max(16, (64 << 20) // len(view) // 16)
    started = time.perf_counter()
    for _ in range(count):
        crc32c(view)
    return count * len(view) / (time.perf_counter() - started) / 1e6


def _fdatasync(directory: str, size: int) -> float:
    times, chunk = [], b"x" * size
    with tempfile.TemporaryFile(dir=directory) as file:
        for i in range(20):
            os.pwrite(file.fileno(), chunk, i * size)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6
