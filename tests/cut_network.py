"""A network between brokers that can be cut, and works again later.

Brokers advertise a port of ours, and reach ZooKeeper through one; we pass on what comes.  Who
speaks is known by the client id of the first request (``broker-2``), and for ZooKeeper by the
port.  A cut holds back what is on its way in both directions and tells nobody, as a broken wire
does; when it is healed everything arrives, as with TCP.  Clients are never cut off.

This needs no rights on the machine, unlike network namespaces.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from tidelog.testing import LocalCluster

ZOOKEEPER = 0  # as the other side of a cut; brokers have their ids
_CLIENT = -1
_PREFIX = b"broker-"


class CutNetwork:
    """Lies between the brokers of a cluster that is not started yet."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._listeners: list[socket.socket] = []
        self._cuts: set[frozenset[int]] = set()
        self._changed = threading.Condition()
        host, _, path = cluster.zookeeper.partition("/")
        keeper = int(host.rpartition(":")[2])
        for broker in cluster.brokers.values():
            mine = self._listen(broker.port, broker.broker_id, None)
            broker.settings["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{mine}"
            way = self._listen(keeper, ZOOKEEPER, broker.broker_id)
            broker.settings["zookeeper.connect"] = f"127.0.0.1:{way}/{path}"

    def cut(self, one: int, *others: int) -> None:
        """Nothing passes between one and the others."""
        with self._changed:
            self._cuts |= {frozenset((one, other)) for other in others}

    def heal(self) -> None:
        with self._changed:
            self._cuts.clear()
            self._changed.notify_all()

    def __enter__(self) -> CutNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        for listener in self._listeners:
            listener.close()

    # -- passing on -----------------------------------------------------------------

    def _listen(self, port: int, to: int, sender: int | None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(
            target=self._accept, args=(listener, port, to, sender), daemon=True
        ).start()
        found: int = listener.getsockname()[1]
        return found

    def _accept(self, listener: socket.socket, port: int, to: int, sender: int | None) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            work = threading.Thread(target=self._serve, args=(near, port, to, sender), daemon=True)
            work.start()

    def _serve(self, near: socket.socket, port: int, to: int, sender: int | None) -> None:
        """From who has connected to where it wants to; the way back has a thread of its own."""
        with contextlib.suppress(OSError):
            first = near.recv(65536)
            link = frozenset((to, _sender(first) if sender is None else sender))
            far = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=self._pass_on, args=(far, near, link), daemon=True).start()
            self._pass_on(near, far, link, first)
            return
        near.close()

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, link: frozenset[int], data: bytes = b""
    ) -> None:
        with contextlib.suppress(OSError):
            data = data or source.recv(65536)
            while data:
                self._wait(link)
                sink.sendall(data)
                data = source.recv(65536)
        self._wait(link)  # nor does the end of a connection get through
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _wait(self, link: frozenset[int]) -> None:
        if link in self._cuts:
            with self._changed:
                self._changed.wait_for(lambda: link not in self._cuts)


def _sender(request: bytes) -> int:
    """The broker that sends a request, by its client id."""
    if len(request) < 14:
        return _CLIENT
    (size,) = struct.unpack_from(">h", request, 12)
    name = request[14 : 14 + max(size, 0)]
    return int(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else _CLIENT
