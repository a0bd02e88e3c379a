"""A network between brokers that can be cut, and works again later.

Brokers advertise a port of ours, and reach ZooKeeper through one; we pass on what comes.  Who
speaks is known by the client id of the first request (``broker-2``), and for ZooKeeper by the
port.  A cut holds back what is on its way in both directions and tells nobody, as a broken wire
does; when it is healed everything arrives, as with TCP.  Clients are never cut off, nor is a
connection on which nothing is said.

Our ports are open as long as those behind them are: that a process has died looks the same from
here, and a cluster can have this network from its start, whatever else is done to it.

This needs no rights on the machine, unlike network namespaces.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidelog.testing import LocalCluster
from tidelog.testing.ports import free_port

ZOOKEEPER = 0  # as the other side of a cut; brokers have their ids
_CLIENT = -1
_PREFIX = b"broker-"
_HOST = "127.0.0.1"
_LOOK_AGAIN_SECONDS = 0.02


@dataclass(frozen=True)
class _Door:
    """A port of ours, and whose it stands for."""

    listener: socket.socket
    behind: int  # the port that it stands for
    owner: int
    visitor: int | None  # who comes in here, where that is known


@dataclass
class _Talk:
    """Who speaks to whom on a connection."""

    owner: int
    visitor: int | None

    @property
    def link(self) -> frozenset[int | None]:
        return frozenset((self.owner, self.visitor))


class CutNetwork:
    """Lies between the brokers of a cluster that is not started yet."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._doors: list[_Door] = []
        self._cuts: set[frozenset[int]] = set()
        self._changed = threading.Condition()
        self._over = threading.Event()
        address, slash, path = cluster.zookeeper.partition("/")
        keeper = int(address.rpartition(":")[2])
        for broker in cluster.brokers.values():
            mine = self._open(broker.port, broker.broker_id, None)
            broker.settings["advertised.listeners"] = f"PLAINTEXT://{_HOST}:{mine}"
            way = self._open(keeper, ZOOKEEPER, broker.broker_id)
            broker.settings["zookeeper.connect"] = f"{_HOST}:{way}{slash}{path}"

    @contextlib.contextmanager
    def cut(self, one: int, *others: int) -> Iterator[None]:
        """Nothing passes between one and the others, within ``with``."""
        with self._changed:
            self._cuts |= {frozenset((one, other)) for other in others}
        try:
            yield
        finally:
            self._heal()

    def _heal(self) -> None:
        with self._changed:
            self._cuts.clear()
            self._changed.notify_all()

    def __enter__(self) -> CutNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._heal()
        for door in self._doors:
            _close(door.listener)

    # -- doors ----------------------------------------------------------------------

    def _open(self, behind: int, owner: int, visitor: int | None) -> int:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = free_port()
        listener.bind((_HOST, port))
        door = _Door(listener, behind, owner, visitor)
        self._doors.append(door)
        _in_background(self._stand_in, door)
        return port

    def _stand_in(self, door: _Door) -> None:
        """Who connects is refused, as long as there is nobody behind the door."""
        listening = False
        while not self._over.is_set():
            try:
                with socket.create_connection((_HOST, door.behind)) as held:
                    if not listening:
                        door.listener.listen()
                        _in_background(self._accept, door)
                        listening = True
                    held.recv(1)  # nothing ever comes: it returns when the connection ends
            except OSError:
                if listening:
                    # It keeps its port, and can listen again (on Linux).
                    with contextlib.suppress(OSError):
                        door.listener.shutdown(socket.SHUT_RDWR)
                    listening = False
                self._over.wait(_LOOK_AGAIN_SECONDS)

    def _accept(self, door: _Door) -> None:
        while True:
            try:
                near, _ = door.listener.accept()
            except OSError:  # it does not listen any more
                return
            _in_background(self._serve, door, near)

    # -- passing on -----------------------------------------------------------------

    def _serve(self, door: _Door, near: socket.socket) -> None:
        """From who has connected to where it wants to; the way back has a thread of its own."""
        try:
            far = socket.create_connection((_HOST, door.behind))
        except OSError:
            near.close()
            return
        talk = _Talk(door.owner, door.visitor)
        _in_background(self._pass_on, far, near, talk)
        self._pass_on(near, far, talk)

    def _pass_on(self, source: socket.socket, sink: socket.socket, talk: _Talk) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if talk.visitor is None:  # the first that speaks is who has connected
                    talk.visitor = _sender(data)
                self._wait(talk)
                sink.sendall(data)
        self._wait(talk)  # nor does the end of a connection get through
        _close(source)
        _close(sink)

    def _wait(self, talk: _Talk) -> None:
        if talk.link in self._cuts:
            with self._changed:
                self._changed.wait_for(lambda: talk.link not in self._cuts)


def _in_background(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()


def _close(end: socket.socket) -> None:
    """Also for the thread that waits at it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _sender(request: bytes) -> int:
    """The broker that sends a request, by its client id."""
    if len(request) < 14:
        return _CLIENT
    (size,) = struct.unpack_from(">h", request, 12)
    name = request[14 : 14 + max(size, 0)]
    return int(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else _CLIENT
