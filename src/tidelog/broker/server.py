"""Listening sockets and the set of open connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker import registry, tracing
from tidelog.broker.connection import Connection
from tidelog.broker.dispatch import Dispatcher, only_controller_requests
from tidelog.broker.lanes import Lanes, make_lanes
from tidelog.broker.transport import Transport
from tidelog.errors import SettingError
from tidelog.log import descriptors
from tidelog.rate_limited_log import Complaints
from tidelog.settings import Settings, parse_listener

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

_DIGITS = re.compile(r"\d+")
_ACCEPTS_PER_EVENT = 64
_SHRINK_AFTER_TICKS = 2
_HTTP = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE")
_HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This is a tidelog broker: it speaks Kafka's protocol, not HTTP.\n"
)


class Server:
    """Accepts connections and hands their frames to the dispatcher."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        dispatcher = Dispatcher(broker)
        self.request_stats = dispatcher.stats
        self.dispatch: tracing.Dispatch = dispatcher.serve
        if log.isEnabledFor(logging.DEBUG):
            self.dispatch = tracing.traced(self.dispatch, broker)
        self._to_all = self.dispatch
        self._settings = settings
        self.max_request: int = settings["socket.request.max.bytes"]
        self.usual_request = min(self.max_request, registry.MAX_REQUEST)
        self.too_large = registry.too_large
        self._max_connections: int = settings["max.connections"]
        self._complaints = Complaints(log, broker.clock)
        self._listeners: list[socket.socket] = []
        self.connections: dict[Connection, None] = {}  # in the order in which they came
        self.lanes: Lanes
        self.port = 0

    # -- listening --------------------------------------------------------------

    def bind(self) -> None:
        """Take the ports, so that a port in use is known before the data is opened."""
        for listener in self._settings["listeners"]:
            host, port = parse_listener(listener)
            sock = _listen(host, port, self._settings["socket.listen.backlog.size"])
            self._listeners.append(sock)
        self.port = self._listeners[0].getsockname()[1]

    def start(self, *, clients: bool = True) -> None:
        """Begin to accept; without ``clients`` the controller only, until :meth:`let_clients_in`.

        A broker that has just joined knows nothing.  A client that is told so believes it:
        librdkafka drops every broker that an answer to Metadata does not name, and for good if
        it names none.
        """
        if not clients:
            self.dispatch = partial(only_controller_requests, self._to_all)
        loop = asyncio.get_running_loop()
        self.lanes = make_lanes(loop)
        for sock in self._listeners:
            loop.add_reader(sock.fileno(), self._on_connect, sock)

    def let_clients_in(self) -> None:
        self.dispatch = self._to_all

    def _on_connect(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_EVENT):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    why = descriptors.reason(error)
                    self._complaints.warn("accept", f"no new connections: {why}")
                    self._pause_accepting(listener)
                return
            if len(self.connections) >= self._max_connections:
                limit = f"max.connections={self._max_connections} reached; connection refused"
                self._complaints.warn("max.connections", limit)
                sock.close()
                continue
            if not descriptors.may_connect(sock.fileno(), len(self.connections)):
                self._complaints.warn(
                    "descriptors",
                    f"out of file descriptors: the limit is {descriptors.limit()} (ulimit -n), and "
                    f"the last ones are kept for logs; connection refused with "
                    f"{len(self.connections)} open: raise the limit, or set max.connections",
                )
                sock.close()
                continue
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        settings = self._settings
        buffers = settings["socket.send.buffer.bytes"], settings["socket.receive.buffer.bytes"]
        try:
            connection = Connection(self, Transport(sock, settings["fetch.transfer"], *buffers))
            self.connections[connection] = None
            log.debug("%s: connected", connection.peer)
        except OSError:
            sock.close()  # the client is gone before we could greet it

    def _pause_accepting(self, listener: socket.socket) -> None:
        """Out of descriptors: look again in a second instead of spinning."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())

        def again() -> None:
            if listener.fileno() >= 0:
                loop.add_reader(listener.fileno(), self._on_connect, listener)

        loop.call_later(1.0, again)

    # -- what connections ask ---------------------------------------------------

    def refuse_size(self, connection: Connection, size: int, start: bytes) -> None:
        """This is not the size of a request: say what it may be, and hang up."""
        if start[:2] == b"\x16\x03":
            reason = "these are TLS bytes, but the listener is PLAINTEXT: check security.protocol"
        elif start in _HTTP:
            reason = "this is HTTP; the port speaks Kafka's protocol"
            connection.say_and_close(_HTTP_ANSWER)
        elif size <= 0:
            reason = f"a request cannot have {size} bytes"
        else:
            limit = f"socket.request.max.bytes={self.max_request}"
            reason = f"a request of {size} bytes is over {limit}"
        self.refuse(connection, reason)

    def refuse(self, connection: Connection, reason: str) -> None:
        """Bad input: say so in the log and hang up, as Kafka does."""
        kind = _DIGITS.sub("#", reason)  # "99 bytes" and "100 bytes" are the same complaint
        self._complaints.warn(kind, f"{connection.peer}: {reason}; connection closed")
        connection.hang_up("bad request")

    def complain(self, kind: str, message: str) -> None:
        """Tell the operator something about a client, not too often."""
        self._complaints.warn(kind, message)

    def forget(self, connection: Connection, reason: str) -> None:
        self.connections.pop(connection, None)
        log.debug("%s: %s", connection.peer, f"closed: {reason}" if reason else "disconnected")

    # -- housekeeping -----------------------------------------------------------

    async def reap_idle(self) -> None:
        """Close connections that have been silent for too long; shrink their buffers before."""
        limit_ms: int = self._settings["connections.max.idle.ms"]
        tick = 5.0 if limit_ms < 0 else max(0.05, min(5.0, limit_ms / 4000))
        while True:
            await asyncio.sleep(tick)
            for connection in list(self.connections):
                connection.idle_ticks += 1
                if limit_ms >= 0 and connection.idle_ticks * tick * 1000 > limit_ms:
                    connection.close("idle")
                elif connection.idle_ticks == _SHRINK_AFTER_TICKS:
                    connection.shrink()

    def stop_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._listeners:
            loop.remove_reader(sock.fileno())
            sock.close()
        self._listeners.clear()

    def hang_up(self) -> None:
        """Close every connection."""
        for connection in list(self.connections):
            connection.close("the broker stops")

    def close(self) -> None:
        self.hang_up()
        if hasattr(self, "lanes"):
            self.lanes.close()


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    """A listening socket; an empty host is every interface, IPv4 and IPv6."""
    shown = f"{host or '*'}:{port}"
    try:
        if host in ("", "0.0.0.0", "::") and socket.has_dualstack_ipv6() and host != "0.0.0.0":
            sock = socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "the port is in use; choose another (--port, or listeners in the settings)"
        else:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise SettingError(f"cannot listen on {shown}: {reason}") from error
    sock.setblocking(False)
    return sock
