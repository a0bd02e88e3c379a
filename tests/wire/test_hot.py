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
from wire.support import SEED, generator, instances
from wire.test_fuzz import damage

from tidelog.wire.compiler import decode, encode
from tidelog.wire.frame import encode_response
from tidelog.wire.hot import (
    Fetched,
    Produced,
    decode_fetch,
    decode_produce,
    encode_fetch_response,
    encode_produce_response,
)
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.wire.primitives import ProtocolError, uvarint
from tidelog.wire.schema import Message

PRODUCE = range(14)
FETCH = range(4, 19)
ROUNDS = 150
NAMES = ("", "a", "orders", "x" * 39, "x" * 40, "x" * 126, "x" * 127, "x" * 249, "é漢" * 19)


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
    replica = request.replica_id
    if request.replica_state is not None:
        replica = request.replica_state.replica_id

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
            )
            for topic in request.topics
            for p in topic.partitions
        ],
        [(ref(topic), p) for topic in request.forgotten_topics_data for p in topic.partitions],
        request.rack_id,
    )


def plain(records: Any) -> bytes | None:
    return None if records is None else bytes(records)


def hot_produce(data: bytes, start: int, version: int) -> Any:
    transactional_id, acks, timeout, rows = decode_produce(memoryview(data), start, version)
    return (
        transactional_id,
        acks,
        timeout,
        [(topic, [(index, plain(records)) for index, records in parts]) for topic, parts in rows],
    )


def hot_fetch(data: bytes, start: int, version: int) -> Any:
    head = decode_fetch(memoryview(data), start, version)
    return (*head[:7], [tuple(row) for row in head.rows], head.forgotten, head.rack)


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
def test_requests_are_read_alike(
    cls: type[Message], version: int, shape: Shape, hot: Hot
) -> None:
    rng = generator("hot", cls, version)
    for message in instances("hot", cls, version, ROUNDS):
        before = rng.randbytes(rng.randrange(5))  # the header of the request
        data = before + encode(message, version)
        expected = shape(message, version)
        assert hot(data, len(before), version) == expected, (SEED, data.hex())


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16383, 16384, None])
def test_the_common_produce_request(version: int, name: str, size: int | None) -> None:
    """One topic and one partition: there is a short cut for it."""
    records = None if size is None else random.Random(SEED).randbytes(size)
    part = {"index": 3, "records": records}
    topic_type = ProduceRequest._fields  # the classes are reached through a decoded message
    assert topic_type
    from tidelog.wire.messages.produce import PartitionProduceData, TopicProduceData

    topic = TopicProduceData(
        **({"topic_id": b"i" * 16} if version >= 13 else {"name": name}),
        partition_data=[PartitionProduceData(**part)],
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


# -- responses ----------------------------------------------------------------------


def random_name(rng: random.Random, version: int) -> str | bytes:
    return rng.randbytes(16) if version >= 13 else rng.choice(NAMES)


def i64(rng: random.Random) -> int:
    return rng.choice((-1, 0, rng.randrange(1 << 63)))


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_responses(version: int) -> None:
    rng = generator("produced", ProduceResponse, version)
    for _ in range(ROUNDS):
        topics = []
        for _ in range(rng.choice((0, 1, 1, 1, 2, 130))):
            rows = [
                Produced(
                    rng.randrange(1 << 31),
                    rng.choice((0, 0, -1, 87)),
                    i64(rng),
                    i64(rng),
                    i64(rng),
                    rng.choice((None, None, "", "why", "y" * 200)),
                )
                for _ in range(rng.choice((0, 1, 1, 1, 2)))
            ]
            topics.append((random_name(rng, version), rows))
        correlation = rng.randrange(-(1 << 31), 1 << 31)
        found = bytes(encode_produce_response(version, correlation, topics))
        assert found == compiled_produce(version, correlation, topics), (SEED, topics)


def compiled_produce(version: int, correlation: int, topics: list[Any]) -> bytes:
    responses = [
        TopicProduceResponse(
            **({"topic_id": topic} if version >= 13 else {"name": topic}),
            partition_responses=[
                PartitionProduceResponse(
                    index=row.partition,
                    error_code=row.error,
                    base_offset=row.base_offset,
                    log_append_time_ms=row.append_time_ms,
                    log_start_offset=row.log_start_offset,
                    error_message=row.message,
                )
                for row in rows
            ],
        )
        for topic, rows in topics
    ]
    return bytes(encode_response(ProduceResponse(responses=responses), version, correlation))


@pytest.mark.parametrize("version", FETCH)
def test_fetch_responses(version: int) -> None:
    rng = generator("fetched", FetchResponse, version)
    for _ in range(ROUNDS):
        topics = []
        for _ in range(rng.choice((0, 1, 1, 2, 130))):
            rows = [random_fetched(rng, version) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
            topics.append((random_name(rng, version), rows))
        correlation, session = rng.randrange(1 << 31), rng.randrange(1 << 31)
        error = rng.choice((0, 0, 70, 71)) if version >= 7 else 0
        chunks = encode_fetch_response(version, correlation, error, session, topics)
        found = b"".join(bytes(chunk) for chunk in chunks)  # type: ignore[arg-type]
        assert found == compiled_fetch(version, correlation, error, session, topics), SEED


DIVERGING = EpochEndOffset(epoch=3, end_offset=1742)


def random_fetched(rng: random.Random, version: int) -> Fetched:
    diverging = version >= 12 and rng.random() < 0.2
    return Fetched(
        rng.randrange(1 << 31),
        rng.choice((0, 0, 1, -1)),
        i64(rng),
        i64(rng),
        i64(rng),
        rng.choice((None, rng.randbytes(rng.choice((1, 61, 126, 127, 128, 16384))))),
        rng.choice((None, [], [(1, 2)], [(i64(rng), i64(rng)) for _ in range(130)])),
        rng.choice((-1, 5)) if version >= 11 else -1,
        b"\x01\x00\x0d" + encode_diverging() if diverging else b"\0",
    )


def encode_diverging() -> bytes:
    return (3).to_bytes(4, "big") + (1742).to_bytes(8, "big") + b"\0"


def compiled_fetch(version: int, correlation: int, error: int, session: int, topics: Any) -> bytes:
    responses = [
        FetchableTopicResponse(
            **({"topic_id": topic} if version >= 13 else {"topic": topic}),
            partitions=[
                PartitionData(
                    partition_index=row.partition,
                    error_code=row.error,
                    high_watermark=row.high_watermark,
                    last_stable_offset=row.last_stable_offset,
                    log_start_offset=row.log_start_offset,
                    diverging_epoch=None if row.tags == b"\0" else DIVERGING,
                    aborted_transactions=None
                    if row.aborted is None
                    else [AbortedTransaction(producer_id=p, first_offset=o) for p, o in row.aborted],
                    preferred_read_replica=row.preferred_replica,
                    records=b"" if row.records is None else row.records,
                )
                for row in rows
            ],
        )
        for topic, rows in topics
    ]
    message = FetchResponse(error_code=error, session_id=session, responses=responses)
    return bytes(encode_response(message, version, correlation))
