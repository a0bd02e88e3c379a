"""What the tests of the log share: small logs, batches, and what a directory should hold.

``read_segments`` and ``expected_indexes`` are written from the description of Kafka's
files, not from tidelog import files
from tidelog's code: they are what the code is held to.
"""

from __future__ import annotations

import os
import random
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog import files
from tidelog.log.log import Appended, Log
from tidelog.log.opening import open_log
from tidelog.settings import LogConfig, Settings
from tidelog.wire.batch import read_header
from tidelog.wire.compression import Codec
from tidelog.wire.records import Record, decode_batch, encode_batch

SEED = int(os.environ.get("TIDELOG_SEED", "1"))
NOW = 1_700_000_000_000


def generator(*what: object) -> random.Random:
    """Random numbers that depend on the test and on TIDELOG_SEED only."""
    return random.Random(" ".join(map(str, (SEED, *what))))


def log_config(**overrides: object) -> LogConfig:
    """Kafka's defaults, but for what a test names: ``log_config(segment_bytes=1000)``."""
    own = {name.replace("_", "."): str(value) for name, value in overrides.items()}
    return LogConfig.of(Settings.of(), own)


def make_batch(
    values: Sequence[bytes | None] = (b"x",),
    timestamp: int | Sequence[int] = NOW,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: Codec = Codec.NONE,
) -> bytes:
    """A batch as a producer sends it; ``producer`` is id, epoch and first sequence."""
    times = [timestamp] * len(values) if isinstance(timestamp, int) else timestamp
    return encode_batch(
        [(time, None, value, ()) for time, value in zip(times, values, strict=True)],
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


def sized_batch(size: int, timestamp: int = NOW) -> bytes:
    """A batch of one record that has exactly this size (at least 69 bytes)."""
    for value in range(size - 61, -1, -1):
        batch = make_batch([b"x" * value], timestamp)
        if len(batch) == size:
            return batch
    raise ValueError(size)


def append(log: Log, batch: bytes | None = None, now_ms: int = NOW, epoch: int = 0) -> Appended:
    """Append as the partition does, with everything visible at once."""
    data = bytearray(make_batch() if batch is None else batch)
    done = log.append(data, read_header(data), epoch, now_ms)
    log.high_watermark = log.end_offset
    return done


def open_in(path: Path | str, config: LogConfig | None = None, **how: object) -> Log:
    return open_log(str(path), config or log_config(), NOW, **how)  # type: ignore[arg-type]


def contents(log: Log, start: int | None = None) -> list[Record]:
    """Every record from the log start on, decoded."""
    start = log.log_start_offset if start is None else start
    found = [record for batch in log.batches(start) for record in decode_batch(batch)]
    return [record for record in found if record.offset >= start]


# -- the files, read by their description ------------------------------------------


@dataclass(frozen=True, slots=True)
class OnDisk:
    """One batch in a file."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def read_segment(path: Path | str) -> list[OnDisk]:
    """The batches of one .log file."""
    data = files.read_file(str(path))
    found, position = [], 0
    while position < len(data):
        base, length = struct.unpack_from(">qi", data, position)
        (delta,) = struct.unpack_from(">i", data, position + 23)
        (newest,) = struct.unpack_from(">q", data, position + 35)
        found.append(OnDisk(position, length + 12, base, base + delta, newest))
        position += length + 12
    assert position == len(data), f"{path} ends inside a batch"
    return found


def log_files(directory: Path | str) -> list[Path]:
    """The segments of a log, oldest first."""
    return sorted(p for p in Path(directory).glob("*.log") if re.fullmatch("[0-9]{20}", p.stem))


def expected_indexes(path: Path, interval: int, *, closed: bool) -> tuple[bytes, bytes]:
    """What .index and .timeindex of a segment must hold, byte for byte."""
    base_offset = int(path.stem)
    offsets, times = bytearray(), bytearray()
    since, newest, last_time = 0, (-1, base_offset), -1
    batches = read_segment(path)
    for batch in batches:
        if batch.max_timestamp > newest[0]:
            newest = (batch.max_timestamp, batch.last_offset)
        if since > interval:
            offsets += struct.pack(">ii", batch.last_offset - base_offset, batch.position)
            if newest[0] > last_time:
                times += struct.pack(">qi", newest[0], newest[1] - base_offset)
                last_time = newest[0]
            since = 0
        since += batch.size
    if closed and newest[0] > last_time:
        times += struct.pack(">qi", newest[0], newest[1] - base_offset)
    return bytes(offsets), bytes(times)


def check_index_files(directory: Path | str, interval: int, *, active_closed: bool) -> None:
    """Every index file of a directory is what a fresh one would be."""
    paths = log_files(directory)
    for path in paths:
        closed = active_closed or path != paths[-1]
        offsets, times = expected_indexes(path, interval, closed=closed)
        assert path.with_suffix(".index").read_bytes() == offsets, path
        assert path.with_suffix(".timeindex").read_bytes() == times, path
