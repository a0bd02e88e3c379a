"""One connection: versions, and what is said when the other end is not what it should be."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidelog.client.cluster import Cluster
from tidelog.client.connection import (
    BrokerConnection,
    BrokerUnreachable,
    CannotConnect,
    format_address,
    parse_address,
)
from tidelog.errors import ApiError, ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.frame import encode_response
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse


@contextmanager
def server(*answers: Callable[[int, int], bytes]) -> Iterator[int]:
    """A server that answers one request after the other; each answer is made from the
    version and the correlation id.  Afterwards it closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener.accept()[0] as peer:
            for answer in answers:
                size = int.from_bytes(peer.recv(4), "big")
                frame = peer.recv(size, socket.MSG_WAITALL)
                peer.sendall(
                    answer(int.from_bytes(frame[2:4], "big"), int.from_bytes(frame[4:8], "big"))
                )

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        thread.join()


def versions(*rows: tuple[int, int, int]) -> Callable[[int, int], bytes]:
    keys = [ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in rows]
    return lambda version, correlation_id: encode_response(
        ApiVersionsResponse(error_code=0, api_keys=keys), version, correlation_id
    )


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_request_goes_out_in_the_highest_common_version(broker: LocalBroker) -> None:
    with BrokerConnection("127.0.0.1", broker.port) as connection:
        assert connection.version_of(MetadataRequest) == MetadataRequest.versions[1]
        assert connection.version_of(FetchRequest, at_most=12) == 12
        answer = connection.request(MetadataRequest(topics=[]), MetadataResponse)
        assert answer.brokers[0].port == broker.port
        assert not connection.closed
    assert connection.closed


def test_requests_may_be_under_way_together(broker: LocalBroker) -> None:
    with BrokerConnection("127.0.0.1", broker.port) as connection:
        for _ in range(3):
            connection.send(MetadataRequest(topics=[]), MetadataResponse)
        answers = [connection.receive() for _ in range(3)]
    assert all(isinstance(answer, MetadataResponse) for answer in answers)


def test_an_older_broker_is_spoken_to_in_its_own_versions() -> None:
    def refuse(version: int, correlation_id: int) -> bytes:
        assert version > 0
        row = ApiVersion(api_key=18, min_version=0, max_version=2)
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[row])
        return encode_response(response, 0, correlation_id)  # always in version 0

    def accept(version: int, correlation_id: int) -> bytes:
        assert version == 2
        return versions((3, 0, 5), (1, 0, 3))(version, correlation_id)

    with server(refuse, accept) as port, BrokerConnection("127.0.0.1", port) as connection:
        assert connection.version_of(MetadataRequest) == 5
        with pytest.raises(ApiError, match=r"offers versions 0 to 3 of Fetch.*speaks 4 to"):
            connection.version_of(FetchRequest)


def test_an_api_that_the_broker_lacks_is_named() -> None:
    with server(versions((18, 0, 3))) as port, BrokerConnection("127.0.0.1", port) as connection:
        with pytest.raises(ApiError, match="offers no version of Metadata") as error:
            connection.request(MetadataRequest(), MetadataResponse)
        assert error.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_nobody_listens() -> None:
    port = closed_port()
    with pytest.raises(CannotConnect) as error:
        BrokerConnection("127.0.0.1", port)
    said = f"cannot reach a broker at 127.0.0.1:{port}: connection refused"
    assert str(error.value) == said
    # Whoever passes it on says where this user names the brokers; the last one wins.
    advised = error.value.advised("kafka.bootstrap.servers").advised("-b")
    assert str(advised) == f"{said}; start one with `tidelog up`, or name another with -b"


@pytest.mark.parametrize(
    "banner",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"220 mail.example.org ESMTP\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",  # TLS: alert
    ],
)
def test_a_server_that_is_no_broker(banner: bytes) -> None:
    """It is known by its first bytes, though it keeps the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=lambda: peers.append(listener.accept()[0]))
        peers: list[socket.socket] = []
        thread.start()
        connecting = threading.Thread(target=lambda: errors.append(refusal(port)))
        errors: list[str] = []
        connecting.start()
        thread.join()
        peers[0].sendall(banner)
        connecting.join()
        peers[0].close()
    assert errors == [
        f"127.0.0.1:{port} does not speak Kafka's protocol: "
        "is it a Kafka broker, and a listener without TLS?"
    ]


def refusal(port: int) -> str:
    with pytest.raises(BrokerUnreachable) as error:
        BrokerConnection("127.0.0.1", port)
    return str(error.value)


def test_a_server_that_hangs_up_on_the_first_request() -> None:
    with server() as port:
        message = refusal(port)
    assert message.startswith(f"lost the connection to 127.0.0.1:{port}: ")
    assert message.endswith(": is it a Kafka broker, and a listener without TLS?")


def test_a_server_that_hangs_up() -> None:
    with server(versions((3, 0, 12))) as port:
        connection = BrokerConnection("127.0.0.1", port)
        with pytest.raises(BrokerUnreachable, match=r"lost the connection to 127.0.0.1"):
            connection.request(MetadataRequest(), MetadataResponse)
        assert connection.closed


def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BrokerUnreachable, match=r"does not answer: is it a Kafka broker"):
            BrokerConnection("127.0.0.1", port, timeout=0.05)


def test_an_answer_to_another_request() -> None:
    def wrong(version: int, correlation_id: int) -> bytes:
        return versions((3, 0, 12))(version, correlation_id + 1)

    with server(wrong) as port, pytest.raises(BrokerUnreachable, match="another request"):
        BrokerConnection("127.0.0.1", port)


def test_an_answer_that_is_cut_short() -> None:
    refused = pytest.raises(BrokerUnreachable, match="bad answer")
    with server(lambda _v, c: b"\0\0\0\x06" + c.to_bytes(4, "big") + b"\0\0") as port, refused:
        BrokerConnection("127.0.0.1", port)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("localhost", ("localhost", 9092)),
        (" h:1 ", ("h", 1)),
        ("[::1]:9093", ("::1", 9093)),
        ("[::1]", ("::1", 9092)),
        ("::1", ("::1", 9092)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected
    assert parse_address(format_address(*expected)) == expected


@pytest.mark.parametrize("text", ["", ":9092", "h:x", "h:0", "h:65536", "[::1", "[::1]9", "h:-1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        parse_address(text)


def test_any_bootstrap_address_that_works_will_do(broker: LocalBroker) -> None:
    with Cluster(f"127.0.0.1:{closed_port()},{broker.bootstrap}") as cluster:
        assert list(cluster.metadata([]).brokers) == [0]


def test_all_addresses_that_were_tried_are_named() -> None:
    first, second = closed_port(), closed_port()
    cluster = Cluster(f"127.0.0.1:{first},127.0.0.1:{second}")
    with pytest.raises(CannotConnect) as error:
        cluster.metadata()
    assert f"127.0.0.1:{first}: connection refused" in str(error.value)
    assert f"127.0.0.1:{second}: connection refused" in str(error.value)


@pytest.mark.parametrize("bootstrap", ["", " , ", "h:x", "a:1,b:y"])
def test_a_bad_bootstrap_list_is_refused(bootstrap: str) -> None:
    with pytest.raises(ApiError, match="bootstrap"):
        Cluster(bootstrap)
