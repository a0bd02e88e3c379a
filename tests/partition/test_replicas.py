"""Partitions that go while something is still to be done for them; flushes that meet."""

import errno
import threading
import weakref
from contextlib import asynccontextmanager

import pytest
from support.raw_client import batch_of, now_ms
from support.waiting import comes_true

from tidelog import files
from tidelog.broker.broker import Broker
from tidelog.errors import ApiError, ErrorCode
from tidelog.log.flush import Flush
from tidelog.new_topic import NewTopic


async def test_retention_never_touches_a_topic_that_was_made_again(tmp_path):
    """The old partition's log works by path, and the path has a new owner."""
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings) as broker:
        config = {"retention.ms": "1000"}
        await broker.controller.create_topic(NewTopic("t", config=config))
        old = broker.replicas.partitions["t", 0]
        batch = memoryview(bytearray(batch_of(b"old", timestamp=now_ms() - 60_000)))
        old.require_leader().append(batch, 9, now_ms())
        await broker.controller.delete_topic("t")
        await broker.controller.create_topic(NewTopic("t"))
        new = broker.replicas.partitions["t", 0]
        new.require_leader().append(memoryview(bytearray(batch_of(b"new"))), 9, now_ms())
        before = sorted(path.name for path in (tmp_path / "t-0").iterdir())
        broker.replicas.apply_retention(old)
        assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == before


class SlowDisk:
    """Every fdatasync of another thread waits for ``go``; they never overlap on one file."""

    def __init__(self, monkeypatch):
        self.go, self.begun = threading.Event(), threading.Event()
        self.error = None  # what the one that waits fails with
        self.calls = 0
        self._real, self._in_flight = files.fdatasync, set()
        monkeypatch.setattr(files, "fdatasync", self._fdatasync)

    def _fdatasync(self, fd):
        assert fd not in self._in_flight, "two flushes of one file"
        self._in_flight.add(fd)
        try:
            if threading.current_thread() is not threading.main_thread():
                self.begun.set()
                assert self.go.wait(100)
                error, self.error = self.error, None
                if error:
                    raise error
            self.calls += 1
            self._real(fd)
        finally:
            self._in_flight.discard(fd)

    def release_soon(self):
        threading.Timer(0.05, self.go.set).start()


def put(partition, value=b"x"):
    return partition.require_leader().append(memoryview(bytearray(batch_of(value))), 9, now_ms())


@asynccontextmanager
async def with_broker(tmp_path, **config):
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings) as broker:
        await broker.controller.create_topic(NewTopic("t", config=config))
        yield broker.replicas, broker.replicas.partitions["t", 0]


@pytest.mark.parametrize("fails", [False, True], ids=["that works", "that fails"])
async def test_who_flushes_now_waits_for_the_flush_in_flight(tmp_path, monkeypatch, fails):
    """If that one fails, its error is not missed: the kernel reports it only once."""
    async with with_broker(tmp_path) as (replicas, partition):
        disk = SlowDisk(monkeypatch)
        put(partition)
        replicas.flushes.later(partition, 0)
        await comes_true(disk.begun.is_set)
        put(partition)
        if fails:
            disk.error = OSError(errno.EIO, "Input/output error")
        positions = []
        real = files.pwrite
        monkeypatch.setattr(files, "pwrite", lambda *args: positions.append(args[2]) or real(*args))
        disk.release_soon()
        replicas.flushes.now(partition)
        assert partition.log.recovery_point == 2
        assert not partition.log.flush_failed
        assert len(positions) == (2 if fails else 0), "both batches are written again"


async def test_who_flushes_now_does_not_wait_for_other_logs(tmp_path, monkeypatch):
    async with with_broker(tmp_path) as (replicas, partition):
        go = threading.Event()
        replicas.flushes._thread.submit(go.wait, 30)  # the flush of another log
        put(partition)
        replicas.flushes.later(partition, 0)
        await comes_true(lambda: replicas.flushes._syncing)
        replicas.flushes.now(partition)
        assert partition.log.recovery_point == 1
        go.set()


async def test_a_flush_that_is_wanted_during_a_flush_comes_after_it(tmp_path, monkeypatch):
    async with with_broker(tmp_path) as (replicas, partition):
        disk = SlowDisk(monkeypatch)
        put(partition)
        replicas.flushes.later(partition, 0)
        await comes_true(disk.begun.is_set)
        put(partition)
        for _ in range(3):
            replicas.flushes.later(partition, 0)
        await comes_true(lambda: replicas.flushes._waiting[partition] is None)
        assert partition.log.recovery_point == 0
        disk.go.set()
        await comes_true(lambda: partition.log.recovery_point == 2)


async def test_a_partition_whose_records_the_kernel_dropped(tmp_path, monkeypatch):
    """It takes no more until a restart; what was flushed is there then."""
    async with with_broker(tmp_path) as (replicas, partition):
        put(partition)
        replicas.flushes.now(partition)
        put(partition)
        disk = SlowDisk(monkeypatch)
        disk.error = OSError(errno.EIO, "Input/output error")
        disk.go.set()
        replicas.flushes.later(partition, 0)
        await comes_true(lambda: partition.log.flush_failed)
        put(partition)  # without settings that promise a flush, writing goes on
        path = tmp_path / "t-0" / "00000000000000000000.log"
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 3] + bytes(len(data) - len(data) // 3))
        replicas.flushes.later(partition, 0)
        await comes_true(lambda: partition.log.lost_records)
        with pytest.raises(ApiError, match="restart the broker") as refused:
            put(partition)
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        replicas.log_dirs.failed.clear()  # the disk works, and for others that is enough
        assert replicas.storage_code(("t", 0)) == ErrorCode.KAFKA_STORAGE_ERROR

    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings) as broker:
        partition = broker.replicas.partitions["t", 0]
        assert partition.log.end_offset == 1
        assert put(partition).base_offset == 1


async def test_a_log_that_is_cut_during_a_flush_is_flushed_again(tmp_path, monkeypatch):
    """After a flush that failed, the controller is told of a sick disk until one went well."""
    async with with_broker(tmp_path) as (replicas, partition):
        disk = SlowDisk(monkeypatch)
        put(partition)
        put(partition)
        partition.log.flush_failed = True
        replicas.flushes.later(partition, 0)
        await comes_true(disk.begun.is_set)
        assert replicas.storage_code(("t", 0)) == ErrorCode.KAFKA_STORAGE_ERROR
        partition.log.truncate_to(1)
        disk.go.set()
        await comes_true(lambda: not partition.log.flush_failed)
        assert replicas.storage_code(("t", 0)) == ErrorCode.NONE


async def test_many_partitions_are_made_in_turns(tmp_path):
    """Others are served meanwhile, and who asks for one gets it at once."""
    async with with_broker(tmp_path) as (replicas, _):
        broker = replicas._config_of.__self__
        await broker.controller.create_topic(NewTopic("many", 500))
        assert len(replicas.partitions) < 400, "not all in one go"
        last = replicas.find("many", 499)
        assert put(last).base_offset == 0
        doomed = len(replicas.partitions)
        await comes_true(lambda: len(replicas.partitions) > doomed)
        await broker.controller.create_topic(NewTopic("more", 300))
        await comes_true(lambda: len(replicas.partitions) == 1 + 500 + 300)
        assert replicas.partitions["many", 499] is last
        assert not replicas._offline
        await broker.controller.create_topic(NewTopic("gone", 300))
        await broker.controller.delete_topic("gone")
        await comes_true(lambda: not replicas._to_create)
        assert len(replicas.partitions) == 1 + 500 + 300
    assert not list(tmp_path.glob("gone-*[0-9]"))


async def test_flushes_by_the_clock_go_on_after_a_flush_that_did_not_wait(tmp_path, monkeypatch):
    """One was to follow the flush in flight, and is not needed any more."""
    async with with_broker(tmp_path) as (replicas, partition):
        disk = SlowDisk(monkeypatch)
        put(partition)
        replicas.flushes.later(partition, 0)
        await comes_true(disk.begun.is_set)
        replicas.flushes.later(partition, 0)
        await comes_true(lambda: replicas.flushes._waiting[partition] is None)
        disk.release_soon()
        replicas.flushes.now(partition)
        put(partition)
        replicas.flushes.later(partition, 1)
        await comes_true(lambda: partition.log.recovery_point == 2)


async def test_a_flush_that_runs_out_of_memory_is_tried_again(tmp_path, monkeypatch):
    """Any error must leave the log so that the next flush can begin."""
    async with with_broker(tmp_path) as (replicas, partition):
        put(partition)
        with monkeypatch.context() as broken:

            def no_memory(flush):
                raise MemoryError

            broken.setattr(Flush, "carry_out", no_memory)
            with pytest.raises(MemoryError):
                replicas.flushes.now(partition)
        assert partition.log.flush_failed
        await comes_true(lambda: partition.log.recovery_point == 1)
        assert not partition.log.flush_failed


async def test_the_files_of_a_deleted_topic_are_closed_though_retention_saw_them(
    tmp_path, monkeypatch
):
    seen = []
    settings = {
        "log.dirs": str(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.retention.check.interval.ms": 1,
    }
    async with Broker(settings) as broker:
        inner = broker.replicas.apply_retention
        monkeypatch.setattr(
            broker.replicas, "apply_retention", lambda p: (inner(p), seen.append(1))
        )
        await broker.controller.create_topic(NewTopic("t"))
        partition = weakref.ref(broker.replicas.partitions["t", 0])
        await comes_true(lambda: seen)
        await broker.controller.delete_topic("t")
        await comes_true(lambda: partition() is None)
