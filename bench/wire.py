"""The requests that the load is made of, encoded once, and a few questions to a broker."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
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
_METADATA_VERSION = 12
_LIST_OFFSETS_VERSION = 6
_CLIENT = "bench"
_LATEST = -1

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


def produce_request(batch: bytes, topic: str = TOPIC, acks: int = 1) -> bytes:
    """A whole Produce frame with one batch."""
    data = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
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


def offset_patcher(max_bytes: int, max_wait_ms: int) -> tuple[bytearray, Callable[[int], None]]:
    """A Fetch frame whose offset can be changed in place."""
    marker = 0x1122334455667788
    frame = bytearray(fetch_request(marker, max_bytes, max_wait_ms=max_wait_ms))
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


def ask(sock: socket.socket, request: Message, version: int, answer: type[R]) -> R:
    """One question, decoded."""
    sock.sendall(encode_request(request, version, 1, _CLIENT))
    return decode_response(answer, version, read_frame(sock))[1]


def make_topic(sock: socket.socket, topic: str = TOPIC) -> None:
    """Ask for a topic until it is there (the broker creates it by itself)."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    deadline = time.monotonic() + 10
    while True:
        answer = ask(sock, request, _METADATA_VERSION, MetadataResponse)
        code = answer.topics[0].error_code
        if code == 0:
            return
        if time.monotonic() > deadline:
            raise BenchError(f"topic {topic} cannot be created: error {code}")


def end_offset(sock: socket.socket, topic: str = TOPIC) -> int:
    """The offset of the next record."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=_LATEST)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )
    answer = ask(sock, request, _LIST_OFFSETS_VERSION, ListOffsetsResponse)
    found = answer.topics[0].partitions[0]
    if found.error_code:
        raise BenchError(f"ListOffsets of {topic}: error {found.error_code}")
    return found.offset


def try_produce(sock: socket.socket, frame: bytes) -> int:
    """Produce once and look at the answer; returns the size of the answer frame."""
    sock.sendall(frame)
    raw = read_frame(sock)
    _, answer = decode_response(ProduceResponse, PRODUCE_VERSION, raw)
    result = answer.responses[0].partition_responses[0]
    if result.error_code:
        raise BenchError(f"Produce: error {result.error_code} {result.error_message or ''}")
    return 4 + len(raw)


def try_fetch(sock: socket.socket, frame: bytes) -> tuple[int, int]:
    """Fetch once; returns the size of the answer frame and of the records in it."""
    sock.sendall(frame)
    raw = read_frame(sock)
    _, answer = decode_response(FetchResponse, FETCH_VERSION, raw)
    result = answer.responses[0].partitions[0]
    if result.error_code:
        raise BenchError(f"Fetch: error {result.error_code}")
    return 4 + len(raw), len(result.records or b"")
