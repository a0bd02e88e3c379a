"""What happens meanwhile, while another process opens a batch."""

import asyncio
import contextlib
import gc
import signal
import weakref

import cramjam
import pytest
from support.raw_client import RawClient, batch_of, many, now_ms, sealed, values_of
from support.waiting import comes_true

from tidelog.broker.broker import Broker
from tidelog.clock import FakeClock
from tidelog.errors import ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.wire.batch import is_valid, read_header
from tidelog.wire.compression import Codec
from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.messages.produce import ProduceResponse
from tidelog.wire.primitives import varint
from tidelog.wire.records import encode_batch

CONFIG = {"cleanup.policy": "compact"}


@contextlib.asynccontextmanager
async def running(tmp_path):
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings) as broker:
        await broker.controller.create_topic(NewTopic("t", config=CONFIG))
        yield broker


class Producer:
    """Sends one batch that is opened elsewhere, and waits for its answer."""

    def __init__(self, broker, acks=1, *batches):
        self.broker = broker
        self.request = RawClient.produce_request("t", many(1100), acks=acks, timeout_ms=10**8)
        if batches:
            rows = [RawClient.produce_request(*row).topic_data[0] for row in batches]
            self.request.topic_data = rows

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.broker.port)
        self.writer.write(encode_request(self.request, 9, 1, "test"))
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    async def error(self):
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        _, answer = decode_response(ProduceResponse, 9, await self.reader.readexactly(size))
        return answer.responses[0].partition_responses[0].error_code


async def waiting_for_its_turn(broker):
    await comes_true(lambda: broker.offload._turn._waiters, "a batch that waits to be opened")


async def test_the_topic_is_deleted(tmp_path):
    async with running(tmp_path) as broker:
        await broker.offload._turn.acquire()
        async with Producer(broker) as producer:
            await waiting_for_its_turn(broker)
            await broker.controller.delete_topic("t")
            broker.offload._turn.release()
            assert await producer.error() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_another_broker_leads(tmp_path):
    async with running(tmp_path) as broker:
        await broker.offload._turn.acquire()
        async with Producer(broker) as producer:
            await waiting_for_its_turn(broker)
            broker.replicas.partitions["t", 0].leader = None
            broker.offload._turn.release()
            assert await producer.error() == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("acks", "appended"), [(0, 1100), (1, 0), (-1, 0)])
async def test_the_client_goes(tmp_path, acks, appended):
    """With acks=0 it takes for written what it has sent; else it sends it again."""
    async with running(tmp_path) as broker:
        log = broker.replicas.partitions["t", 0].log
        await broker.offload._turn.acquire()
        async with Producer(broker, acks):
            await waiting_for_its_turn(broker)
        await comes_true(lambda: not broker.server.connections)
        broker.offload._turn.release()
        await comes_true(lambda: log.end_offset == appended and not broker.offload._turn.locked())
        async with Producer(broker) as producer:
            assert await producer.error() == 0
        assert log.end_offset == appended + 1100


async def test_the_settings_of_the_topic_change(tmp_path):
    """A batch is opened again, by the rules that hold now."""
    async with running(tmp_path) as broker:
        await broker.offload._turn.acquire()
        async with Producer(broker) as producer:
            await waiting_for_its_turn(broker)
            config = {**CONFIG, "compression.type": "gzip"}
            await broker.controller.set_topic_config("t", config)
            broker.offload._turn.release()
            assert await producer.error() == 0
        (batch,) = broker.replicas.partitions["t", 0].log.batches(0)
        assert batch[22] == 1
        assert len(values_of(batch)) == 1100


async def test_the_process_is_lost(tmp_path):
    async with running(tmp_path) as broker:
        async with Producer(broker) as producer:
            assert await producer.error() == 0
        broker.offload._process.kill()
        async with Producer(broker) as producer:
            first = await producer.error()
        assert first in (0, ErrorCode.KAFKA_STORAGE_ERROR)
        async with Producer(broker) as producer:
            assert await producer.error() == 0


async def test_the_process_hangs(tmp_path, caplog):
    """It is killed and replaced, and the client is told to send the batch again."""
    async with running(tmp_path) as broker:
        async with Producer(broker) as producer:
            assert await producer.error() == 0
        stopped = broker.offload._process
        stopped.send_signal(signal.SIGSTOP)
        broker.offload.seconds = 0.1
        async with Producer(broker) as producer:
            assert await producer.error() == ErrorCode.KAFKA_STORAGE_ERROR
        assert stopped.returncode == -signal.SIGKILL
        assert "the process that checks large batches has not answered for 0.1 s" in caplog.text
        broker.offload.seconds = 100
        async with Producer(broker) as producer:
            assert await producer.error() == 0


def with_headers(count):
    record = b"\0\0\0\x02k\x01" + varint(count) + b"\0\x01" * count
    return sealed(bytes(cramjam.zstd.compress(varint(len(record)) + record)), 1)


async def test_short_jobs_do_not_wait_for_long_ones(tmp_path):
    """Also if those came first."""
    async with running(tmp_path) as broker:
        broker.offload.short_cpu_seconds = 0.03
        broker.offload.cpu_seconds = broker.offload.seconds = 100
        log = broker.replicas.partitions["t", 0].log
        await broker.offload._turn.acquire()
        async with contextlib.AsyncExitStack() as stack:
            producers = []
            for batch in with_headers(1_000_000), with_headers(1_000_000), many(1100):
                producer = Producer(broker, 1, ("t", batch))
                producers.append(await stack.enter_async_context(producer))
                count = len(producers)
                await comes_true(
                    lambda count=count: len(broker.offload._turn._waiters or ()) == count
                )
            broker.offload._turn.release()
            assert [await producer.error() for producer in producers] == [0, 0, 0]
        counts = [read_header(batch).record_count for batch in log.batches(0)]
        assert counts == [1100, 1, 1]


async def test_a_batch_that_takes_too_long(tmp_path):
    """It is refused, and the process goes on with the batches of others."""
    async with running(tmp_path) as broker:
        broker.offload.cpu_seconds = 0.05
        broker.offload.seconds = 100
        async with Producer(broker, 1, ("t", with_headers(4_000_000))) as producer:
            assert await producer.error() == ErrorCode.MESSAGE_TOO_LARGE
        process = broker.offload._process
        async with Producer(broker) as producer:
            assert await producer.error() == 0
        assert broker.offload._process is process


async def test_nothing_is_kept_of_a_refused_batch(tmp_path):
    """Files of a deleted topic are closed with its last reference, and not by the collector."""
    gc.collect()
    gc.disable()
    try:
        async with running(tmp_path) as broker:
            records = encode_batch([(now_ms(), None, b"v", [])] * 1100, codec=Codec.ZSTD)
            async with Producer(broker, 1, ("t", records)) as producer:
                assert await producer.error() == ErrorCode.INVALID_RECORD
            partition = weakref.ref(broker.replicas.partitions["t", 0])
            await broker.controller.delete_topic("t")
            await comes_true(lambda: partition() is None, "the partition to be let go")
    finally:
        gc.enable()


async def test_the_buffer_of_the_connection_is_free(tmp_path):
    """A batch that waits does not keep the buffer, of up to 100 MiB, that it came in."""
    async with running(tmp_path) as broker:
        await broker.offload._turn.acquire()
        async with Producer(broker) as producer:
            await waiting_for_its_turn(broker)
            (connection,) = broker.server.connections
            connection._view.release()
            connection._buffer += b"x"  # a BufferError as long as anything refers to it
            connection._view = memoryview(connection._buffer)
            broker.offload._turn.release()
            assert await producer.error() == 0


async def test_the_time_of_the_append(tmp_path):
    """With LogAppendTime records have the time at which they are written."""
    async with running(tmp_path) as broker:
        config = {**CONFIG, "message.timestamp.type": "LogAppendTime"}
        await broker.controller.set_topic_config("t", config)
        await broker.offload._turn.acquire()
        async with Producer(broker, 1, ("t", many(1100)), ("t", many(2))) as producer:
            await waiting_for_its_turn(broker)
            broker.appender.clock = FakeClock(now_ms() + 3_600_000)
            broker.offload._turn.release()
            assert await producer.error() == 0
        batches = list(broker.replicas.partitions["t", 0].log.batches(0))
        times = [read_header(batch).max_timestamp for batch in batches]
        assert times == [broker.appender.clock.now_ms()] * 2
        assert all(is_valid(batch) for batch in batches)


async def test_the_broker_stops(tmp_path):
    async with running(tmp_path) as broker:
        await broker.offload._turn.acquire()
        async with Producer(broker) as producer:
            await waiting_for_its_turn(broker)
            await broker.stop()
            with pytest.raises(asyncio.IncompleteReadError):
                await producer.error()


async def test_the_replicas_have_it_meanwhile(tmp_path):
    """By the time that the last batch of a request is opened, the first may be acknowledged."""
    async with running(tmp_path) as broker:
        config = {"visibility": "flushed", "flush.ms": "1"}
        await broker.controller.create_topic(NewTopic("flushed", config=config))
        await broker.offload._turn.acquire()
        async with Producer(broker, -1, ("flushed", batch_of(b"v")), ("t", many(1100))) as producer:
            await waiting_for_its_turn(broker)
            partition = broker.replicas.partitions["flushed", 0]
            await comes_true(lambda: partition.high_watermark == 1)
            broker.offload._turn.release()
            assert await producer.error() == 0
