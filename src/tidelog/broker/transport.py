"""The bytes of one connection: the only module that touches the socket of a client.

Plain TCP.  Whatever comes beside it (TLS) has the same methods: they never wait, and raise
BlockingIOError when the socket has nothing to read or no room.
"""

from __future__ import annotations

import os
import socket
from collections import deque

from tidelog.log.segment import FileRange

Chunk = bytes | bytearray | memoryview | FileRange

# A send wakes the client each time, and costs a third more in pieces of 256 KiB.
SLICE = 512 * 1024
_SMALL = 32 * 1024  # a range up to this size is copied into the reply: one system call
_GATHER = 64


class Transport:
    """See the module."""

    def __init__(
        self, sock: socket.socket, transfer: str, send_buffer: int, receive_buffer: int
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, size in ((socket.SO_SNDBUF, send_buffer), (socket.SO_RCVBUF, receive_buffer)):
            if size > 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        self._sock = sock
        self.fd = sock.fileno()
        local, peer = sock.getsockname(), sock.getpeername()
        self.local_host, self.local_port = _plain_host(local[0]), local[1]
        self.peer_host = _plain_host(peer[0])
        self.peer = f"{self.peer_host}:{peer[1]}"
        here = self.peer_host == self.local_host or self.peer_host.startswith("127.")
        # sendfile for other machines; on this one a mapped file is faster.
        self._send_files = transfer == "sendfile" or (transfer == "auto" and not here)
        self.read_into = sock.recv_into  # into a memoryview: how many bytes; 0 is the end
        self._send = sock.send

    def write(self, out: deque[Chunk]) -> None:
        """Send what the socket takes, up to a slice, and take it off the front of ``out``."""
        first = out[0]
        if type(first) is FileRange and self._send_files and first.length > _SMALL:
            sent = self.send_file(first)
        elif len(out) == 1 and type(first) is not FileRange:
            sent = self._send(first)  # type: ignore[arg-type]
            if sent == len(first):
                out.clear()
                return
        else:
            sent = self._sock.sendmsg(self._gather(out))
        _advance(out, sent)

    def send_file(self, records: FileRange) -> int:
        """Send from the page cache, without a copy."""
        count = min(records.length, SLICE)
        sent = os.sendfile(self.fd, records.file.fd, records.position, count)
        if sent == 0:
            raise OSError(5, "the segment ended before its records did")
        return sent

    def _gather(self, out: deque[Chunk]) -> list[bytes | bytearray | memoryview]:
        """The next chunks as memory, for one system call."""
        views: list[bytes | bytearray | memoryview] = []
        room = SLICE
        for chunk in out:
            if len(views) == _GATHER or room <= 0:
                break
            if type(chunk) is FileRange:
                if chunk.length <= _SMALL:
                    size = chunk.length
                    views.append(chunk.read())
                elif self._send_files:
                    break
                else:
                    # A small rest goes along: it is not worth a system call of its own.
                    size = chunk.length if chunk.length <= room + _SMALL else room
                    views.append(chunk.file.view(chunk.position, size))
                if len(views[-1]) != size:
                    raise OSError(5, "the segment ended before its records did")
            else:
                views.append(chunk)  # type: ignore[arg-type]
            room -= len(views[-1])
        return views

    def gone(self, *, may_end: bool) -> bool:
        """Has the client gone, while nothing is read from it?  BlockingIOError: it is silent.

        With ``may_end`` it may have sent all that it has to send, and still be there.
        """
        # After a reset there may still be data, and epoll tells of it again and again.
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return True
        return not (self._sock.recv(1, socket.MSG_PEEK) or may_end)

    def close(self) -> None:
        self._sock.close()


def _advance(out: deque[Chunk], sent: int) -> None:
    """Take ``sent`` bytes off the front of the output."""
    while sent or (out and not len(out[0])):
        first = out[0]
        size = len(first)
        if sent >= size:
            sent -= size
            out.popleft()
        elif type(first) is FileRange:
            out[0] = FileRange(first.file, first.position + sent, size - sent)
            return
        else:
            out[0] = memoryview(first)[sent:]  # type: ignore[arg-type]
            return


def _plain_host(host: str) -> str:
    """An IPv4 client on a dual-stack socket is shown as what it is."""
    return host.removeprefix("::ffff:")
