"""Two lanes for connections, so that a small request does not wait behind large ones.

Every connection stands in one of two epolls of ours, and asyncio watches only these two:
handing on an event through asyncio takes as long as parsing a request.  A connection
begins in the small lane; one that fills its buffer or its socket goes to the bulk lane.

Large requests and answers move in slices, and between two slices the small lane has its
turn.  So a small request waits for one slice, at most for one whole request being written,
however many bulk clients there are; nothing here needs a thread.

Without epoll (not on Linux) asyncio watches every connection, and there is one lane.
"""

from __future__ import annotations

import asyncio
import select
from typing import Protocol

READ, WRITE = 1, 4  # EPOLLIN and EPOLLOUT; errors and hang-ups come with either

_EVENTS_PER_TURN = 64
# Between two turns comes all that asyncio does: replies to a Fetch that waited, timers, new
# connections.  They must not wait for every bulk client.
_BULK_PER_TURN = 2


class Served(Protocol):
    """What stands in a lane."""

    fd: int
    bulk: bool

    def on_readable(self) -> None: ...

    def on_writable(self) -> None: ...


class Lanes:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._served: dict[int, Served] = {}
        self._small, self._bulk = select.epoll(), select.epoll()
        self._yielding = False
        loop.add_reader(self._small.fileno(), self._serve_small)
        loop.add_reader(self._bulk.fileno(), self._serve_bulk)

    def add(self, connection: Served) -> None:
        self._served[connection.fd] = connection
        self._small.register(connection.fd, READ)

    def watch(self, connection: Served, interest: int) -> None:
        """What the connection waits for from now on."""
        (self._bulk if connection.bulk else self._small).modify(connection.fd, interest)

    def move(self, connection: Served, bulk: bool, interest: int) -> None:
        """To the other lane."""
        before, after = (self._small, self._bulk) if bulk else (self._bulk, self._small)
        before.unregister(connection.fd)
        connection.bulk = bulk
        after.register(connection.fd, interest)

    def remove(self, connection: Served) -> None:
        """Before its socket is closed."""
        del self._served[connection.fd]
        (self._bulk if connection.bulk else self._small).unregister(connection.fd)

    def close(self) -> None:
        for lane in (self._small, self._bulk):
            self._loop.remove_reader(lane.fileno())
            lane.close()

    def yield_to_small(self) -> None:
        """Called by a bulk connection between two slices."""
        if not self._yielding:
            self._yielding = True
            try:
                self._serve_small()
            finally:
                self._yielding = False

    def _serve_small(self) -> None:
        self._serve(self._small, _EVENTS_PER_TURN)

    def _serve_bulk(self) -> None:
        self._serve(self._bulk, _BULK_PER_TURN)

    def _serve(self, lane: select.epoll, most: int) -> None:
        served = self._served
        for fd, events in lane.poll(0, most):
            connection = served.get(fd)  # one before it may have closed it
            if connection is None:
                continue
            if events & ~WRITE:
                connection.on_readable()
            if events & WRITE and served.get(fd) is connection:
                connection.on_writable()


class OneLane(Lanes):
    """Where there is no epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def add(self, connection: Served) -> None:
        self.watch(connection, READ)

    def watch(self, connection: Served, interest: int) -> None:
        if interest & READ:
            self._loop.add_reader(connection.fd, connection.on_readable)
        else:
            self._loop.remove_reader(connection.fd)
        if interest & WRITE:
            self._loop.add_writer(connection.fd, connection.on_writable)
        else:
            self._loop.remove_writer(connection.fd)

    def move(self, connection: Served, bulk: bool, interest: int) -> None:  # noqa: ARG002
        connection.bulk = bulk

    def remove(self, connection: Served) -> None:
        self.watch(connection, 0)

    def close(self) -> None:
        pass

    def yield_to_small(self) -> None:
        pass


def make_lanes(loop: asyncio.AbstractEventLoop) -> Lanes:
    """The lanes of this platform."""
    return Lanes(loop) if hasattr(select, "epoll") else OneLane(loop)
