"""A connection to another broker, in the event loop: for the controller and for followers.

Requests go out at once and answers come in their order.  Whatever goes wrong ends the
connection and every request on it with :class:`BrokerUnreachable`; the next request
connects anew.  An answer has memory of its own, so that records in it can be used as they
are, without a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from typing import TypeVar

from tidelog.client.connection import BrokerUnreachable, format_address
from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.schema import Message

R = TypeVar("R", bound=Message)

_SIZE = struct.Struct(">i")
_LARGEST_ANSWER = 1 << 30
_BUFFER = 64 * 1024


class Peer:
    """See the module.  One per purpose: a Fetch that waits holds up what is behind it."""

    def __init__(self, host: str, port: int, client_id: str, timeout_ms: int) -> None:
        self.host = host
        self.port = port
        self._client_id = client_id
        self._timeout = timeout_ms / 1000
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        self._next_id = 0

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)

    async def request(
        self, message: Message, answer: type[R], version: int, extra_ms: int = 0
    ) -> R:
        """Ask and wait for the answer; ``extra_ms`` is how long the other side may wait."""
        self._next_id += 1
        correlation_id = self._next_id
        data = encode_request(message, version, correlation_id, self._client_id)
        try:
            async with asyncio.timeout(self._timeout + extra_ms / 1000):
                link = await self._connect()
                frame = await link.ask(data)
        except (OSError, TimeoutError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or "no answer in time"
            raise BrokerUnreachable(f"{self.address}: {reason}") from error
        try:
            found_id, response = decode_response(answer, version, frame)
        except ProtocolError as error:
            self.close()
            raise BrokerUnreachable(f"{self.address} sent a bad answer: {error}") from error
        if found_id != correlation_id:
            self.close()
            raise BrokerUnreachable(f"{self.address} answers another request than was asked")
        return response

    async def _connect(self) -> _Link:
        async with self._connecting:
            if self._link is None or self._link.ended:
                loop = asyncio.get_running_loop()
                try:
                    _, self._link = await loop.create_connection(_Link, self.host, self.port)
                except (ValueError, OverflowError) as error:  # of a host or port that cannot be
                    raise OSError(0, f"this is no address: {error}") from error
            return self._link

    def close(self) -> None:
        if self._link is not None:
            self._link.end()
            self._link = None


class _Link(asyncio.BufferedProtocol):
    """Frames of answers from a socket.  Large ones are read right into their place."""

    def __init__(self) -> None:
        self.ended = False
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[memoryview]] = deque()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._start = self._filled = 0
        self._frame: memoryview | None = None  # a large one that is under way
        self._got = 0

    async def ask(self, data: bytes) -> memoryview:
        if self.ended or self._transport is None:
            raise ConnectionResetError(0, "the connection is closed")
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._transport.write(data)
        try:
            return await future
        except asyncio.CancelledError:
            self.end()  # its answer would be taken for another's
            raise

    def end(self, error: Exception | None = None) -> None:
        self.ended = True
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error or ConnectionResetError(0, "the connection is closed"))

    # -- called by asyncio ------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc if isinstance(exc, OSError) else None)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if self._frame is not None:
            return self._frame[self._got :]
        if self._start == self._filled:
            self._start = self._filled = 0
        elif self._filled == len(self._buffer):  # less than a header is left
            rest = bytes(self._buffer[self._start : self._filled])
            self._buffer[: len(rest)] = rest
            self._start, self._filled = 0, len(rest)
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._got += nbytes
            if self._got == len(self._frame):
                frame, self._frame = self._frame, None
                self._deliver(frame)
            return
        self._filled += nbytes
        while self._filled - self._start >= 4 and self._frame is None and not self.ended:
            (size,) = _SIZE.unpack_from(self._buffer, self._start)
            if not 4 <= size <= _LARGEST_ANSWER:
                self.end(ConnectionResetError(0, "it does not speak Kafka's protocol"))
                return
            start = self._start + 4
            have = min(size, self._filled - start)
            frame = memoryview(bytearray(size))
            frame[:have] = self._buffer[start : start + have]
            self._start = start + have
            if have == size:
                self._deliver(frame)
            else:
                self._frame, self._got = frame, have

    def _deliver(self, frame: memoryview) -> None:
        if not self._waiting:
            self.end(ConnectionResetError(0, "an answer to no request"))
            return
        future = self._waiting.popleft()
        if not future.done():
            future.set_result(frame)
