"""AlterReplicaLogDirs: replicas that move between the log directories of one broker."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.group_client import GroupClient
from support.raw_client import batch_of
from support.waiting import LIMIT, comes_true, until

from tidelog import files
from tidelog.broker.broker import Broker
from tidelog.errors import ErrorCode
from tidelog.log.flush import Flush
from tidelog.new_topic import NewTopic
from tidelog.partition import log_dir_moves
from tidelog.testing import LocalBroker
from tidelog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tidelog.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


class Client(GroupClient):
    def move(self, path: Path | str, topic: str = "t", index: int = 0) -> int:
        rows = [AlterReplicaLogDirTopic(name=topic, partitions=[index])]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=rows)])
        answer = self.call(request, AlterReplicaLogDirsResponse, 2)
        (row,) = answer.results[0].partitions
        assert (answer.results[0].topic_name, row.partition_index) == (topic, index)
        return int(row.error_code)

    def where(self, topic: str = "t") -> dict[str, list[tuple[int, bool]]]:
        """Directory -> partitions of the topic, and whether they are on their way."""
        request = DescribeLogDirsRequest(topics=None)
        answer = self.call(request, DescribeLogDirsResponse, 4)
        found: dict[str, list[tuple[int, bool]]] = {}
        for result in answer.results:
            rows = [p for row in result.topics if row.name == topic for p in row.partitions]
            found[os.path.basename(result.log_dir)] = [
                (row.partition_index, row.is_future_key) for row in rows
            ]
            for row in rows:
                assert row.is_future_key == (row.offset_lag > 0)
        return found

    def limit(self, rate: int) -> None:
        row = AlterableConfig(name=RATE, config_operation=0, value=str(rate))
        resource = AlterConfigsResource(resource_type=4, resource_name="0", configs=[row])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        answer = self.call(request, IncrementalAlterConfigsResponse, 1)
        assert answer.responses[0].error_code == 0


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "one", tmp_path / "two"


@pytest.fixture
def broker(tmp_path: Path, directories: tuple[Path, Path]):
    settings = {"log.dirs": ",".join(map(str, directories)), "log.retention.ms": -1}
    with LocalBroker(settings, data=tmp_path / "unused") as running:
        yield running


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("t-"))


def test_a_replica_moves_while_it_is_written_and_read(broker, directories) -> None:
    one, two = directories
    with Client(broker.port) as client:
        client.create_topic("t", segment_bytes=1 << 20)
        sent = [b"%d " % i + bytes(100_000) for i in range(60)]
        for value in sent[:30]:
            assert client.produce("t", batch_of(value)).error_code == 0
        assert client.where() == {"one": [(0, False)], "two": []}
        client.limit(1)
        assert client.move(two) == 0
        assert client.move(two) == 0  # it does already
        until(lambda: client.where() == {"one": [(0, False)], "two": [(0, True)]}, "the copy")
        # Asked to stay where it is, it does not move.
        assert client.move(one) == 0
        until(lambda: names(two) == [], "the copy to go")
        assert client.where() == {"one": [(0, False)], "two": []}
        assert client.move(two) == 0

        def write() -> None:
            with Client(broker.port) as writer:
                for value in sent[30:]:
                    assert writer.produce("t", batch_of(value)).error_code == 0

        writing = threading.Thread(target=write)
        writing.start()
        client.limit(10**9)
        until(lambda: client.where() == {"one": [], "two": [(0, False)]}, "the move")
        writing.join()
        assert client.read_values("t") == sent
        until(lambda: names(one) == [], "the old directory to go")
        until(lambda: not (two / "t-0" / "moved-here").exists(), "the end of the move")
        client.produce("t", batch_of(b"after"))
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            with Client(broker.port) as again:
                assert again.read_values("t") == [*sent, b"after"]
                assert again.where() == {"one": [], "two": [(0, False)]}
    assert names(two) == ["t-0"]


def test_what_cannot_be_moved(broker, directories) -> None:
    """The codes of Kafka 4.3."""
    one, _ = directories
    with Client(broker.port) as client:
        client.create_topic("t")
        for path in ("/no/such/directory", "one", f"{one}/", ""):
            assert client.move(path) == ErrorCode.LOG_DIR_NOT_FOUND
        assert client.move("/no/such/directory", "other") == ErrorCode.LOG_DIR_NOT_FOUND
        for topic, index in (("other", 0), ("../../x", 0), ("t", 9), ("t", -1)):
            assert client.move(one, topic, index) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.move(one) == 0  # there it is


def test_a_topic_that_is_deleted_on_its_way(broker, directories) -> None:
    _, two = directories
    with Client(broker.port) as client:
        client.limit(1)
        client.create_topic("t")
        for _ in range(3):
            client.produce("t", batch_of(bytes(1_000_000)))
        assert client.move(two) == 0
        until(lambda: client.where()["two"] == [(0, True)], "the copy")
        client.delete_topic("t")
        until(lambda: names(two) == [], "the copy to go")
        assert client.where() == {"one": [], "two": []}


def in_process(directories: Iterable[Path]) -> dict[str, str]:
    return {
        "log.dirs": ",".join(map(str, directories)),
        "listeners": "PLAINTEXT://127.0.0.1:0",
    }


async def test_back_before_the_old_directory_is_gone(tmp_path, directories, monkeypatch) -> None:
    """A crash must find one copy that counts, the newer: the second move waits for the first."""
    events: list[str] = []
    removing, go_on, crashed = threading.Event(), threading.Event(), threading.Event()

    def slow_removal(path: str) -> None:
        if path.endswith("-delete") and not removing.is_set():
            removing.set()
            assert go_on.wait(LIMIT)
            events.append("the first directory is gone")
        shutil.rmtree(path, ignore_errors=True)

    class Noted(log_dir_moves.Move):
        def begin(self) -> None:
            events.append("a move begins")
            super().begin()

        def sync(self) -> None:
            assert len(events) < 3 or crashed.wait(LIMIT)
            super().sync()

    monkeypatch.setattr(files, "remove_tree", slow_removal)
    monkeypatch.setattr(log_dir_moves, "Move", Noted)
    async with Broker(in_process(directories)) as broker:
        await broker.controller.create_topic(NewTopic("t"))
        partition = broker.replicas.partitions["t", 0]
        log = partition.log

        def write() -> None:
            partition.require_leader().append(
                memoryview(bytearray(batch_of(b"x"))), 9, broker.clock.now_ms()
            )

        write()
        first = os.path.dirname(log.directory)
        (other,) = {str(path) for path in directories} - {first}
        broker.log_dir_moves.move(partition, other)
        await comes_true(removing.is_set, "the removal of the old directory")
        assert os.path.dirname(log.directory) == other
        assert not os.path.exists(os.path.join(log.directory, "moved-here"))
        broker.log_dir_moves.move(partition, first)
        broker.log_dir_moves.move(partition, other)  # no, stay
        broker.log_dir_moves.move(partition, first)
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        await comes_true(lambda: os.path.dirname(log.directory) == first, "the second move")
        assert events[:3] == ["a move begins", "the first directory is gone", "a move begins"]
        write()
        log.flush()
        copies = [tmp_path / f"crashed-{path.name}" for path in directories]
        for path, copy in zip(directories, copies, strict=True):
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns(".lock"))
        crashed.set()
    async with Broker(in_process(copies)) as broker:
        assert broker.replicas.partitions["t", 0].log.end_offset == 2


async def test_few_are_copied_at_once(directories, monkeypatch) -> None:
    under_way: set[object] = set()
    most = 0

    class Noted(log_dir_moves.Move):
        def begin(self) -> None:
            nonlocal most
            under_way.add(self)
            most = max(most, len(under_way))
            super().begin()

        def finish(self) -> bool:
            under_way.discard(self)
            return super().finish()

    monkeypatch.setattr(log_dir_moves, "Move", Noted)
    async with Broker(in_process(directories)) as broker:
        await broker.controller.create_topic(NewTopic("t", partitions=12))
        partitions = [broker.replicas.partitions["t", index] for index in range(12)]
        for partition in partitions:
            broker.log_dir_moves.move(partition, str(directories[1]))
        parents = (os.path.dirname(partition.log.directory) for partition in partitions)
        assert str(directories[0]) in parents
        await comes_true(lambda: not broker.log_dir_moves.moves, "all moves")
        assert {os.path.dirname(p.log.directory) for p in partitions} == {str(directories[1])}
        assert most <= 4


async def test_a_move_waits_for_a_flush_without_holding_up_others(directories, monkeypatch) -> None:
    """One that has not begun is put off; one under way is waited for, beside other work."""
    go_on = threading.Event()
    timed_out: list[str] = []

    def hold() -> None:
        if not go_on.wait(LIMIT):
            timed_out.append("the event loop did nothing else")

    async with Broker(in_process(directories)) as broker:
        await broker.controller.create_topic(NewTopic("t"))
        replicas = broker.replicas
        partition = replicas.partitions["t", 0]
        log = partition.log

        def write() -> None:
            partition.require_leader().append(
                memoryview(bytearray(batch_of(b"x"))), 9, broker.clock.now_ms()
            )

        async def flushed() -> None:
            await comes_true(lambda: log.recovery_point == log.end_offset, "the flush")

        write()
        others = asyncio.create_task(replicas.flushes.in_thread(hold))
        replicas.flushes.later(partition, 0)
        await comes_true(lambda: partition in replicas.flushes._syncing, "a flush that waits")
        first = os.path.dirname(log.directory)
        (other,) = {str(path) for path in directories} - {first}
        broker.log_dir_moves.move(partition, other)
        await comes_true(lambda: os.path.dirname(log.directory) == other, "the move")
        assert not go_on.is_set()
        assert not timed_out
        go_on.set()
        await others
        await flushed()
        await comes_true(lambda: not broker.log_dir_moves._latest, "its end")

        go_on.clear()
        carry_out, begun = Flush.carry_out, threading.Event()

        def slow(flush: Flush) -> None:
            begun.set()
            hold()
            carry_out(flush)

        monkeypatch.setattr(Flush, "carry_out", slow)
        write()
        replicas.flushes.later(partition, 0)
        await comes_true(begun.is_set, "a flush")
        broker.log_dir_moves.move(partition, first)
        await comes_true(lambda: partition in replicas.flushes._held, "all to be copied")
        write()
        replicas.flushes.later(partition, 0)
        assert os.path.dirname(log.directory) == other
        go_on.set()
        await comes_true(lambda: os.path.dirname(log.directory) == first, "the move back")
        await flushed()
        assert log.end_offset == 3
        assert not timed_out
