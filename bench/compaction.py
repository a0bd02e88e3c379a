"""Compaction: how fast, and what a small producer notices of it.

A log is filled while its topic says that it is never dirty enough, and flushed.  Then the
topic's setting changes: from that moment it is due, and it is done when the broker's cleaner
checkpoint says so.  Both brokers look for work every 10 ms and write their checkpoints every
100 ms (Kafka this one also as soon as it is done).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench import load
from bench.contest import row
from bench.peers import Broker, Brokers, pair
from bench.report import Row, Section, percentile
from bench.system import LISTENER, Bench
from bench.wire import BenchError, ask, batch_of, connect, make_topic, produce_request, try_produce
from tidelog.log.checkpoints import CLEANER, RECOVERY_POINT, read_checkpoint
from tidelog.wire.compression import Codec
from tidelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.records import encode_batch

SETTINGS = {
    **LISTENER,
    "log.cleaner.backoff.ms": 10,
    "log.segment.delete.delay.ms": 1000,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 100,
}
MOST_GROWTH = 1.2  # of p99, the goal

Figures = dict[str, list[float]]

_SIZE = 128 << 20
_QUICK_SIZE = 24 << 20
_SEGMENTS = 8
_BATCH = 16 << 10
_ROW = 30  # bytes of a record beside its value, about
_WORDS = [f"{number:x}" * 2 for number in range(4096, 8192)]
_SMALL = "small"
_SLICE = 0.02  # seconds between two looks at the checkpoint
_PATIENCE = 300.0
_TOPIC_RESOURCE = 2
_SET = 0
_ALTER_VERSION = 1
_DELETE_VERSION = 6


@dataclass(frozen=True, slots=True)
class Shape:
    """What is in a log."""

    name: str
    value: int  # bytes
    versions: int  # of each key; one of them stays
    codec: Codec = Codec.NONE


SHAPES = (
    Shape("100-byte values, a tenth stays", 100, 10),
    Shape("1 KiB values, half stays", 1 << 10, 2),
    Shape("100-byte values in lz4, a tenth stays", 100, 10, Codec.LZ4),
)


def measure(bench: Bench) -> Section:
    """Throughput for several kinds of logs, then the latency beside it."""
    size = _QUICK_SIZE if bench.quick else _SIZE
    section = Section(
        "compaction",
        f"a log of {size >> 20} MiB (before lz4) in batches of 16 KiB and {_SEGMENTS} segments; "
        "bytes before compaction, from the moment it is due until the cleaner checkpoint says that "
        "it is done; "
        "1-record Produce, one in flight, without it and meanwhile",
    )
    with pair(bench, SETTINGS) as brokers:
        for shape in SHAPES:
            _throughput(bench, section, brokers, shape, size)
        _latency(bench, section, brokers, size)
    return section


def _throughput(bench: Bench, section: Section, brokers: Brokers, shape: Shape, size: int) -> None:
    frames = Frames(shape, size)
    rates = {who: list[float]() for who in brokers}
    for i in range(-1, bench.few):  # the first one warms up
        for who, broker in brokers.items():
            with Dirty(broker, f"{shape.codec.name.lower()}-{shape.value}-{i + 1}", frames) as log:
                began = time.perf_counter()
                log.make_due()
                log.until_clean(lambda: time.sleep(_SLICE / 10))
                seconds = time.perf_counter() - began
                log.check()
            if i >= 0:
                rates[who].append(log.closed_bytes / seconds / 1e6)
        bench.progress(f"{shape.name}, round {i + 1}/{bench.few}")
    section.rows.append(row(shape.name, "MB/s", rates))


def _latency(bench: Bench, section: Section, brokers: Brokers, size: int) -> None:
    frames = Frames(SHAPES[0], size)
    request = produce_request(batch_of(0)[0], _SMALL)
    alone: Figures = {who: [] for who in brokers}
    beside: Figures = {who: [] for who in brokers}
    growth: Figures = {who: [] for who in brokers}
    for i in range(-1, bench.rounds):
        for who, broker in brokers.items():
            topic = f"latency-{i + 1}"
            without, meanwhile = _p99(broker, topic, frames, request, bench.seconds * 4)
            if i >= 0:
                alone[who].append(without)
                beside[who].append(meanwhile)
                growth[who].append(meanwhile / without)
        bench.progress(f"latency, round {i + 1}/{bench.rounds}")
    section.rows += [
        row("Produce, p99, without", "us", alone, less_is_better=True),
        row("Produce, p99, meanwhile", "us", beside, less_is_better=True),
        Row(
            "Produce, p99, meanwhile / without",
            "x",
            growth["tidelog"],
            kafka=growth.get("kafka", ()),
            less_is_better=True,
            goal=0,
            most=MOST_GROWTH,
        ),
    ]


def _p99(
    broker: Broker, topic: str, frames: Frames, request: bytes, seconds: float
) -> tuple[float, float]:
    """Microseconds, without compaction and while it works."""
    with connect(broker.port) as sock, Dirty(broker, topic, frames) as log:
        make_topic(sock, _SMALL)
        answer = try_produce(sock, request)
        load.ping_pong(sock, request, answer, seconds / 4)
        alone = load.ping_pong(sock, request, answer, seconds)
        beside: list[int] = []
        log.make_due()
        log.until_clean(lambda: beside.extend(load.ping_pong(sock, request, answer, _SLICE)))
    return percentile(alone, 99) / 1000, percentile(beside, 99) / 1000


class Frames:
    """The batches of a log, made once: both brokers get the same bytes, in every round."""

    def __init__(self, shape: Shape, size: int) -> None:
        chance = random.Random(4)
        keys = size // (shape.value + _ROW) // shape.versions
        # Each version of all keys, in another order.
        order = [key for _ in range(shape.versions) for key in chance.sample(range(keys), keys)]
        now_ms = time.time_ns() // 1_000_000
        together = max(1, _BATCH // (shape.value + _ROW))
        self.batches = [
            encode_batch(
                [
                    (now_ms, b"key-%08d" % key, _value(chance, shape), ())
                    for key in order[first : first + together]
                ],
                codec=shape.codec,
            )
            for first in range(0, len(order), together)
        ]
        self.segment_bytes = sum(map(len, self.batches)) // _SEGMENTS


def _value(chance: random.Random, shape: Shape) -> bytes:
    if shape.codec is Codec.NONE:
        return chance.randbytes(shape.value)
    words = chance.choices(_WORDS, k=shape.value // 8)
    return " ".join(words).encode()[: shape.value]


class Dirty:
    """``with Dirty(broker, topic, frames) as log``: full, flushed, and not due; gone at the end."""

    def __init__(self, broker: Broker, topic: str, frames: Frames) -> None:
        self._data = Path(broker.data)
        self._topic = topic
        self._frames = frames
        self._sock = connect(broker.port)

    def __enter__(self) -> Dirty:
        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": 1,  # it must be above this
            "segment.bytes": self._frames.segment_bytes,
        }
        make_topic(self._sock, self._topic, 1, config)
        for batch in self._frames.batches:
            try_produce(self._sock, produce_request(batch, self._topic))
        active = self._segments()[-1]
        _wait(lambda: self._checkpoint(RECOVERY_POINT) >= int(active.stem), "flushed")
        self.closed_bytes = self._closed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._sock:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=self._topic)], timeout_ms=60_000
            )
            ask(self._sock, request, _DELETE_VERSION, DeleteTopicsResponse)

    def make_due(self) -> None:
        row = AlterableConfig(name="min.cleanable.dirty.ratio", config_operation=_SET, value="0.01")
        resource = AlterConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=self._topic, configs=[row]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        answer = ask(self._sock, request, _ALTER_VERSION, IncrementalAlterConfigsResponse)
        if code := answer.responses[0].error_code:
            raise BenchError(f"IncrementalAlterConfigs: error {code}")

    def until_clean(self, meanwhile: Callable[[], object]) -> None:
        _wait(lambda: self._checkpoint(CLEANER) > 0, "clean", meanwhile)

    def check(self) -> None:
        if self._closed() > 0.8 * self.closed_bytes:
            raise BenchError(f"{self._topic} is clean and has not become smaller")

    def _checkpoint(self, name: str) -> int:
        return read_checkpoint(str(self._data), name).get((self._topic, 0), -1)

    def _segments(self) -> list[Path]:
        return sorted((self._data / f"{self._topic}-0").glob("*.log"))

    def _closed(self) -> int:
        return sum(path.stat().st_size for path in self._segments()[:-1])


def _wait(
    done: Callable[[], bool],
    what: str,
    meanwhile: Callable[[], object] = lambda: time.sleep(_SLICE),
) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not done():
        meanwhile()
        if time.monotonic() > deadline:
            raise BenchError(f"the log was not {what} in {_PATIENCE:.0f} s")
