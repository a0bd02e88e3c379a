"""The peers: servers that move the same bytes as a broker and do nothing else.

    python -m bench.floor KIND [--answer N] [--range N] [--blocking]

    discard    take frames, answer each                        (the limit of loopback)
    write      the same, and write each frame to rolling files (the floor of Produce)
    memory     answer each frame with a range of memory        (the limit of loopback)
    mmap       ... with a range of a mapped file               (the floor of Fetch)
    sendfile   ... with a range of a file by sendfile          (the floor of Fetch)
    sink       receive until the end                           (one way)

A frame is ``int32 size`` and as many bytes, as in Kafka.  With ``--blocking`` connections
are served one after the other without a poll: the least that two processes can do.
Without it one epoll loop serves all of them, as any broker must.  The rolling files are
those of a log with retention: a new one when the last is full, the oldest is dropped, so
pages are used again.  The process prints its port and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import mmap
import os
import select
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bench.wire import HOST

# The size of a file in the rolling log, here and in the brokers' settings.  Not smaller: every
# new segment costs Kafka two index files of 10 MB whose first touch is slow, and with 32 MB it
# loses up to a third of its throughput to that while tidelog loses nothing.
ROLL_BYTES = 256 << 20
FILE_BYTES = 256 << 20  # what the fetch floors send from
_BUFFER = (1 << 20) + (64 << 10)

KINDS = ("discard", "write", "memory", "mmap", "sendfile", "sink")


class RollingFiles:
    """Append-only files of one size; only the newest and the one before it are kept."""

    def __init__(self, directory: str, size: int = ROLL_BYTES) -> None:
        self._directory = directory
        self._size = size
        self._position = size
        self._files: list[int] = []
        self._count = 0
        self._helper = ThreadPoolExecutor(1)  # freeing pages takes a while

    def append(self, data: memoryview | bytes) -> None:
        size = len(data)
        if self._position + size > self._size:
            self._roll()
        os.pwrite(self._files[-1], data, self._position)
        self._position += size

    def _roll(self) -> None:
        path = os.path.join(self._directory, f"{self._count}.log")
        self._count += 1
        self._position = 0
        self._files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))
        os.unlink(path)  # it lives as long as it is open
        if len(self._files) > 2:
            self._helper.submit(os.close, self._files.pop(0))

    def close(self) -> None:
        self._helper.shutdown(wait=True)
        for fd in self._files:
            os.close(fd)
        self._files.clear()


class Peer(Protocol):
    """One connection."""

    sock: socket.socket

    def on_readable(self) -> bool:
        """Take what is there; False at the end of the connection."""
        ...

    def on_writable(self) -> bool:
        """Go on with output; False while there is more."""
        ...


class _Frames:
    """Reads whole frames; the buffer begins with a frame whenever it is not empty."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._view = memoryview(bytearray(_BUFFER))
        self._end = 0

    def read(self) -> list[memoryview] | None:
        """The frames that are complete now; None at the end."""
        view = self._view
        n = self.sock.recv_into(view[self._end :])
        if n == 0:
            return None
        end = self._end + n
        start = 0
        frames = []
        while end - start >= 4:
            stop = start + 4 + int.from_bytes(view[start : start + 4], "big")
            if stop > end:
                break
            frames.append(view[start + 4 : stop])
            start = stop
        self._rest = (start, end)
        return frames

    def keep_rest(self) -> None:
        start, end = self._rest
        if start and start < end:
            self._view[: end - start] = self._view[start:end]
        self._end = end - start


class AnsweringPeer:
    """Small answers: discard and write."""

    def __init__(self, sock: socket.socket, answer: bytes, files: RollingFiles | None) -> None:
        self.sock = sock
        self._frames = _Frames(sock)
        self._answer = answer
        self._files = files

    def on_readable(self) -> bool:
        frames = self._frames.read()
        if frames is None:
            return False
        if frames:
            if self._files is not None:
                append = self._files.append
                for frame in frames:
                    append(frame)
            self.sock.send(self._answer * len(frames))
        self._frames.keep_rest()
        return True

    def on_writable(self) -> bool:
        return True


class SendingPeer:
    """Large answers: a head and a range, from memory, a map or a file."""

    def __init__(self, sock: socket.socket, head: bytes, size: int, source: Source) -> None:
        self.sock = sock
        self._frames = _Frames(sock)
        self._head = head
        self._size = size
        self._source = source
        self._position = 0
        self._left = 0

    def on_readable(self) -> bool:
        frames = self._frames.read()
        if frames is None:
            return False
        self._frames.keep_rest()
        if frames:
            self._position = self._source.next_range(self._size)
            self._left = self._size
            if self._source.by_sendfile:
                self.sock.send(self._head, socket.MSG_MORE)
            else:
                sent = self.sock.sendmsg(
                    [self._head, self._source.view(self._position, self._size)]
                )
                self._left -= sent - len(self._head)
        return True

    def on_writable(self) -> bool:
        if not self._left:
            return True
        position = self._position + self._size - self._left
        try:
            if self._source.by_sendfile:
                sent = os.sendfile(self.sock.fileno(), self._source.fd, position, self._left)
            else:
                sent = self.sock.send(self._source.view(position, self._left))
        except BlockingIOError:
            return False
        self._left -= sent
        return not self._left


class Source:
    """What ranges are sent from; memory is one range again and again."""

    def __init__(self, kind: str, size: int, directory: str) -> None:
        self.by_sendfile = kind == "sendfile"
        self.fd = -1
        self._next = 0
        self._memory: memoryview | None = None
        if kind == "memory":
            self._memory = memoryview(b"x" * size)  # not zeros: those are one page
            return
        self.fd = os.open(os.path.join(directory, "hot"), os.O_RDWR | os.O_CREAT, 0o600)
        chunk = b"x" * (1 << 20)
        for position in range(0, FILE_BYTES, len(chunk)):
            os.pwrite(self.fd, chunk, position)
        self._map = memoryview(mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ))

    def next_range(self, size: int) -> int:
        """Where the next answer begins: round and round."""
        self._next = (self._next + size) % FILE_BYTES
        return self._next

    def view(self, position: int, length: int) -> memoryview:
        if self._memory is not None:
            return self._memory[-length:]
        return self._map[position : position + length]


class SinkPeer:
    """Takes everything and says when it has it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._view = memoryview(bytearray(1 << 20))

    def on_readable(self) -> bool:
        if self.sock.recv_into(self._view):
            return True
        self.sock.send(b"!")
        return False

    def on_writable(self) -> bool:
        return True


# -- serving ------------------------------------------------------------------------


class _Server:
    def __init__(self, options: argparse.Namespace, directory: str) -> None:
        self._options = options
        kind = options.kind
        self._files = RollingFiles(directory) if kind == "write" else None
        self._source = (
            Source(kind, options.range, directory)
            if kind in ("memory", "mmap", "sendfile")
            else None
        )

    def peer(self, sock: socket.socket) -> Peer:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = self._options
        if self._source is not None:
            return SendingPeer(sock, bytes(options.answer), options.range, self._source)
        if options.kind == "sink":
            return SinkPeer(sock)
        return AnsweringPeer(sock, bytes(options.answer), self._files)

    def serve_one_by_one(self, listener: socket.socket) -> None:
        poller = select.poll()
        poller.register(listener.fileno(), select.POLLIN)
        poller.register(sys.stdin.fileno(), select.POLLIN)
        while True:
            if any(fd == sys.stdin.fileno() for fd, _ in poller.poll()):
                return
            sock, _ = listener.accept()
            with sock:
                peer = self.peer(sock)
                try:
                    while peer.on_readable():
                        while not peer.on_writable():
                            pass
                except OSError:
                    continue

    def serve_all(self, listener: socket.socket) -> None:
        peers: dict[int, Peer] = {}
        poller = select.epoll()
        poller.register(listener.fileno(), select.EPOLLIN)
        poller.register(sys.stdin.fileno(), select.EPOLLIN)
        listener.setblocking(False)
        while True:
            for fd, event in poller.poll():
                peer = peers.get(fd)
                if peer is None:
                    if fd != listener.fileno():
                        return
                    sock, _ = listener.accept()
                    sock.setblocking(False)
                    peers[sock.fileno()] = self.peer(sock)
                    poller.register(sock.fileno(), select.EPOLLIN)
                    continue
                try:
                    if event & select.EPOLLOUT:
                        done = peer.on_writable()
                        if done:
                            poller.modify(fd, select.EPOLLIN)
                    elif not peer.on_readable():
                        raise ConnectionResetError
                    elif not peer.on_writable():
                        poller.modify(fd, select.EPOLLOUT)
                except OSError:
                    poller.unregister(fd)
                    peers.pop(fd).sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.floor")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--answer", type=int, default=1)
    parser.add_argument("--range", type=int, default=1 << 20)
    parser.add_argument("--blocking", action="store_true")
    parser.add_argument("--data", default=None)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=options.data) as directory,
        socket.create_server((HOST, 0), backlog=1024) as listener,
    ):
        server = _Server(options, directory)
        print(listener.getsockname()[1], flush=True)
        if options.blocking:
            server.serve_one_by_one(listener)
        else:
            server.serve_all(listener)


# -- from the other side ----------------------------------------------------------------


class Floor:
    """``with Floor("write", answer=52) as floor: connect(floor.port)``"""

    def __init__(
        self,
        kind: str,
        *,
        answer: int = 1,
        size: int = 1 << 20,
        blocking: bool = False,
        data: str | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", "bench.floor", kind]
        self._command += ["--answer", str(answer), "--range", str(size)]
        if blocking:
            self._command.append("--blocking")
        if data:
            self._command += ["--data", data]
        self.port = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Floor:
        root = Path(__file__).resolve().parent.parent
        self._process = subprocess.Popen(
            self._command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


if __name__ == "__main__":
    main()
