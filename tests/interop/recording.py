"""Which client was seen using which API in which version.

``./dev test --clients --record`` puts a proxy before the shared brokers.  It reads the head of
every request, and the client's name and version from ApiVersions; clients before KIP-511 do
not say them, so their client id has to do.  Each worker leaves a file in ``.cache``; in the
end ``python tests/interop/recording.py`` makes ``seen.json`` of them, which
``docs/compatibility.md`` is made of.  What foreign suites gave goes the same way into
``suites.json``.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tidelog.testing import LocalBroker
from tidelog.wire.frame import skip_tags

_HERE = Path(__file__).parent
_PARTS = _HERE.parents[1] / ".cache" / "seen"
SEEN = _HERE / "seen.json"
SUITES = _HERE / "suites.json"
_SUITE_PARTS = _PARTS / "suites"

_API_VERSIONS = 18
_HEAD = struct.Struct(">ihhih")  # size, key, version, correlation id, size of the client id
Uses = set[tuple[str, int, int]]  # client, key, version


@contextmanager
def served(settings: Mapping[str, Any] | None = None) -> Iterator[LocalBroker]:
    """A broker for clients, recorded if that is asked for; it must log no traceback."""
    kind = RecordedBroker if os.environ.get("TIDELOG_RECORD") else LocalBroker
    with kind(settings) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


class RecordedBroker(LocalBroker):
    """A broker behind a proxy, whose port it shows as its own.  It is not to be restarted."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._proxy_port: int = self._listener.getsockname()[1]
        self._uses: Uses = set()
        advertised = f"PLAINTEXT://127.0.0.1:{self._proxy_port}"
        super().__init__({**(settings or {}), "advertised.listeners": advertised})

    def start(self) -> RecordedBroker:
        super().start()
        threading.Thread(target=self._accept, args=(self.port,), daemon=True).start()
        self.port = self._proxy_port
        return self

    def __exit__(self, *error: Any) -> None:
        self._listener.close()
        super().__exit__(*error)
        _PARTS.mkdir(parents=True, exist_ok=True)
        (_PARTS / f"{uuid.uuid4().hex}.json").write_text(json.dumps(sorted(self._uses)))

    def _accept(self, broker_port: int) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", broker_port))
            except OSError:  # one of them has ended
                return
            for work in (self._requests, _answers):
                threading.Thread(target=work, args=(client, broker), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        name: str | None = None
        with _hanging_up(client, broker), client.makefile("rb") as file:
            while size := file.read(4):
                frame = size + file.read(int.from_bytes(size, "big"))
                _, key, api_version, _, id_size = _HEAD.unpack_from(frame)
                if key == _API_VERSIONS and api_version >= 3:
                    name = _software(frame, _HEAD.size + max(id_size, 0))
                elif name is None:
                    name = _by_client_id(frame[_HEAD.size : _HEAD.size + max(id_size, 0)].decode())
                self._uses.add((name, key, api_version))
                broker.sendall(frame)


def _software(frame: bytes, position: int) -> str:
    """What the client calls itself: two short compact strings, whatever follows them."""
    position = skip_tags(memoryview(frame), position)
    parts = []
    for _ in range(2):
        end = position + frame[position]
        parts.append(frame[position + 1 : end].decode())
        position = end
    return f"{parts[0]} {parts[1].removeprefix('v')}"


def _by_client_id(client_id: str) -> str:
    """Clients that do not say what they are: the installed aiokafka and kafkajs."""
    if client_id.startswith("aiokafka"):
        return f"aiokafka {version('aiokafka')}"
    if client_id == "kafkajs":
        lock = json.loads((_HERE / "kafkajs" / "package-lock.json").read_text())
        return f"kafkajs {lock['packages']['node_modules/kafkajs']['version']}"
    return f"client id {client_id!r}"


def _answers(client: socket.socket, broker: socket.socket) -> None:
    with _hanging_up(client, broker):
        while data := broker.recv(1 << 16):
            client.sendall(data)


@contextmanager
def _hanging_up(*sockets: socket.socket) -> Iterator[None]:
    try:
        with suppress(OSError):
            yield
    finally:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def note(suite: str, result: Mapping[str, Any]) -> None:
    """Keep what a foreign suite gave, if that is asked for."""
    if os.environ.get("TIDELOG_RECORD"):
        _SUITE_PARTS.mkdir(parents=True, exist_ok=True)
        (_SUITE_PARTS / f"{suite}.json").write_text(json.dumps({suite: result}))


def merge() -> None:
    """All parts into two files."""
    _merge_suites()
    _merge_uses()
    shutil.rmtree(_PARTS)


def _merge_suites() -> None:
    """{suite: result}; a suite that was not run keeps what it gave before."""
    results: dict[str, Any] = json.loads(SUITES.read_text()) if SUITES.exists() else {}
    kept = set(results)
    for part in _SUITE_PARTS.glob("*.json"):
        result = json.loads(part.read_text())
        results |= result
        kept -= result.keys()
    for name in sorted(kept):
        print(f"no longer recorded: {name} (was it skipped?)")
    SUITES.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def _merge_uses() -> None:
    """{client: {key: [versions]}}."""
    clients: dict[str, dict[str, list[int]]] = {}
    uses = {tuple(use) for part in _PARTS.glob("*.json") for use in json.loads(part.read_text())}
    for client, key, api_version in sorted(uses):
        clients.setdefault(client, {}).setdefault(str(key), []).append(api_version)
    for name in json.loads(SEEN.read_text()).keys() - clients.keys():
        print(f"no longer recorded: {name} (was it skipped?)")
    lines = [f"  {json.dumps(name)}: {json.dumps(apis)}" for name, apis in clients.items()]
    SEEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    merge()
