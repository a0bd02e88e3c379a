"""Every file is Kafka's, byte for byte, as its description says."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from support.log import (
    NOW,
    append,
    check_index_files,
    expected_indexes,
    generator,
    log_config,
    log_files,
    make_batch,
    open_in,
    sized_batch,
)

from tidelog.clock import FakeClock
from tidelog.log.checkpoints import HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from tidelog.log.log import Log
from tidelog.log.manager import LogManager
from tidelog.wire.uuids import parse_uuid


def fill(log: Log, count: int = 120) -> None:
    """Batches of all sizes, with times that go back and forth."""
    rng = generator("fill")
    for i in range(count):
        values = [rng.randbytes(rng.randrange(300)) for _ in range(rng.randint(1, 5))]
        append(log, make_batch(values, [NOW + i * 10 + rng.randrange(-50, 50) for _ in values]))


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_names_of_a_fresh_log(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    append(log)
    assert names(tmp_path) == {"00000000000000000000.log", "leader-epoch-checkpoint"}
    log.close()
    stem = "00000000000000000000"
    assert names(tmp_path) == {
        f"{stem}.log",
        f"{stem}.index",
        f"{stem}.timeindex",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
    }


def test_the_log_file_is_the_batches_and_nothing_else(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    expected = b""
    for i in range(5):
        batch = make_batch([b"v" * i] * 3)
        append(log, batch, epoch=7)
        placed = bytearray(batch)
        struct.pack_into(">q", placed, 0, 3 * i)
        struct.pack_into(">i", placed, 12, 7)
        expected += bytes(placed)
    assert (tmp_path / "00000000000000000000.log").read_bytes() == expected


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_indexes(tmp_path: Path, interval: int) -> None:
    log = open_in(tmp_path, log_config(index_interval_bytes=interval, segment_bytes=20_000))
    fill(log)
    assert len(log.segments) > 2
    log.flush()
    check_index_files(tmp_path, interval, active_closed=False)
    log.close()
    check_index_files(tmp_path, interval, active_closed=True)


def test_an_entry_comes_after_more_than_4096_bytes(tmp_path: Path) -> None:
    """4096 bytes before a batch are not enough, 4097 are."""
    log = open_in(tmp_path)
    for size in (2048, 2048, 100, 4000):
        append(log, sized_batch(size))
    log.flush()
    index = (tmp_path / "00000000000000000000.index").read_bytes()
    assert index == struct.pack(">ii", 3, 2048 + 2048 + 100)


def test_index_offsets_are_relative(tmp_path: Path) -> None:
    log = open_in(tmp_path, log_config(index_interval_bytes=0), log_start_offset=2**40)
    for i in range(3):
        append(log, make_batch([b"a", b"b"], NOW + i))
    log.close()
    size = log.size // 3
    stem = tmp_path / f"{2**40:020d}.log"
    assert stem.with_suffix(".index").read_bytes() == struct.pack(">iiii", 3, size, 5, 2 * size)
    expected = struct.pack(">qiqi", NOW + 1, 3, NOW + 2, 5)
    assert stem.with_suffix(".timeindex").read_bytes() == expected


def test_the_time_index_is_completed_at_roll(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    append(log, make_batch([b"a"], NOW))
    append(log, make_batch([b"b"], NOW - 5))
    log.roll(NOW)
    closed = tmp_path / "00000000000000000000.timeindex"
    assert closed.read_bytes() == struct.pack(">qi", NOW, 0)
    assert (tmp_path / "00000000000000000000.index").read_bytes() == b""


def test_indexes_go_on_after_a_clean_restart(tmp_path: Path) -> None:
    """The cadence is kept across a restart; only the time index has one more entry."""
    config = log_config(index_interval_bytes=500)
    log = open_in(tmp_path, config)
    rng = generator("cadence")
    for i in range(60):
        append(log, make_batch([rng.randbytes(rng.randrange(200))], NOW + i))
        if i % 7 == 0:
            log.close()
            log = open_in(tmp_path, config)
    log.close()
    path = log_files(tmp_path)[0]
    offsets, times = expected_indexes(path, 500, closed=True)
    assert path.with_suffix(".index").read_bytes() == offsets
    found = path.with_suffix(".timeindex").read_bytes()
    entries = {found[i : i + 12] for i in range(0, len(found), 12)}
    assert entries >= {times[i : i + 12] for i in range(0, len(times), 12)}
    assert list(struct.iter_unpack(">qi", found)) == sorted(struct.iter_unpack(">qi", found))


def test_snapshot(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    append(log, make_batch([b"a", b"b"], NOW + 1, producer=(4001, 3, 10)))
    append(log, make_batch([b"c"], NOW + 2, producer=(4000, 0, 0)))
    log.roll(NOW)
    body = struct.pack(">i", 2)
    body += struct.pack(">qhiqiqiq", 4001, 3, 11, 1, 1, NOW + 1, -1, -1)
    body += struct.pack(">qhiqiqiq", 4000, 0, 0, 2, 0, NOW + 2, -1, -1)
    expected = struct.pack(">hI", 1, crc32c(body)) + body
    assert (tmp_path / "00000000000000000003.snapshot").read_bytes() == expected


def test_snapshots_do_not_pile_up(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    for i in range(20):
        append(log, make_batch([b"a"], producer=(1, 0, i)))
        if i % 5 == 4:
            log.roll(NOW)
        log.close()
        log = open_in(tmp_path)
    found = {int(path.stem) for path in tmp_path.glob("*.snapshot")}
    assert found <= {segment.base_offset for segment in log.segments} | {log.end_offset}


def test_leader_epochs(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    append(log, epoch=0)
    append(log, epoch=0)
    append(log, epoch=3)
    text = (tmp_path / "leader-epoch-checkpoint").read_text()
    assert text == "0\n2\n0 0\n3 2\n"


def test_checkpoints_and_identity(tmp_path: Path) -> None:
    manager = LogManager([str(tmp_path)], FakeClock(NOW))
    manager.open()
    cluster, topic_id = "Qm9rbXlja2V0c2J1cmctMQ", b"0123456789abcdef"
    manager.identify(3, cluster)
    manager.load(lambda _: log_config(), lambda *_: None)
    for partition in range(2):
        log = manager.create("orders", partition, topic_id, log_config())
        append(log, make_batch([b"x"] * 5))
    log.advance_start(2)
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    meta = (tmp_path / "meta.properties").read_text()
    assert meta == f"version=0\nbroker.id=3\ncluster.id={cluster}\n"
    metadata = (tmp_path / "orders-1" / "partition.metadata").read_text()
    assert metadata.startswith("version: 0\ntopic_id: ")
    assert parse_uuid(metadata[-22:]) == topic_id
    manager.close(broker_epoch=12)
    assert (tmp_path / RECOVERY_POINT).read_text() == "0\n2\norders 0 5\norders 1 5\n"
    assert (tmp_path / HIGH_WATERMARK).read_text() == "0\n2\norders 0 5\norders 1 5\n"
    assert (tmp_path / LOG_START).read_text() == "0\n1\norders 1 2\n"
    mark = (tmp_path / ".kafka_cleanshutdown").read_text()
    assert mark.replace(" ", "") == '{"version":0,"brokerEpoch":12}'
    assert not list(tmp_path.glob("*.tmp"))
