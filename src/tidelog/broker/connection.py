"""One client connection: bytes in, frames to the dispatcher, replies out in order.

There is no task and no stream object per connection: bytes come from a non-blocking
:class:`Transport` and go there.  A request is served where it is read.  One that cannot be
answered at once has a :class:`Pending` in its place, so replies leave in the order of their
requests whatever order they become ready in.

Reading stops while output waits for a slow client, while a blocking reply (a parked
Fetch) is pending, and while too many answers wait for one before them.  So the memory of
a connection is bounded by one request and about a mebibyte of answers; records are file
ranges, which take none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.broker.lanes import READ, WRITE
from tidelog.broker.transport import SLICE, Chunk, Transport
from tidelog.log.segment import FileRange
from tidelog.wire.primitives import ProtocolError

if TYPE_CHECKING:
    from tidelog.broker.server import Server

log = logging.getLogger(__name__)

FIRST_BUFFER = 4 * 1024
BUSY_BUFFER = 256 * 1024  # of a client that fills it: several small requests in one read
MAX_PENDING = 256  # pipelined requests that wait for their second stage
_FRAME_SIZE = struct.Struct(">i").unpack_from
_SLICE_IN = 128 * 1024  # then connections with small requests have their turn
_SLICES_IN = 12
_SLICES = 3  # then every other connection has its turn
_BULK = 64 * 1024  # a buffer above this size is a bulk client's
_MOST_CHUNKS = 64  # then the answers are sent
_LARGE_ANSWER = 4 * 1024
_MAX_HEAPED = 1024 * 1024


class Pending:
    """A reply that comes later."""

    __slots__ = ("blocking", "chunks", "connection")

    soon = False  # it waits for work of ours, and not for other clients

    def __init__(self, connection: Connection, *, blocking: bool) -> None:
        self.connection = connection
        self.blocking = blocking  # stop reading until this one is answered
        self.chunks: Sequence[Chunk] | None = None

    def complete(self, chunks: Sequence[Chunk]) -> None:
        """The reply is ready; an empty one means that none is sent (acks=0)."""
        if self.chunks is None:
            self.chunks = chunks
            self.connection.pending_done()

    def cancel(self) -> None:
        """The client is gone.  Handlers that hold resources override this."""


class Connection:
    """See the module."""

    # Until there are other listeners, and clients that say who they are.
    listener = "PLAINTEXT"
    principal = "User:ANONYMOUS"

    def __init__(self, server: Server, transport: Transport) -> None:
        self.server = server
        self.fd = transport.fd
        self.local_host, self.local_port = transport.local_host, transport.local_port
        self.peer_host, self.peer = transport.peer_host, transport.peer
        self.idle_ticks = 0
        self.closed = False
        self.bulk = False  # which lane it stands in
        self._lanes = server.lanes
        self._transport = transport
        self._read_into = transport.read_into
        self._buffer = bytearray(FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._out: deque[Chunk] = deque()
        self._pending: deque[Pending] = deque()
        self._blocked = False  # a blocking reply is pending
        self._writing = False  # output waits for the client
        self._reading = True  # on_readable is called when there is something
        self._in_frames = False
        self._heaped = 0  # bytes of large answers that are not sent
        self._lanes.add(self)

    # -- reading ----------------------------------------------------------------

    def on_readable(self) -> None:
        if self._blocked or self._writing:
            self._while_paused()
            return
        self.idle_ticks = 0
        slices = _SLICES_IN
        while True:
            end = self._end
            room = min(len(self._buffer) - end, _SLICE_IN)
            try:
                n = self._read_into(self._view[end : end + room])
            except BlockingIOError:
                return
            except OSError as error:
                self.close(f"{error.strerror}")
                return
            if n == 0:
                self.close("")
                return
            self._end = end + n
            self._serve_frames()
            slices -= 1
            if n < room or self.closed or self._blocked or self._writing or not slices:
                return
            if len(self._buffer) < BUSY_BUFFER:
                self._replace_buffer(2 * len(self._buffer), self._end)
            if self.bulk:
                self._lanes.yield_to_small()
                if self.closed or self._blocked or self._writing:
                    return

    def _while_paused(self) -> None:
        """Data or the end of it, while we are not reading: only the end matters."""
        try:
            gone = self._transport.gone(may_end=self._serves_rest())
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            self.close("")
        else:
            self._reading = False
            self._watch()

    def _serves_rest(self) -> bool:
        """Is there more to serve before the end?  With acks=0 a client may send and go."""
        soon = any(pending.soon and pending.chunks is None for pending in self._pending)
        return soon and self._end > self._start

    def _watch(self) -> None:
        """Tell the lane what we wait for."""
        interest = (READ if self._reading else 0) | (WRITE if self._writing else 0)
        self._lanes.watch(self, interest)

    def _change_lane(self, bulk: bool) -> None:
        if self.bulk != bulk:
            interest = (READ if self._reading else 0) | (WRITE if self._writing else 0)
            self._lanes.move(self, bulk, interest)

    def _serve_frames(self) -> None:
        """Serve every whole frame in the buffer, then keep what is left."""
        view, dispatch, usual = self._view, self.server.dispatch, self.server.usual_request
        start, end = self._start, self._end
        self._in_frames = True
        try:
            while end - start >= 4 and not (self._blocked or self._writing):
                (size,) = _FRAME_SIZE(view, start)
                if not 0 < size <= usual and not self._may_be_large(size, start):
                    return
                if end - start - 4 < size:
                    break
                frame = view[start + 4 : start + 4 + size]
                start += 4 + size
                self._start = start
                dispatch(self, frame)
                if self.closed:
                    return
                if len(self._out) >= _MOST_CHUNKS or self._heaped > _MAX_HEAPED:
                    self._send()  # answers may be large: do not heap them up
                    if self.closed:
                        return
        except ProtocolError as error:
            self.server.refuse(self, error.message)
            return
        except Exception:
            # A bug of ours.  The client must not wait for an answer that never comes.
            log.exception("%s: a request failed", self.peer)
            self.hang_up("internal error")
            return
        finally:
            self._in_frames = False
        if start == end:
            self._start = self._end = 0
            if self._blocked and len(self._buffer) > BUSY_BUFFER:
                self._replace_buffer(FIRST_BUFFER, 0)  # it may wait for minutes
        else:
            self._make_room(start, end)
        if self._out and not self._writing:
            self._send(_SLICES)

    def _may_be_large(self, size: int, start: int) -> bool:
        """May this request be as long as it says?  Few are; the others are refused."""
        view, server = self._view, self.server
        if not 0 < size <= server.max_request:
            server.refuse_size(self, size, bytes(view[start : start + 4]))
            return False
        reason = server.too_large(view[start + 4 : self._end], size)
        if reason:
            server.refuse(self, reason)
        return not reason

    def _make_room(self, start: int, end: int) -> None:
        """Move what is left to the front; grow for a frame that does not fit.

        The buffer doubles as data comes in, so a client that only announces a large
        frame does not make us allocate one.
        """
        left = end - start
        if start and left:
            self._view[:left] = self._view[start:end]
        self._start, self._end = 0, left
        capacity = len(self._buffer)
        if left == capacity:
            size = int.from_bytes(self._view[:4], "big") + 4
            self._replace_buffer(min(size, 2 * capacity), left)

    def _replace_buffer(self, capacity: int, keep: int) -> None:
        buffer = bytearray(capacity)
        view = memoryview(buffer)
        view[:keep] = self._view[:keep]
        self._buffer, self._view = buffer, view
        if capacity > _BULK:
            self._change_lane(bulk=True)

    def shrink(self) -> None:
        """Give a large buffer back when the client has nothing to say."""
        if self._start == self._end and not self._out:
            self._start = self._end = 0
            if len(self._buffer) > FIRST_BUFFER:
                self._replace_buffer(FIRST_BUFFER, 0)
            self._change_lane(bulk=False)

    def _resume(self) -> None:
        """Go on after a pause: first what is in the buffer, then the socket."""
        if self.closed or self._blocked or self._writing or self._in_frames:
            return
        if self._end > self._start:
            self._serve_frames()
        if not (self._reading or self.closed or self._blocked or self._writing):
            self._reading = True
            self._watch()

    # -- replying ---------------------------------------------------------------

    def reply_small(self, answer: bytes | bytearray) -> None:
        """Answer the request that is being served with a few bytes."""
        if self._pending or not self._in_frames:
            self.reply([answer])
        else:
            self._out.append(answer)

    def reply(self, chunks: Sequence[Chunk]) -> None:
        """Answer the request that is being served."""
        for chunk in chunks:
            if type(chunk) is not FileRange and len(chunk) > _LARGE_ANSWER:
                self._heaped += len(chunk)
        if self._pending:
            placed = Pending(self, blocking=False)
            placed.chunks = chunks
            self._pending.append(placed)
            if len(self._pending) >= MAX_PENDING or self._heaped > _MAX_HEAPED:
                self._blocked = True
            return
        self._out.extend(chunks)
        if not self._in_frames and not self._writing:
            self._send()

    def park(self, pending: Pending) -> None:
        """The answer of the request that is being served comes later."""
        if self.closed:
            pending.cancel()
            return
        self._pending.append(pending)
        if pending.blocking or len(self._pending) >= MAX_PENDING:
            self._blocked = True

    def pending_done(self) -> None:
        """Some pending reply is ready: send those that are next in order."""
        if self.closed:
            return
        pending = self._pending
        while pending and pending[0].chunks is not None:
            self._out.extend(pending.popleft().chunks or ())
        if not pending:
            self._heaped = 0
        self._blocked = self._is_blocked()
        if self._out and not self._writing and not self._in_frames:
            self._send()
        if self._end > self._start:
            # The next request is served later, not inside whatever completed this one.
            asyncio.get_running_loop().call_soon(self._resume)
        else:
            self._resume()

    def _is_blocked(self) -> bool:
        """Must the requests behind those that are pending wait?"""
        pending = self._pending
        return bool(pending) and (
            len(pending) >= MAX_PENDING
            or self._heaped > _MAX_HEAPED
            or any(p.blocking for p in pending if p.chunks is None)
        )

    def _send(self, slices: int = 1) -> None:
        """Send what the socket takes, slice by slice; the rest waits for on_writable.

        Others are served between two slices: more than one only where we are called by
        the lane, and not in the middle of other work.
        """
        out = self._out
        try:
            if len(out) > 1 and self._heaped < SLICE:
                self._join_small()
            while out and slices:
                slices -= 1
                self._transport.write(out)
                if not out:
                    break
                self._change_lane(bulk=True)
                if slices:
                    self._lanes.yield_to_small()
                    if self.closed:
                        return
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(f"{error.strerror}")
            return
        if not self._pending:
            self._heaped = 0
        if bool(out) != self._writing:
            self._writing = bool(out)
            self._watch()

    def _join_small(self) -> None:
        """Answers to pipelined requests are small: one system call for all."""
        out = self._out
        if all(type(chunk) is not FileRange for chunk in out):
            joined = b"".join(out)  # type: ignore[arg-type]
            out.clear()
            out.append(joined)

    def on_writable(self) -> None:
        self.idle_ticks = 0
        self._send(_SLICES)
        self._resume()

    # -- closing ----------------------------------------------------------------

    def say_and_close(self, text: bytes) -> None:
        """A last word to something that is not a Kafka client."""
        with contextlib.suppress(OSError):
            self._transport.write(deque([text]))
        self.close("not a Kafka client")

    def hang_up(self, reason: str) -> None:
        """Close because of what the client sent; what came before it has its answers."""
        if self._out and not self._writing:
            self._send()
        self.close(reason)

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._lanes.remove(self)
        for pending in self._pending:
            pending.cancel()
        self._pending.clear()
        self._out.clear()
        self._transport.close()
        self.server.forget(self, reason)
