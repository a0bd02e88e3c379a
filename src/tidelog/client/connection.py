"""One connection to one broker, with blocking calls and time limits.

    with BrokerConnection("localhost", 9092) as connection:
        answer = connection.request(MetadataRequest(), MetadataResponse)

The first request is preceded by ApiVersions; after that every message goes out in the
highest version that both sides know.  ``send`` and ``receive`` split a request in two, for
callers that wait for several brokers at once.  Answers come in the order of the requests.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Any, NamedTuple, TypeVar

from tidelog.errors import ApiError, ErrorCode
from tidelog.version import __version__
from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.schema import Message

R = TypeVar("R", bound=Message)

DEFAULT_PORT = 9092
CLIENT_ID = "tidelog"
CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 30.0
GREETING_TIMEOUT = 10.0  # the first answer costs a broker nothing

_LARGEST_ANSWER = 1 << 30
# The first answer lists APIs.  A banner in ASCII, read as a size, is more than this: a server
# of another kind is known at once, not after it has failed to send so much.
_LARGEST_GREETING = 1 << 20
_NO_BROKER = "is it a Kafka broker, and a listener without TLS?"
_SIZE = struct.Struct(">i")


class BrokerUnreachable(ApiError):
    """No broker answers, or the connection broke.  Trying again may help."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class CannotConnect(BrokerUnreachable):
    """There never was a connection: the address is wrong, or no broker is up."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message + advice)
        self._message = message

    def advised(self, option: str, start: str = "tidelog up") -> CannotConnect:
        """The same, and what to do; ``option`` is where this user names the brokers."""
        advice = f"; start one with `{start}`, or name another with {option}"
        return CannotConnect(self._message, advice)


class _Expected(NamedTuple):
    """An answer that is under way."""

    correlation_id: int
    answer: type[Message]
    version: int


class BrokerConnection:
    """See the module.  Connects when it is made; any failure closes it."""

    def __init__(
        self,
        host: str,
        port: int = DEFAULT_PORT,
        *,
        client_id: str = CLIENT_ID,
        connect_timeout: float = CONNECT_TIMEOUT,
        timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.timeout = timeout
        # For those who read much and keep nothing: an answer's records are then valid only until
        # the next one is received.  New memory for each would cost as much as the copy into it.
        self.reuse_memory = False
        self._memory = bytearray()
        self._versions: dict[int, tuple[int, int]] = {}
        self._expected: deque[_Expected] = deque()
        self._next_id = 0
        try:
            self._socket = socket.create_connection((host, port), connect_timeout)
        except OSError as error:
            raise CannotConnect(
                f"cannot reach a broker at {self.address}: {_reason(error)}"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(timeout)
        self._negotiate()

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)

    def fileno(self) -> int:
        """For :mod:`selectors`: readable when an answer begins to arrive."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._expected.clear()
        self._socket.close()

    def __enter__(self) -> BrokerConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- asking -----------------------------------------------------------------

    def version_of(self, message: type[Message], at_most: int | None = None) -> int:
        """The version in which this message goes out."""
        low, high = self._versions.get(message.api_key, (0, -1))
        ours = message.versions
        chosen = min(high, ours[1] if at_most is None else min(ours[1], at_most))
        if chosen < max(low, ours[0]):
            name = message.__name__.removesuffix("Request")
            offered = f"versions {low} to {high}" if high >= 0 else "no version"
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} offers {offered} of {name}, "
                f"this client speaks {ours[0]} to {ours[1]}",
            )
        return chosen

    def request(self, message: Message, answer: type[R], *, at_most: int | None = None) -> R:
        """Ask and wait for the answer.  ``at_most`` limits the version."""
        assert not self._expected, "another answer must be received first"
        self.send(message, answer, at_most=at_most)
        response = self.receive()
        assert isinstance(response, answer)
        return response

    def send(self, message: Message, answer: type[Message], *, at_most: int | None = None) -> None:
        """Ask; :meth:`receive` gets the answer."""
        version = self.version_of(type(message), at_most)
        self._send(message, answer, version)

    def receive(self) -> Message:
        """The next answer, in the order of the requests."""
        frame = self._read_frame()
        expected = self._expected.popleft()
        return self._decode(frame, expected)

    # -- bytes ------------------------------------------------------------------

    def _send(self, message: Message, answer: type[Message], version: int) -> None:
        self._next_id += 1
        frame = encode_request(message, version, self._next_id, self.client_id)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._broken(error) from error
        self._expected.append(_Expected(self._next_id, answer, version))

    def _decode(self, frame: memoryview, expected: _Expected) -> Message:
        try:
            correlation_id, response = decode_response(expected.answer, expected.version, frame)
        except ProtocolError as error:
            self.close()
            raise BrokerUnreachable(f"{self.address} sent a bad answer: {error}") from error
        if correlation_id != expected.correlation_id:
            self.close()
            raise BrokerUnreachable(f"{self.address} answers another request than was asked")
        return response

    def _read_frame(self, largest: int = _LARGEST_ANSWER) -> memoryview:
        try:
            (size,) = _SIZE.unpack(self._read(4))
            if not 4 <= size <= largest:
                self.close()
                raise BrokerUnreachable(
                    f"{self.address} does not speak Kafka's protocol: {_NO_BROKER}"
                )
            return self._read(size)
        except OSError as error:
            raise self._broken(error) from error

    def _read(self, size: int) -> memoryview:
        view, got = self._room(size), 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if not count:
                raise ConnectionResetError(0, "it closed the connection")
            got += count
        return view

    def _room(self, size: int) -> memoryview:
        if not self.reuse_memory:
            return memoryview(bytearray(size))
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]

    def _broken(self, error: OSError) -> BrokerUnreachable:
        self.close()
        if isinstance(error, TimeoutError):
            return BrokerUnreachable(f"{self.address} did not answer in {self.timeout:g} seconds")
        return BrokerUnreachable(f"lost the connection to {self.address}: {_reason(error)}")

    # -- versions ---------------------------------------------------------------

    def _negotiate(self) -> None:
        """What the broker speaks.  One that does not know our version answers in v0."""
        newest = ApiVersionsRequest.versions[1]
        self._socket.settimeout(min(self.timeout, GREETING_TIMEOUT))
        try:
            answer = self._ask_versions(newest)
        except BrokerUnreachable as error:
            if isinstance(error.__cause__, TimeoutError):
                message = f"{self.address} takes connections but does not answer: {_NO_BROKER}"
                raise BrokerUnreachable(message) from error
            if isinstance(error.__cause__, OSError):  # it hung up on our first words
                raise BrokerUnreachable(f"{error}: {_NO_BROKER}") from error
            raise
        self._socket.settimeout(self.timeout)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            own = [row for row in answer.api_keys if row.api_key == ApiVersionsRequest.api_key]
            answer = self._ask_versions(min(newest, own[0].max_version) if own else 0)
        if answer.error_code:
            self.close()
            raise ApiError(ErrorCode(answer.error_code))
        self._versions = {
            row.api_key: (row.min_version, row.max_version) for row in answer.api_keys
        }

    def _ask_versions(self, version: int) -> ApiVersionsResponse:
        request = ApiVersionsRequest(
            client_software_name="tidelog", client_software_version=__version__
        )
        self._send(request, ApiVersionsResponse, version)
        frame = self._read_frame(_LARGEST_GREETING)
        expected = self._expected.popleft()
        if int.from_bytes(frame[4:6], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION:
            expected = expected._replace(version=0)
        answer: Any = self._decode(frame, expected)
        assert isinstance(answer, ApiVersionsResponse)
        return answer


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def parse_address(text: str) -> tuple[str, int]:
    """``host:port``, ``host`` (port 9092) or ``[::1]:port``; ValueError if it is none."""
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address; write [host]:port")
        port = rest[1:]
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"{text!r} is not an address; write host:port")
    return host, int(port) if port else DEFAULT_PORT


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
