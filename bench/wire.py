"""The requests that the load is made of, encoded once, and a few questions to a broker."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.records import encode_batch
from tidelog.wire.schema import Message

HOST = "127.0.0.1"
TOPIC = "bench"

PRODUCE_VERSION = 11
FETCH_VERSION = 12
_CREATE_TOPICS_VERSION = 7
_LIST_OFFSETS_VERSION = 6
_CLIENT = "bench"
_LATEST = -1
_TOPIC_EXISTS = 36
_RETRIABLE = (3, 5, 6)  # no such partition yet, no leader, not the leader yet

R = TypeVar("R", bound=Message)


class BenchError(Exception):
    """The figures would be wrong: an answer that is not the one we asked for."""


@lru_cache
def batch_of(size: int, record: int = 100) -> tuple[bytes, int]:
    """A batch of ``size`` bytes at most (or one record) and the number of its records."""
    now_ms = time.time_ns() // 1_000_000

    def build(count: int) -> bytes:
        return encode_batch([(now_ms, None, bytes(record), ())] * count)

    count = 1
    if size > len(build(1)):
        each = (len(build(1025)) - len(build(1))) / 1024
        count = max(1, int(size / (each + 0.5)))  # large batches have longer offset deltas
        while len(build(count + 1)) <= size:
            count += 1
    return build(count), count


def exact_batch(size: int) -> bytes:
    """A batch of one record with exactly ``size`` bytes."""
    value = size
    while True:
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch([(now_ms, None, bytes(value), ())])
        if len(batch) == size:
            return batch
        value -= len(batch) - size


def produce_request(
    batch: bytes, topic: str = TOPIC, acks: int = 1, *, partitions: int = 1, first: int = 0
) -> bytes:
    """A whole Produce frame with one batch, or the same for each of several partitions."""
    rows = range(first, first + partitions)
    data = [PartitionProduceData(index=i, records=batch) for i in rows]
    return _produce_frame([TopicProduceData(name=topic, partition_data=data)], acks)


def produce_topics(batch: bytes, topics: Sequence[str]) -> bytes:
    """A whole Produce frame with the same batch for partition 0 of every topic."""
    row = PartitionProduceData(index=0, records=batch)
    return _produce_frame([TopicProduceData(name=t, partition_data=[row]) for t in topics], 1)


def _produce_frame(rows: list[TopicProduceData], acks: int) -> bytes:
    request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=rows)
    return encode_request(request, PRODUCE_VERSION, 7, _CLIENT)


def fetch_request(
    offset: int, max_bytes: int, *, max_wait_ms: int = 0, topic: str = TOPIC
) -> bytes:
    """A whole Fetch frame, without a session."""
    row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=0x7FFFFFFF,
        topics=[FetchTopic(topic=topic, partitions=[row])],
    )
    return encode_request(request, FETCH_VERSION, 7, _CLIENT)


def fetch_many(topics: Mapping[str, int], max_bytes: int) -> bytes:
    """A whole Fetch frame that asks for every partition of the topics, from the beginning."""
    rows = [
        FetchTopic(
            topic=name,
            partitions=[
                FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=max_bytes)
                for i in range(count)
            ],
        )
        for name, count in topics.items()
    ]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=0x7FFFFFFF, topics=rows)
    return encode_request(request, FETCH_VERSION, 7, _CLIENT)


def offset_patcher(
    max_bytes: int, max_wait_ms: int, topic: str = TOPIC
) -> tuple[bytearray, Callable[[int], None]]:
    """A Fetch frame whose offset can be changed in place."""
    marker = 0x1122334455667788
    frame = bytearray(fetch_request(marker, max_bytes, max_wait_ms=max_wait_ms, topic=topic))
    place = frame.index(marker.to_bytes(8, "big"))
    pack = struct.Struct(">q").pack_into

    def patch(offset: int) -> None:
        pack(frame, place, offset)

    return frame, patch


def connect(port: int) -> socket.socket:
    sock = socket.create_connection((HOST, port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(None)
    return sock


def read_frame(sock: socket.socket) -> bytes:
    """One answer, without its size."""
    head = sock.recv(4, socket.MSG_WAITALL)
    size = int.from_bytes(head, "big")
    frame = sock.recv(size, socket.MSG_WAITALL) if len(head) == 4 else b""
    if len(head) < 4 or len(frame) < size:
        raise BenchError("the broker closed the connection")
    return frame


_PING = bytes.fromhex("0000000a 0012 0000 00000001 0000")  # ApiVersions 0


def ping(sock: socket.socket) -> None:
    """A small question with an answer: what was sent before it has been seen."""
    sock.sendall(_PING)
    read_frame(sock)


def ask(sock: socket.socket, request: Message, version: int, answer: type[R]) -> R:
    """One question, decoded."""
    sock.sendall(encode_request(request, version, 1, _CLIENT))
    return decode_response(answer, version, read_frame(sock))[1]


def make_topic(
    sock: socket.socket,
    topic: str = TOPIC,
    partitions: int = 1,
    configs: Mapping[str, object] | None = None,
) -> None:
    """Create a topic, unless it is there, and wait until every partition has a leader."""
    make_topics(sock, [topic], partitions, configs)


def make_topics(
    sock: socket.socket,
    topics: Sequence[str],
    partitions: int = 1,
    configs: Mapping[str, object] | None = None,
) -> None:
    """Create topics in one request and wait until every partition can be asked."""
    rows = [CreatableTopicConfig(name=k, value=str(v)) for k, v in (configs or {}).items()]
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=rows,
            )
            for name in topics
        ],
        timeout_ms=60_000,
    )
    answer = ask(sock, request, _CREATE_TOPICS_VERSION, CreateTopicsResponse)
    for result in answer.topics:
        if result.error_code not in (0, _TOPIC_EXISTS):
            raise BenchError(f"topic {result.name}: error {result.error_code}")
    deadline = time.monotonic() + 60
    while any(code for _, code in _offsets(sock, topics, partitions)):
        if time.monotonic() > deadline:
            raise BenchError("the topics are not there after a minute")
        time.sleep(0.002)


def end_offset(sock: socket.socket, topic: str = TOPIC, partitions: int = 1) -> int:
    """The offset of the next record; of several partitions, the sum."""
    found = _offsets(sock, [topic], partitions)
    if code := max(code for _, code in found):
        raise BenchError(f"ListOffsets of {topic}: error {code}")
    return sum(offset for offset, _ in found)


def _offsets(sock: socket.socket, topics: Sequence[str], partitions: int) -> list[tuple[int, int]]:
    """End offset and error code of every partition."""
    rows = [ListOffsetsPartition(partition_index=i, timestamp=_LATEST) for i in range(partitions)]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=rows) for name in topics]
    )
    answer = ask(sock, request, _LIST_OFFSETS_VERSION, ListOffsetsResponse)
    return [(row.offset, row.error_code) for topic in answer.topics for row in topic.partitions]


def try_produce(sock: socket.socket, frame: bytes) -> int:
    """Produce once and look at the answer; returns the size of the answer frame."""
    size, code = _produce_once(sock, frame)
    if code:
        raise BenchError(f"Produce: error {code}")
    return size


def produce_until(sock: socket.socket, frame: bytes, seconds: float = 60) -> int:
    """Produce until it is acknowledged: a partition may have no leader yet."""
    deadline = time.monotonic() + seconds
    while True:
        size, code = _produce_once(sock, frame)
        if not code:
            return size
        if code not in _RETRIABLE or time.monotonic() > deadline:
            raise BenchError(f"Produce: error {code}")
        time.sleep(0.002)


def _produce_once(sock: socket.socket, frame: bytes) -> tuple[int, int]:
    sock.sendall(frame)
    raw = read_frame(sock)
    _, answer = decode_response(ProduceResponse, PRODUCE_VERSION, raw)
    codes = [row.error_code for topic in answer.responses for row in topic.partition_responses]
    return 4 + len(raw), max(codes)


def try_fetch(sock: socket.socket, frame: bytes) -> tuple[int, int]:
    """Fetch once; returns the size of the answer frame and of the records in it."""
    sock.sendall(frame)
    raw = read_frame(sock)
    _, answer = decode_response(FetchResponse, FETCH_VERSION, raw)
    rows = [row for topic in answer.responses for row in topic.partitions]
    if code := max((row.error_code for row in rows), default=answer.error_code):
        raise BenchError(f"Fetch: error {code}")
    return 4 + len(raw), sum(len(row.records or b"") for row in rows)
