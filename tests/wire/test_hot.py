"""Produce and Fetch by hand say exactly what the compiled messages say.

Random messages of every version go through both; the bytes and the values must be the
same.  Damaged requests are refused with ProtocolError or read as the compiled decoder
reads them: a request never means two things.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from support.messages import FETCH, NAMES, PRODUCE, ROUNDS, SEED, damage, generator, instances

from tidelog.wire.compiler import decode, encode
from tidelog.wire.frame import encode_request
from tidelog.wire.hot import MAX_PRODUCE_ROWS, decode_fetch, decode_one_produce, decode_produce
from tidelog.wire.messages.fetch import FetchRequest, FetchTopic
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.wire.primitives import ProtocolError, uvarint
from tidelog.wire.schema import Message


def produce_rows(request: ProduceRequest, version: int) -> Any:
    """What the compiled decoder read, in the shape of the rows."""
    return (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (
                topic.topic_id if version >= 13 else topic.name,
                [(p.index, plain(p.records)) for p in topic.partition_data],
            )
            for topic in request.topic_data
        ],
    )


def fetch_rows(request: FetchRequest, version: int) -> Any:
    replica, replica_epoch = request.replica_id, -1
    if request.replica_state is not None:
        replica = request.replica_state.replica_id
        replica_epoch = request.replica_state.replica_epoch

    def ref(topic: Any) -> str | bytes:
        return topic.topic_id if version >= 13 else topic.topic

    return (
        replica,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        [
            (
                ref(topic),
                p.partition,
                p.current_leader_epoch,
                p.fetch_offset,
                p.last_fetched_epoch,
                p.partition_max_bytes,
                p.log_start_offset,
            )
            for topic in request.topics
            for p in topic.partitions
        ],
        [(ref(topic), p) for topic in request.forgotten_topics_data for p in topic.partitions],
        request.rack_id,
        replica_epoch,
    )


def plain(records: Any) -> bytes | None:
    return None if records is None else bytes(records)


def hot_produce(data: bytes, start: int, version: int) -> Any:
    one = decode_one_produce(memoryview(data), start, version)
    transactional_id, acks, timeout, rows = decode_produce(memoryview(data), start, version)
    if one is not None:
        assert transactional_id is None
        assert (acks, timeout, [(one[2], [(one[3], one[4])])]) == (*one[:2], rows)
    return (
        transactional_id,
        acks,
        timeout,
        [(topic, [(index, plain(records)) for index, records in parts]) for topic, parts in rows],
    )


@pytest.mark.parametrize("version", range(9, 14))
@pytest.mark.parametrize("size", [0, 1, 62, 63, 127, 128, 16383, 16384, 100_000])
def test_one_batch_for_one_partition_is_read_straight(version: int, size: int) -> None:
    rows = [PartitionProduceData(index=7, records=bytes(size))]
    name = {"topic_id": bytes(range(16))} if version >= 13 else {"name": "t"}
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=5,
        topic_data=[TopicProduceData(**name, partition_data=rows)],
    )
    data = memoryview(encode_request(request, version, 1, ""))[4:]
    expected = (-1, 5, bytes(range(16)) if version >= 13 else "t", 7, bytes(size))
    # The shortest requests are not worth a fast path, and records cannot be that short.
    assert decode_one_produce(data, 11, version) == (expected if len(data) - 11 >= 32 else None)


def hot_fetch(data: bytes, start: int, version: int) -> Any:
    head = decode_fetch(memoryview(data), start, version)
    return (*head[:7], [tuple(row) for row in head.rows], *head[8:])


Shape = Callable[[Any, int], Any]
Hot = Callable[[bytes, int, int], Any]
REQUESTS: list[Any] = [
    *(
        pytest.param(ProduceRequest, v, produce_rows, hot_produce, id=f"produce-v{v}")
        for v in PRODUCE
    ),
    *(pytest.param(FetchRequest, v, fetch_rows, hot_fetch, id=f"fetch-v{v}") for v in FETCH),
]


@pytest.mark.parametrize(("cls", "version", "shape", "hot"), REQUESTS)
def test_requests_are_read_alike(cls: type[Message], version: int, shape: Shape, hot: Hot) -> None:
    rng = generator("hot", cls, version)
    for message in instances("hot", cls, version, ROUNDS):
        before = rng.randbytes(rng.randrange(5))  # the header of the request
        data = before + encode(message, version)
        expected = shape(message, version)
        assert hot(data, len(before), version) == expected, (SEED, data.hex())


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16384, None])
def test_the_common_produce_request(version: int, size: int | None) -> None:
    """One topic and one partition: there is a short cut for it."""
    for name in NAMES:
        check_common_request(version, name, size)


def check_common_request(version: int, name: str, size: int | None) -> None:
    records = None if size is None else random.Random(SEED).randbytes(size)
    topic = TopicProduceData(
        **({"topic_id": b"i" * 16} if version >= 13 else {"name": name}),
        partition_data=[PartitionProduceData(index=3, records=records)],
    )
    request = ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[topic])
    data = encode(request, version)
    assert hot_produce(data, 0, version) == produce_rows(request, version)


@pytest.mark.parametrize(("cls", "version", "shape", "hot"), REQUESTS)
def test_damaged_requests(cls: type[Message], version: int, shape: Shape, hot: Hot) -> None:
    """ProtocolError, or what the compiled decoder says; nothing else, and no other cost."""
    rng = generator("hot damage", cls, version)
    originals = [encode(m, version) for m in instances("hot damage", cls, version, 10)]
    for _ in range(600):
        data = damage(rng, rng.choice(originals))
        try:
            compiled = shape(decode(cls, version, memoryview(data)), version)
        except ProtocolError:
            compiled = None
        try:
            found = hot(data, 0, version)
        except ProtocolError:
            assert compiled is None, (SEED, data.hex())
            continue
        except Exception as error:
            error.add_note(f"seed {SEED}, v{version}, bytes {data.hex()}")
            raise
        assert compiled is None or found == compiled, (SEED, data.hex())


@pytest.mark.parametrize(("cls", "version", "shape", "hot"), REQUESTS)
def test_random_bytes(cls: type[Message], version: int, shape: Shape, hot: Hot) -> None:
    rng = generator("hot random", cls, version)
    for _ in range(300):
        top = rng.choice((3, 16, 256))
        data = bytes(rng.randrange(top) for _ in range(rng.randrange(60)))
        try:
            hot(data, 0, version)
        except ProtocolError:
            continue
        except Exception as error:
            error.add_note(f"seed {SEED}, v{version}, bytes {data.hex()}")
            raise


@pytest.mark.parametrize(("cls", "version", "shape", "hot"), REQUESTS)
def test_lies_cost_no_memory(cls: type[Message], version: int, shape: Shape, hot: Hot) -> None:
    """Every place of a request gets lengths that cannot be true."""
    choice = [encode(m, version) for m in instances("hot lies", cls, version, 20)]
    data = min(choice, key=lambda found: (len(found) < 40, len(found)))
    lies = (b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\x7f\xff", uvarint(0xFFFFFFFF), b"\xff" * 10)
    tracemalloc.start()
    try:
        for at in range(len(data)):
            for lie in lies:
                try:
                    hot(data[:at] + lie + data[at + len(lie) :], 0, version)
                except ProtocolError:
                    continue
        assert tracemalloc.get_traced_memory()[1] < 64 * len(data) + 65536
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [0, 3, 8, 9, 12, 13])
def test_too_many_partitions_are_refused_at_once(version: int) -> None:
    """Each costs the only thread a little: the count is refused before the partitions are read."""
    part = PartitionProduceData(index=0, records=None)
    for topics, partitions in ((1, MAX_PRODUCE_ROWS), (60_000, 0)):
        topic = TopicProduceData(partition_data=[part] * partitions)
        data = encode(ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic] * topics), version)
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError, match="more than 50000 partitions"):
                hot_produce(data, 0, version)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 65_536


@pytest.mark.parametrize("hot", [decode_produce, decode_fetch])
def test_names_are_as_long_as_older_versions_can_say(hot: Hot) -> None:
    """As the compiled decoders, and Kafka: else the answer could not be read."""
    for length in (32767, 32768, 40000):
        name = "x" * length
        if hot is decode_produce:
            topic = TopicProduceData(name=name, partition_data=[])
            data = encode(ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic]), 9)
        else:
            row = FetchTopic(topic=name, partitions=[])
            data = encode(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[row]), 12)
        version = 9 if hot is decode_produce else 12
        if length <= 32767:
            hot(memoryview(data), 0, version)
        else:
            with pytest.raises(ProtocolError, match="32767"):
                hot(memoryview(data), 0, version)


def test_a_transactional_id_is_as_long_as_older_versions_can_say() -> None:
    request = ProduceRequest(transactional_id="x" * 32768, acks=1, timeout_ms=1, topic_data=[])
    with pytest.raises(ProtocolError, match="32767"):
        decode_produce(memoryview(encode(request, 9)), 0, 9)
