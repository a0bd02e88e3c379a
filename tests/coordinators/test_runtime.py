"""What a shard does between a coordinator and its log: batches, replicas that are slow, the end."""

import asyncio
from types import SimpleNamespace

from tidelog.clock import SystemClock
from tidelog.coordinators.runtime import Shard
from tidelog.errors import ErrorCode
from tidelog.wire.batch import read_header


class SlowPartition:
    """A partition whose followers get on when a test says so."""

    topic, index, leader_epoch, deleted, in_sync = "__consumer_offsets", 0, 3, False, 2
    log = SimpleNamespace(config=SimpleNamespace(min_insync_replicas=1))

    def __init__(self):
        self.end = self.high_watermark = 0
        self.batches = []
        self.watching = set()

    def append(self, batch, version, now_ms, *, own):
        assert own
        header = read_header(batch)
        self.batches.append(header.record_count)
        self.end += header.record_count
        return SimpleNamespace(last_offset=self.end - 1)

    def watch(self, wake):
        self.watching.add(wake)

    def unwatch(self, wake):
        self.watching.discard(wake)

    def replicated_to(self, offset):
        self.high_watermark = offset
        for wake in list(self.watching):
            wake()


class Writer:
    """Writes to a shard, and hears in what order the writes are done."""

    def __init__(self, ack_timeout_ms=60_000):
        self.partition = SlowPartition()
        self.shard = Shard(self.partition, SystemClock(), ack_timeout_ms)
        self.heard = []
        self._news = asyncio.Event()

    def write(self, name, records=1):
        def done(error):
            self.heard.append((name, error))
            self._news.set()

        self.shard.write([(b"key", b"value", ())] * records, done)

    async def hear(self, count):
        while len(self.heard) < count:
            self._news.clear()
            await self._news.wait()
        return self.heard


def test_what_comes_together_shares_a_batch_and_is_told_when_it_is_safe():
    async def run():
        writer = Writer()
        writer.write("a")
        writer.write("b", records=2)
        await asyncio.sleep(0)
        writer.write("c")
        await asyncio.sleep(0)
        assert writer.partition.batches == [3, 1]
        assert writer.heard == []
        writer.partition.replicated_to(3)
        assert await writer.hear(2) == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
        writer.partition.replicated_to(4)
        assert await writer.hear(3) == [(name, ErrorCode.NONE) for name in "abc"]
        assert not writer.partition.watching

    asyncio.run(run())


def test_replicas_that_are_too_slow():
    async def run():
        writer = Writer(ack_timeout_ms=20)
        gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
        writer.write("a")
        assert await writer.hear(1) == [("a", gone)]
        # The next ones have their own time, however many there are.
        for name in "bcd":
            writer.write(name)
            await asyncio.sleep(0)
        assert await writer.hear(4) == [(name, gone) for name in "abcd"]
        assert not writer.partition.watching

    asyncio.run(run())


def test_one_timer_for_any_number_of_batches():
    async def run():
        writer = Writer()
        for name in range(100):
            writer.write(name)
            await asyncio.sleep(0)
        assert len(asyncio.get_running_loop()._scheduled) == 1
        writer.shard.close(ErrorCode.NOT_COORDINATOR)
        assert writer.heard == [(name, ErrorCode.NOT_COORDINATOR) for name in range(100)]

    asyncio.run(run())


def test_too_few_replicas():
    async def run():
        writer = Writer()
        writer.partition.in_sync = 0
        writer.write("a")
        assert await writer.hear(1) == [("a", ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        assert writer.partition.batches == []

    asyncio.run(run())
