"""Bytes that are not Kafka: the client is told or cut off, and nobody else notices."""

import os
import struct

import pytest
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.wire.frame import encode_request
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse


def frame(key, version, body=b"", client_id=b"\x00\x01x"):
    payload = struct.pack(">hhi", key, version, 1) + client_id + body
    return struct.pack(">i", len(payload)) + payload


BAD = {
    "negative size": (struct.pack(">i", -5), "cannot have -5 bytes"),
    "zero size": (struct.pack(">i", 0), "cannot have 0 bytes"),
    "over the limit": (struct.pack(">i", 200_000_000), "over socket.request.max.bytes"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", "TLS bytes"),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "this is HTTP"),
    "unknown API": (frame(999, 0), "no API with key 999"),
    "unknown version": (frame(3, 99), "Metadata v99 is not served"),
    "negative version": (frame(3, -1), "Metadata v-1 is not served"),
    "no header": (struct.pack(">i", 3) + b"abc", "has no header"),
    "cut message": (frame(19, 7, b"\x00\x05\x01"), "CreateTopicsRequest v7"),
    "client id past the end": (frame(3, 9, client_id=b"\x7f\xffx"), "Metadata"),
    "lying array": (frame(3, 1, struct.pack(">i", 1_000_000_000)), "longer than the request"),
    "produce cut short": (frame(0, 9, b"\x00\x00"), "ProduceRequest v9"),
    "fetch cut short": (frame(1, 12, b"\x00\x00"), "FetchRequest v12"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bytes_are_refused_with_a_reason(broker, client, name):
    sent, reason = BAD[name]
    with RawClient(broker.port) as bad:
        bad.sock.sendall(sent)
        if name == "HTTP":
            assert bad.sock.recv(4096).startswith(b"HTTP/1.1 400")
        assert bad.hung_up()
    until(lambda: reason in broker.log, f"{reason!r} in the log")
    assert client.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers


@pytest.mark.parametrize("name", [name for name in BAD if name not in ("TLS", "HTTP")])
def test_requests_before_a_bad_one_are_answered(broker, name):
    good = [encode_request(MetadataRequest(topics=[]), 9, n, "c") for n in range(3)]
    with RawClient(broker.port) as client:
        client.sock.sendall(b"".join(good) + BAD[name][0])
        assert [client.receive(MetadataResponse, 9)[0] for _ in good] == [0, 1, 2]
        assert client.hung_up()


def test_requests_before_a_failed_produce_without_acks_are_answered(broker):
    good = encode_request(MetadataRequest(topics=[]), 9, 7, "c")
    failing = RawClient.produce_request("not-there", batch_of(b"x"), partition=99, acks=0)
    with RawClient(broker.port) as client:
        client.sock.sendall(good + encode_request(failing, 9, 8, "c"))
        assert client.receive(MetadataResponse, 9)[0] == 7
        assert client.hung_up()


def test_garbage_never_hurts(broker, client):
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    for i in range(200):
        with RawClient(broker.port) as bad:
            bad.sock.sendall(os.urandom(1 + (seed + i * 37) % 300))
    assert client.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers


def test_api_versions_of_the_future_get_the_version_to_fall_back_to(client):
    client.sock.sendall(frame(18, 77, b"\x00"))
    answer = client.read_frame()
    assert answer[:4] == struct.pack(">i", 1)
    code, count, key, low, high = struct.unpack(">hihhh", answer[4:])
    assert (code, count, key) == (ErrorCode.UNSUPPORTED_VERSION, 1, 18)
    assert (low, high) == (0, 4)


def test_announced_versions_are_those_that_are_served(client):
    from tidelog.broker.broker import Broker  # noqa: F401  (fills the registry)
    from tidelog.broker.registry import REGISTRY

    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    answer = client.call(request, ApiVersionsResponse, 3)
    announced = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert announced == {a.key: (a.announce_from, a.versions[1]) for a in REGISTRY.values()}
    assert announced[0] == (0, 13)


def test_one_byte_at_a_time_is_still_a_request(client):
    for byte in encode_request(MetadataRequest(topics=[]), 9, 5, "slow"):
        client.sock.sendall(bytes([byte]))
    correlation, answer = client.receive(MetadataResponse, 9)
    assert correlation == 5
    assert answer.cluster_id


def test_pipelined_requests_are_answered_in_order(client, topic):
    request = client.fetch_request((topic, 0, 0), max_wait_ms=50)
    frames = [encode_request(request, 12, 1, "c")]
    frames += [encode_request(MetadataRequest(topics=[]), 9, n, "c") for n in range(2, 30)]
    client.sock.sendall(b"".join(frames))
    order = [int.from_bytes(client.read_frame()[:4], "big") for _ in frames]
    assert order == list(range(1, 30))


def test_a_long_name_that_is_there_twice(client):
    """The answer names the topic; the message must not name it again: it has no room."""
    topic = CreatableTopic(
        name="x" * 32_767, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic, topic], timeout_ms=1000, validate_only=False)
    (result,) = client.call(request, CreateTopicsResponse, 3).topics
    assert result.error_code == ErrorCode.INVALID_REQUEST
