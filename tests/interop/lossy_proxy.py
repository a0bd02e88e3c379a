"""A proxy that can lose the answer to a Produce: the broker has written, the client cannot know."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PRODUCE = 0


class LossyProxy:
    """Forwards connections to a broker on this machine; see the module."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.broker_port = 0
        self.lost = 0
        self._armed = False

    def lose_next_answer(self) -> None:
        """Hang up instead of handing over the answer to the next Produce."""
        self.lost = 0
        self._armed = True

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self.broker_port))
            doomed: set[int] = set()  # correlation ids
            for work in (self._requests, self._answers):
                threading.Thread(target=work, args=(client, broker, doomed), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, doomed: set[int]) -> None:
        with _hanging_up(client, broker):
            for frame in _frames(client):
                key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                if key == _PRODUCE and self._armed:
                    self._armed = False
                    doomed.add(correlation_id)
                broker.sendall(frame)

    def _answers(self, client: socket.socket, broker: socket.socket, doomed: set[int]) -> None:
        with _hanging_up(client, broker):
            for frame in _frames(broker):
                if struct.unpack_from(">i", frame, 4)[0] in doomed:
                    self.lost += 1
                    return
                client.sendall(frame)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Whole frames with their size, until the connection ends."""
    with source.makefile("rb") as file:
        while size := file.read(4):
            yield size + file.read(int.from_bytes(size, "big"))


@contextmanager
def _hanging_up(*sockets: socket.socket) -> Iterator[None]:
    """When one side is gone, so is the other."""
    try:
        with suppress(OSError):
            yield
    finally:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
