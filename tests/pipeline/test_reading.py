"""Ranges of offsets from a real broker, whatever happens to it meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pipeline.logs import Log, as_columns, build, expected, random_log
from pipeline.planted import Planted, damage, some, transactions
from support.filling import write_batch

from tidelog.client import admin
from tidelog.client.cluster import Cluster
from tidelog.client.connection import BrokerConnection, BrokerUnreachable
from tidelog.client.offsets import Extent
from tidelog.client.partitions import delete_records
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.pipeline.loss import CorruptBatch, DataLoss
from tidelog.pipeline.options import ClientOptions, SourceOptions
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.ranges import ALL_WITH_HEADERS, Columns, OffsetRange
from tidelog.pipeline.reading import read_range
from tidelog.pipeline.schema import arrow_schema
from tidelog.pipeline.where import Topics
from tidelog.testing import LocalBroker
from tidelog.topic_partition import TopicPartition
from tidelog.wire.batch import TRANSACTIONAL
from tidelog.wire.compression import Codec
from tidelog.wire.messages.fetch import FetchResponse
from tidelog.wire.messages.list_offsets import ListOffsetsResponse
from tidelog.wire.schema import ZERO_UUID

OFFSET = Columns(("offset",))


@pytest.fixture
def cluster(broker: LocalBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as connected:
        yield connected


def make(cluster: Cluster, topic: str, partitions: int = 1) -> bytes:
    """A new topic; its id."""
    made = admin.create_topics(cluster, [NewTopic(topic, partitions)])[topic]
    assert not isinstance(made, ApiError), made
    return cluster.topics([topic])[topic].topic_id


def produce(broker: LocalBroker, topic: str, values: Sequence[bytes], **settings: object) -> None:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 10_000, **names})
    for value in values:
        while True:
            try:
                producer.produce(topic, value, b"k", partition=0, headers=[("h", value[:9])])
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(100) == 0


def options(broker: LocalBroker, **changes: Any) -> ClientOptions:
    return ClientOptions(broker.bootstrap, **changes)


def read(
    client: ClientOptions, part: OffsetRange, columns: Columns = ALL_WITH_HEADERS, **how: Any
) -> pa.Table:
    batches = list(read_range(client, part, columns, **how))
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, arrow_schema(columns))


def offsets(client: ClientOptions, part: OffsetRange, **how: Any) -> list[int]:
    found: list[int] = read(client, part, OFFSET, **how)["offset"].to_pylist()
    return found


# -- what is there --------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(cluster: Cluster, broker: LocalBroker, topic: str, codec: str) -> None:
    topic_id = make(cluster, topic)
    values = [b"value %d" % i * 20 for i in range(1000)]
    produce(broker, topic, values, compression_type=codec, batch_num_messages=100)
    found = read(options(broker), OffsetRange(topic, 0, 0, 1000, topic_id))
    assert found["value"].to_pylist() == values
    assert found["offset"].to_pylist() == list(range(1000))
    assert found["topic"].to_pylist() == [topic] * 1000
    assert found["headers"][7].as_py() == [{"key": "h", "value": values[7][:9]}]


def test_a_range_inside_batches(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    make(cluster, topic)
    produce(broker, topic, [b"%d" % i for i in range(50)])
    assert offsets(options(broker), OffsetRange(topic, 0, 13, 37)) == list(range(13, 37))


def test_an_empty_range_asks_nobody() -> None:
    assert offsets(ClientOptions("nobody.invalid:1"), OffsetRange("t", 0, 5, 5)) == []


@pytest.mark.parametrize("size", [1, 3000, 4 << 20])
def test_many_fetches_and_one(cluster: Cluster, broker: LocalBroker, topic: str, size: int) -> None:
    topic_id = make(cluster, topic)
    produce(broker, topic, [b"x" * 900] * 300, batch_num_messages=2)
    part = OffsetRange(topic, 0, 0, 300, topic_id)
    found = list(read_range(options(broker, partition_max_bytes=size), part, OFFSET))
    assert pa.Table.from_batches(found)["offset"].to_pylist() == list(range(300))
    assert len(found) == 1  # small answers are put together


def test_a_batch_larger_than_a_fetch(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    make(cluster, topic)
    produce(broker, topic, [b"x" * 300_000, b"y" * 300_000], batch_num_messages=1)
    client = options(broker, partition_max_bytes=1000, fetch_max_bytes=1000)
    found = read(client, OffsetRange(topic, 0, 0, 2), Columns(("value",)))
    assert found["value"].to_pylist() == [b"x" * 300_000, b"y" * 300_000]


def test_a_reader_may_stop_early(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    make(cluster, topic)
    produce(broker, topic, [b"x" * 500] * 1000)
    part = OffsetRange(topic, 0, 0, 1000)
    reading = read_range(options(broker), part, OFFSET, target_bytes=1000)
    assert next(reading)["offset"][0].as_py() == 0
    reading.close()  # type: ignore[attr-defined]


# -- logs that were not written today -------------------------------------------


def offsets_of(log: Log, start: int, end: int, aborted: Sequence[tuple[int, int]]) -> list[int]:
    return [row.offset for row, _ in expected(log.data, start, end, aborted)]


def test_holes_everywhere_and_at_the_end(tmp_path: Path) -> None:
    """What compaction leaves: holes, empty batches, and a segment whose last offsets are gone."""
    first = build(some(3, 4)[1:], 4, 9) + build([], 10, 14) + build(some(2, 17), 15, 19)
    planted = Planted(tmp_path, {0: first, 30: b""})
    with planted.broker as broker:
        found = offsets(options(broker), planted.part(0, 30))
        assert found == [5, 6, 17, 18]
        assert offsets(options(broker), planted.part(7, 15)) == []
        assert offsets(options(broker), planted.part(19, 30)) == []
        assert offsets(options(broker), planted.part(18, 21)) == [18]


def test_records_that_a_broker_must_get_from_afar(
    cluster: Cluster, broker: LocalBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka with tiered storage: as long as they are on their way, it answers with nothing.

    No such broker can be had here, so its answers are made from ours.
    """
    make(cluster, topic)
    produce(broker, topic, [b"x"] * 20)
    receive = BrokerConnection.receive
    late = 7  # answers that come without the records

    def without_records(connection: BrokerConnection) -> Any:
        nonlocal late
        response = receive(connection)
        if isinstance(response, FetchResponse) and late:
            late -= 1
            for data in response.responses[0].partitions:
                data.records = b""
        elif isinstance(response, ListOffsetsResponse):
            response.topics[0].partitions[0].offset = 15  # what is older is not on its disk
        return response

    monkeypatch.setattr(BrokerConnection, "receive", without_records)
    assert offsets(options(broker, fetch_max_wait_ms=0), OffsetRange(topic, 0, 3, 20)) == list(
        range(3, 20)
    )
    late = 1_000_000
    with pytest.raises(ApiError, match=r"remote storage, and none came in 0\.2 seconds"):
        offsets(options(broker, fetch_max_wait_ms=0), OffsetRange(topic, 0, 3, 20), patience=0.2)


def test_aborted_transactions(tmp_path: Path) -> None:
    log = transactions()
    planted = Planted(tmp_path, {0: log.data})
    with planted.broker as broker:
        ranges = ((0, 28), (5, 20), (13, 26), (16, 18), (27, 28))
        for size, (start, end) in itertools.product((1, 4 << 20), ranges):
            part = planted.part(start, end)
            plain = options(broker, partition_max_bytes=size)
            assert offsets(plain, part) == offsets_of(log, start, end, [])
            committed = options(broker, partition_max_bytes=size, read_committed=True)
            assert offsets(committed, part) == offsets_of(log, start, end, log.aborted)


def test_an_open_transaction_is_waited_for_and_then_named(tmp_path: Path) -> None:
    rows = some(4, 0)
    data = build(rows, 0, 3, attributes=TRANSACTIONAL, producer_id=11)
    planted = Planted(tmp_path, {0: data})
    with planted.broker as broker:
        client = options(broker, read_committed=True, fetch_max_wait_ms=10)
        with pytest.raises(ApiError, match="planted-0@0: a transaction is still open") as raised:
            offsets(client, planted.part(0, 4), patience=0.2)
        assert raised.value.code == ErrorCode.REQUEST_TIMED_OUT


def test_a_log_that_ends_at_an_open_transaction_was_not_cut(tmp_path: Path) -> None:
    """Who read on before, without read_committed, has read what is still there."""
    data = build(some(4, 0), 0, 3, attributes=TRANSACTIONAL, producer_id=11)
    planted = Planted(tmp_path, {0: data})
    tp = TopicPartition(planted.topic, 0)
    with planted.broker as broker:
        client = options(broker, read_committed=True)
        source = SourceOptions(client, Topics(subscribe=(planted.topic,)))
        with contextlib.closing(Positions(source)) as positions:
            logs = positions.logs()
            assert logs.extents[tp] == Extent(0, 0)
            assert positions.reaching(logs, {tp: 3}).extents[tp] == Extent(0, 3)
            assert positions.reaching(logs, {tp: 5}) == logs  # that is cut


def test_random_logs_from_a_broker(tmp_path: Path) -> None:
    rng = random.Random(5)
    log = random_log(rng, 200)
    base = int.from_bytes(log.data[:8], "big")
    planted = Planted(tmp_path, {base: log.data})
    with planted.broker as broker:
        for number in range(12):
            start = rng.randint(base, log.end)
            end = rng.randint(start, log.end)
            client = options(broker, partition_max_bytes=rng.choice((1, 20_000, 4 << 20)))
            found = read(client, planted.part(start, end), target_bytes=rng.choice((999, 1 << 20)))
            found = found.set_column(5, "timestamp", found["timestamp"].cast(pa.int64()))
            wanted = as_columns(expected(log.data, start, end), "planted", 0, ALL_WITH_HEADERS)
            assert found.to_pydict() == wanted, number


# -- faults ---------------------------------------------------------------------


def test_a_broker_killed_in_the_middle(topic: str, tmp_path: Path) -> None:
    """kill -9 and a restart, three times in one read: each record once, in order."""
    count = 60_000
    with LocalBroker(data=tmp_path / "data") as broker:
        with Cluster(broker.bootstrap) as cluster:
            topic_id = make(cluster, topic)
        produce(broker, topic, [b"%d" % i * 20 for i in range(count)], compression_type="lz4")
        part = OffsetRange(topic, 0, 0, count, topic_id)
        client = options(broker, partition_max_bytes=100_000)
        found: list[int] = []
        kills = [5_000, 20_000, 45_000]
        for batch in read_range(client, part, OFFSET, target_bytes=40_000):
            found += batch["offset"].to_pylist()
            if kills and len(found) > kills[0]:
                del kills[0]
                broker.kill()
                broker.start()
        assert not kills
        assert found == list(range(count))


def test_a_broker_that_is_down_when_reading_begins(tmp_path: Path) -> None:
    planted = Planted(tmp_path, {0: build(some(9, 0), 0, 8)})
    client = ClientOptions(planted.broker.bootstrap)
    start = threading.Thread(target=planted.broker.start)
    start.start()  # it takes a while: the reader finds nobody at first
    try:
        assert offsets(client, planted.part(0, 9)) == list(range(9))
    finally:
        start.join()
        planted.broker.kill()


def test_no_broker_is_an_error_that_names_the_place() -> None:
    part = OffsetRange("t", 3, 17, 20)
    with pytest.raises(BrokerUnreachable, match=r"t-3@17: cannot reach a broker .*gave up after"):
        offsets(ClientOptions("127.0.0.1:1"), part, patience=0.2)


def test_what_retention_took_is_named_or_skipped(
    cluster: Cluster, broker: LocalBroker, topic: str
) -> None:
    topic_id = make(cluster, topic)
    produce(broker, topic, [b"%d" % i for i in range(100)])
    delete_records(cluster, {TopicPartition(topic, 0): 40})
    part = OffsetRange(topic, 0, 10, 100, topic_id)
    with pytest.raises(DataLoss, match="the log starts at offset 40") as raised:
        offsets(options(broker), part)
    assert raised.value.lost == part.between(10, 40)
    lost: list[DataLoss] = []
    assert offsets(options(broker), part, on_loss=lost.append) == list(range(40, 100))
    assert [row.lost for row in lost] == [part.between(10, 40)]
    lost.clear()
    assert offsets(options(broker), part.between(10, 30), on_loss=lost.append) == []
    assert [row.lost for row in lost] == [part.between(10, 30)]


def test_retention_that_overtakes_a_reader(
    cluster: Cluster, broker: LocalBroker, topic: str
) -> None:
    topic_id = make(cluster, topic)
    produce(broker, topic, [b"x" * 900] * 1000, batch_num_messages=10)
    part = OffsetRange(topic, 0, 0, 1000, topic_id)
    client = options(broker, partition_max_bytes=20_000)
    lost: list[DataLoss] = []
    found: list[int] = []
    for batch in read_range(client, part, OFFSET, target_bytes=200, on_loss=lost.append):
        found += batch["offset"].to_pylist()
        if len(found) < 100:
            delete_records(cluster, {TopicPartition(topic, 0): 700})
    (row,) = lost
    assert row.lost.end == 700
    assert found == [*range(row.lost.start), *range(700, 1000)]


def test_a_topic_made_again_is_another_topic(
    cluster: Cluster, broker: LocalBroker, topic: str
) -> None:
    topic_id = make(cluster, topic)
    admin.delete_topics(cluster, [topic])
    assert make(cluster, topic) != topic_id
    produce(broker, topic, [b"other"] * 10)
    part = OffsetRange(topic, 0, 2, 10, topic_id)
    with pytest.raises(DataLoss, match="deleted and made again") as raised:
        offsets(options(broker), part)
    assert raised.value.lost == part
    lost: list[DataLoss] = []
    assert offsets(options(broker), part, on_loss=lost.append) == []
    assert [row.lost for row in lost] == [part]
    assert offsets(options(broker), OffsetRange(topic, 0, 2, 10, ZERO_UUID)) == list(range(2, 10))


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_in_the_middle(
    cluster: Cluster, broker: LocalBroker, topic: str, again: bool
) -> None:
    topic_id = make(cluster, topic)
    produce(broker, topic, [b"x" * 900] * 1000, batch_num_messages=10)
    part = OffsetRange(topic, 0, 0, 1000, topic_id)
    client = options(broker, partition_max_bytes=20_000)
    lost: list[DataLoss] = []
    found: list[int] = []
    how: dict[str, Any] = {"on_loss": lost.append, "patience": 2.0 if not again else 120.0}
    for batch in read_range(client, part, OFFSET, target_bytes=200, **how):
        found += batch["offset"].to_pylist()
        if len(found) < 100 and not lost:
            admin.delete_topics(cluster, [topic])
            if again:
                make(cluster, topic)
    (row,) = lost
    assert row.lost == part.between(len(found), 1000)
    assert found == list(range(len(found)))
    assert ("made again" in row.reason) == again


def test_a_log_that_ends_too_early(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    topic_id = make(cluster, topic)
    produce(broker, topic, [b"x"] * 10)
    client = options(broker, fetch_max_wait_ms=10)
    part = OffsetRange(topic, 0, 5, 15, topic_id)
    with pytest.raises(DataLoss, match="the log ends at offset 10") as raised:
        offsets(client, part, patience=0.2)
    assert raised.value.lost == part.between(10, 15)
    with pytest.raises(DataLoss, match="it ends at offset 10") as raised:
        offsets(client, part.between(12, 15))
    assert raised.value.lost == part.between(12, 15)


def test_a_partition_that_is_not_there(cluster: Cluster, broker: LocalBroker, topic: str) -> None:
    topic_id = make(cluster, topic)
    with pytest.raises(DataLoss, match="the topic has no partition 4 now"):
        offsets(options(broker), OffsetRange(topic, 4, 0, 5, topic_id), patience=0.1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_a_damaged_batch_is_named_or_skipped(
    cluster: Cluster, broker: LocalBroker, topic: str, codec: Codec
) -> None:
    topic_id = make(cluster, topic)
    for base in range(0, 60, 10):
        values = [b"n%d" % (base + i) for i in range(10)]
        write_batch(broker.bootstrap, topic, values, codec)
    damage(broker, topic, b"n20")
    damage(broker, topic, b"n50")
    part = OffsetRange(topic, 0, 5, 60, topic_id)
    with pytest.raises(CorruptBatch, match="the batch at offset 20 is damaged") as raised:
        offsets(options(broker), part)
    assert raised.value.lost == part.between(20, 30)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (topic, 0, 20)
    lost: list[CorruptBatch] = []
    found = offsets(options(broker), part, on_corrupt=lost.append)
    assert found == [*range(5, 20), *range(30, 50)]
    assert [row.lost for row in lost] == [part.between(20, 30), part.between(50, 60)]


def test_a_damaged_header_costs_the_rest_and_says_so(
    cluster: Cluster, broker: LocalBroker, topic: str
) -> None:
    topic_id = make(cluster, topic)
    for base in range(0, 30, 10):
        write_batch(broker.bootstrap, topic, [b"n%d" % (base + i) for i in range(10)])
    (path,) = next(iter(broker.data.rglob(f"{topic}-0"))).glob("*.log")
    data = path.read_bytes()
    second = 12 + int.from_bytes(data[8:12], "big")
    with path.open("r+b") as file:
        file.seek(second + 16)
        file.write(b"\x07")  # its magic
    part = OffsetRange(topic, 0, 0, 30, topic_id)
    lost: list[CorruptBatch] = []
    assert offsets(options(broker), part, on_corrupt=lost.append) == list(range(10))
    assert [row.lost for row in lost] == [part.between(10, 30)]
