"""The keeper of a single node: a tree in memory, journaled to one file.

Journal: one line per transaction, ``<crc32 in hex> <json>``; the JSON is a list of
operations, ``["create", path, data]``, ``["set", path, data]`` or ``["delete", path]``.
A line is synced before the change is visible.  A line that does not match its CRC ends
the journal (a crash while writing); what follows is cut off at the next start.
Ephemeral znodes are not journaled: they die with the process.  At start the journal
is replaced by its own result when it has grown to several times that size.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.coordination.keeper import (
    BadVersion,
    Create,
    KeeperError,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Set,
    Stat,
)
from tidelog.log.files import write_atomically

log = logging.getLogger(__name__)

_COMPACT_ABOVE = 1 << 20


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    ephemeral: bool = False
    version: int = 0
    children: set[str] = field(default_factory=set)


class EmbeddedKeeper:
    """See the module.  Made by :meth:`open`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0)}
        self._zxid = 0
        self._fd = -1

    @classmethod
    def open(cls, path: str) -> EmbeddedKeeper:
        """Read the journal and take it for writing."""
        keeper = cls(path)
        good = keeper._replay()
        keeper._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if os.fstat(keeper._fd).st_size > good:
            log.warning("%s: cut off a transaction that was not finished", path)
            os.ftruncate(keeper._fd, good)
        return keeper

    # -- the interface ----------------------------------------------------------

    async def get(self, path: str) -> tuple[bytes, Stat]:
        node = self._node(path)
        return node.data, _stat(node)

    async def exists(self, path: str) -> Stat | None:
        node = self._nodes.get(path)
        return _stat(node) if node else None

    async def children(self, path: str) -> list[str]:
        return sorted(self._node(path).children)

    async def multi(self, operations: Sequence[Operation]) -> None:
        steps = self._plan(operations)
        lasting = [step for step in steps if step[0] != "ephemeral"]
        if lasting:
            self._write(lasting)
        self._apply(steps)

    async def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # -- transactions -----------------------------------------------------------

    def _node(self, path: str) -> _Node:
        try:
            return self._nodes[path]
        except KeyError:
            raise NoNode(path) from None

    def _plan(self, operations: Sequence[Operation]) -> list[list[str]]:
        """Check everything against the tree as it will be; the steps as journaled."""
        steps: list[list[str]] = []
        made: dict[str, bool] = {}  # path -> exists, for what this transaction changes

        def there(path: str) -> bool:
            return made.get(path, path in self._nodes)

        def create(path: str, data: bytes, kind: str) -> None:
            if there(path):
                raise NodeExists(path)
            parent = path.rsplit("/", 1)[0]
            if parent and not there(parent):
                create(parent, b"", "create")
            made[path] = True
            steps.append([kind, path, _as_text(data)])

        for operation in operations:
            path = operation.path
            if isinstance(operation, Create):
                create(path, operation.data, "ephemeral" if operation.ephemeral else "create")
                continue
            if not there(path):
                raise NoNode(path)
            node = self._nodes.get(path)
            if node and operation.version not in (-1, node.version):
                raise BadVersion(path)
            if isinstance(operation, Set):
                steps.append(["set", path, _as_text(operation.data)])
                continue
            below = [p for p in self._nodes if p.startswith(path + "/") and there(p)]
            if below and not operation.recursive:
                raise NotEmpty(path)
            for doomed in [*sorted(below, key=len, reverse=True), path]:
                made[doomed] = False
                steps.append(["delete", doomed])
        return steps

    def _write(self, steps: list[list[str]]) -> None:
        line = _line(steps)
        start = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, line) != len(line):
                raise OSError(28, "the disk is full")
            os.fdatasync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, start)
            raise KeeperError(f"{self._path} cannot be written: {error.strerror}") from error

    def _apply(self, steps: list[list[str]]) -> None:
        self._zxid += 1
        for kind, path, *rest in steps:
            if kind == "delete":
                del self._nodes[path]
                self._parent(path).children.discard(path.rsplit("/", 1)[1])
            elif kind == "set":
                node = self._nodes[path]
                node.data = _as_bytes(rest[0])
                node.version += 1
            else:
                self._nodes[path] = _Node(_as_bytes(rest[0]), self._zxid, kind == "ephemeral")
                self._parent(path).children.add(path.rsplit("/", 1)[1])

    def _parent(self, path: str) -> _Node:
        return self._nodes[path.rsplit("/", 1)[0] or "/"]

    # -- the journal ------------------------------------------------------------

    def _replay(self) -> int:
        """Apply every whole line; returns where they end."""
        try:
            with open(self._path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return 0
        good = 0
        for line in content.splitlines(keepends=True):
            steps = _parse_line(line)
            if steps is None:
                break
            self._apply(steps)
            good += len(line)
        if good > _COMPACT_ABOVE:
            compact = b"".join(
                _line([["create", path, _as_text(node.data)]])
                for path, node in self._nodes.items()
                if path != "/"
            )
            if good > 4 * len(compact):
                write_atomically(self._path, compact)
                return len(compact)
        return good


def _stat(node: _Node) -> Stat:
    return Stat(node.version, node.czxid, node.ephemeral)


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _line(steps: list[list[str]]) -> bytes:
    body = json.dumps(steps, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parse_line(line: bytes) -> list[list[str]] | None:
    crc, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(body):
        return None
    steps: list[list[str]] = json.loads(body)
    return steps
