"""A request: what was asked, by which client, over which connection, and the way to answer it.

Dispatch makes one for each frame, and every handler gets it.  A handler that returns the answer
needs no more; one that cannot answer yet keeps the request and calls ``reply`` later.  Replies
leave in the order of the requests whatever order they become known in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.broker.connection import Connection, Pending
from tidelog.broker.failures import code_of
from tidelog.broker.request_stats import ApiStats
from tidelog.broker.transport import Chunk
from tidelog.errors import ErrorCode
from tidelog.wire.frame import REQUEST_PREFIX, encode_response
from tidelog.wire.schema import Message

if TYPE_CHECKING:
    from tidelog.broker.registry import Api

log = logging.getLogger(__name__)

_LONGEST_CLIENT_ID = 1000  # it goes into records and answers, where a string has 32767 bytes

# Errors that the operator should know of, not only the client.
_FOR_THE_OPERATOR = {ErrorCode.GROUP_MAX_SIZE_REACHED: "group memory"}


class Request:
    """See the module."""

    __slots__ = (
        "answered",
        "api",
        "arrived",
        "connection",
        "correlation_id",
        "data",
        "deferred",
        "message",
        "pending",
        "start",
        "stats",
        "version",
    )

    def __init__(
        self,
        connection: Connection,
        api: Api,
        version: int,
        correlation_id: int,
        data: memoryview,
        start: int,
        stats: ApiStats,
        arrived: float,
    ) -> None:
        self.connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.data = data  # the frame; once it is deferred, its header
        self.start = start  # where the message begins, after the header
        self.message: Message  # unless the handler decodes it by itself
        self.stats = stats
        self.arrived = arrived
        self.answered = False
        self.deferred = False
        self.pending: Deferred | None = None  # its place, until it is answered

    @classmethod
    def local(cls, api: Api, version: int, stats: ApiStats, arrived: float) -> Request:
        """A request of this broker to itself: its handler is called, and no connection answers."""
        header = REQUEST_PREFIX.pack(api.key, version, 0, -1)
        nowhere: Connection = None  # type: ignore[assignment]
        return cls(nowhere, api, version, 0, memoryview(header), len(header), stats, arrived)

    @property
    def client_id(self) -> str:
        """What the client calls itself."""
        first = REQUEST_PREFIX.size
        size = REQUEST_PREFIX.unpack_from(self.data)[3]
        return str(self.data[first : first + max(size, 0)], "utf-8", "replace")[:_LONGEST_CLIENT_ID]

    @property
    def listener(self) -> str:
        """The name of the listener that the client is connected to."""
        return self.connection.listener

    @property
    def principal(self) -> str:
        """Who the client is."""
        return self.connection.principal

    def defer(self) -> None:
        """Keep a place for the reply; requests behind it wait, as they do in Kafka."""
        self.connection.park(Deferred(self, blocking=True))

    def reply(self, message: Message) -> None:
        """Answer, now or in the place that was kept."""
        if self.answered:
            return
        if code := message.__dict__.get("error_code"):
            self.stats.failed(code)
        try:
            encoded = encode_response(message, self.version, self.correlation_id)
        except Exception as error:
            self.fail(error)
            return
        self.send([encoded])

    def fail(self, error: Exception) -> None:
        """Answer with the code of an error."""
        api, version = self.api, self.version
        code, text = code_of(error, f"{self.connection.peer}: {api.name} v{version}")
        if self.answered:
            return
        self.stats.failed(code)
        message = self.message
        if code in _FOR_THE_OPERATOR:
            group = getattr(message, "group_id", "")[:100]
            self.connection.server.complain(
                _FOR_THE_OPERATOR[code],
                f"{self.connection.peer}: group {group!r}: {text}; refused",
            )
        try:
            answer = api.failed(message, version, code, text)
            if answer is None:
                self.connection.hang_up(f"a {api.name} that gets no answer failed")
            else:
                self.send([encode_response(answer, version, self.correlation_id)])
        except Exception:
            log.exception("%s v%d cannot be answered", api.name, version)
            self.connection.close("internal error")

    def send(self, chunks: Sequence[Chunk]) -> None:
        """Answer with an encoded message."""
        if self.answered:
            return
        self.answered = True
        if self.pending is not None:
            self.pending.complete(chunks)
        else:
            self.connection.reply(chunks)


class Deferred(Pending):
    """The reply to a request that is answered later."""

    __slots__ = ("request",)

    def __init__(self, request: Request, *, blocking: bool) -> None:
        super().__init__(request.connection, blocking=blocking)
        self.request = request
        request.deferred, request.pending = True, self
        # The connection's buffer is used again.
        request.data = memoryview(bytes(request.data[: request.start]))

    def complete(self, chunks: Sequence[Chunk]) -> None:
        if self.chunks is None:
            request = self.request
            request.pending = None  # no cycle: what the request holds may be large
            request.stats.served(request.arrived)
            super().complete(chunks)

    def cancel(self) -> None:
        self.request.pending = None  # no cycle here either
        self.request.answered = True  # there is no client any more
