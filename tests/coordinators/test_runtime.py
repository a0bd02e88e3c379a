"""The writer between a coordinator and its log: batches, slow replicas, lost leadership."""

import asyncio
from types import SimpleNamespace

import pytest

from tidelog.clock import SystemClock
from tidelog.coordinators.groups.records import SERDE
from tidelog.coordinators.runtime import CoordinatorRuntime
from tidelog.coordinators.writer import PartitionWriter
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.partition.purgatory import Watchers
from tidelog.wire.batch import read_header


class SlowLeader:
    """Leads a partition whose followers get on when a test says so."""

    in_sync, min_in_sync = 2, 1

    def __init__(self, partition, epoch=3):
        self.partition = partition
        self.epoch = epoch
        self.batches = []

    @property
    def leads(self):
        return self.partition.leader is self

    def append(self, batch, version, now_ms, *, acks, own):
        assert (acks, own) == (-1, True)
        if self.in_sync < self.min_in_sync:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        count = read_header(batch).record_count
        self.batches.append(count)
        self.partition.log.end_offset += count
        return SimpleNamespace(last_offset=self.partition.log.end_offset - 1)


class SlowPartition:
    """A partition and its log."""

    topic, index, deleted = "__consumer_offsets", 0, False

    def __init__(self):
        self.log = SimpleNamespace(log_start_offset=0, end_offset=0, high_watermark=0)
        self.watchers = Watchers()
        self.leader = SlowLeader(self)

    @property
    def leads(self):
        return self.leader is not None

    @property
    def high_watermark(self):
        return self.log.high_watermark

    def require_leader(self):
        return self.leader

    def replicated_to(self, offset):
        self.log.high_watermark = offset
        self.watchers.wake()


class Writer:
    """Records in what order writes are done."""

    def __init__(self, ack_timeout_ms=60_000):
        self.partition = SlowPartition()
        self.leader = self.partition.leader
        self.writer = PartitionWriter(self.partition, SystemClock(), ack_timeout_ms)
        self.heard = []
        self._news = asyncio.Event()

    def write(self, name, records=1):
        def done(error):
            self.heard.append((name, error))
            self._news.set()

        self.writer.write([(b"key", b"value", ())] * records, done)

    async def hear(self, count):
        async with asyncio.timeout(20):
            while len(self.heard) < count:
                self._news.clear()
                await self._news.wait()
        return self.heard


async def test_what_comes_together_shares_a_batch_and_is_told_when_it_is_safe():
    writer = Writer()
    writer.write("a")
    writer.write("b", records=2)
    await asyncio.sleep(0)
    writer.write("c")
    await asyncio.sleep(0)
    assert writer.leader.batches == [3, 1]
    assert writer.heard == []
    writer.partition.replicated_to(3)
    assert await writer.hear(2) == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
    writer.partition.replicated_to(4)
    assert await writer.hear(3) == [(name, ErrorCode.NONE) for name in "abc"]
    assert not writer.partition.watchers.committed


async def test_a_batch_is_not_larger_than_the_topic_takes():
    """What comes together shares a batch only as far as there is room."""
    writer = Writer()
    for size in (300_000, 300_000, 100_000, 700_000, 10):
        writer.writer.write([(b"key", bytes(size), ())], lambda error: None)
    await asyncio.sleep(0)
    assert writer.leader.batches == [1, 2, 1, 1]


async def test_a_write_that_no_batch_can_hold_goes_into_several():
    """All offsets of a group, for example; it is done when the last one is."""
    writer = Writer()
    done = []
    writer.writer.write([(b"key", bytes(100_000), ())] * 12, done.append, in_one_batch=False)
    await asyncio.sleep(0)
    assert writer.leader.batches == [5, 5, 2]
    writer.partition.replicated_to(10)
    await asyncio.sleep(0)
    assert done == []
    writer.write("next")
    await asyncio.sleep(0)
    writer.partition.replicated_to(13)
    assert await writer.hear(1) == [("next", ErrorCode.NONE)]
    assert done == [ErrorCode.NONE]
    writer.writer.write([(b"key", bytes(100_000), ())] * 12, done.append, in_one_batch=False)
    await asyncio.sleep(0)
    writer.writer.close(ErrorCode.NOT_COORDINATOR)
    assert done == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]


async def test_a_commit_is_one_batch_however_large_it_is():
    """Half of the offsets of a commit must not be there after an error."""
    writer = Writer()
    writer.writer.write([(b"key", bytes(100_000), ())] * 12, lambda error: None)
    await asyncio.sleep(0)
    assert writer.leader.batches == [12]


async def test_replicas_that_are_too_slow():
    writer = Writer(ack_timeout_ms=20)
    gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
    writer.write("a")
    assert await writer.hear(1) == [("a", gone)]
    # The next ones have their own time, however many there are.
    for name in "bcd":
        writer.write(name)
        await asyncio.sleep(0)
    assert await writer.hear(4) == [(name, gone) for name in "abcd"]
    assert not writer.partition.watchers.committed


async def test_writes_that_wait_when_leadership_goes():
    writer = Writer()
    for name in range(100):
        writer.write(name)
        await asyncio.sleep(0)
    writer.writer.close(ErrorCode.NOT_COORDINATOR)
    assert writer.heard == [(name, ErrorCode.NOT_COORDINATOR) for name in range(100)]
    assert not writer.partition.watchers.committed


async def test_too_few_replicas():
    writer = Writer()
    writer.leader.in_sync = 0
    writer.write("a")
    assert await writer.hear(1) == [("a", ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    assert writer.leader.batches == []


async def test_what_may_be_told():
    """Not what others may know better; but if nobody else is in sync, nobody does."""
    writer = Writer()
    writer.write("a")
    await asyncio.sleep(0)
    assert not writer.writer.all_committed
    writer.writer.when_committed(lambda error: writer.heard.append(("asked", error)))
    assert writer.heard == []
    writer.leader.in_sync = 1
    assert writer.writer.all_committed
    writer.writer.when_committed(lambda error: writer.heard.append(("alone", error)))
    assert writer.heard == [("alone", ErrorCode.NONE)]
    writer.leader.in_sync = 2
    writer.partition.replicated_to(1)
    assert writer.writer.all_committed
    assert await writer.hear(3) == [
        ("alone", ErrorCode.NONE),
        ("a", ErrorCode.NONE),
        ("asked", ErrorCode.NONE),
    ]


@pytest.mark.parametrize("again", [False, True])
async def test_what_another_leader_wrote_is_not_taken_for_ours(again):
    writer = Writer()
    writer.write("a")
    await asyncio.sleep(0)
    # It is a follower now, or it was one meanwhile.
    writer.partition.leader = SlowLeader(writer.partition, 4) if again else None
    writer.partition.replicated_to(1)
    assert await writer.hear(1) == [("a", ErrorCode.NOT_COORDINATOR)]
    writer.write("b")
    assert (await writer.hear(2))[1] == ("b", ErrorCode.NOT_COORDINATOR)
    assert writer.leader.batches == [1]


class Shard:
    """Remembers what happens to it."""

    def __init__(self, writer, timer):
        self.writer, self.error = writer, None

    def loaded(self):
        pass

    def unload(self, error):
        self.error = error


def test_leadership_that_moves_before_clients_are_told():
    partition = SlowPartition()
    info = PartitionInfo(1, 3, (1, 2), (1, 2))
    topic = TopicInfo(partition.topic, bytes(16), (info,))
    metadata = ClusterMetadata().with_topic(topic)
    runtime = CoordinatorRuntime(
        partition.topic,
        Shard,
        SERDE,
        clock=SystemClock(),
        spawn=lambda work: None,
        open_partition=lambda topic, index: partition,
        broker_id=1,
        ack_timeout_ms=1000,
    )
    partitions = {(partition.topic, 0): partition}
    runtime.apply(metadata, partitions)
    first = runtime.shard("g")
    # Another broker leads for a moment; the metadata still says that we do.
    partition.leader = None
    runtime.leadership_changed(0, partition)
    assert first.error == ErrorCode.NOT_COORDINATOR
    with pytest.raises(ApiError):
        runtime.shard("g")
    runtime.apply(metadata, partitions)
    with pytest.raises(ApiError):
        runtime.shard("g")
    partition.leader = SlowLeader(partition, 5)
    runtime.leadership_changed(0, partition)
    second = runtime.shard("g")
    assert (second is not first, second.writer.leader.epoch) == (True, 5)
    runtime.apply(metadata, partitions)
    assert runtime.shard("g") is second
