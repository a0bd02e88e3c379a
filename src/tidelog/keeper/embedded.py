"""The keeper of a single node: a tree in memory, journaled to one file.

Journal: one line per transaction, ``<crc32 in hex> <json>``; the JSON is a list of
operations, ``["create", path, data]``, ``["set", path, data]`` or ``["delete", path]``.
A line is synced before the change is visible.  A line that does not match its CRC ends
the journal (a crash while writing); it is cut off at the next start, and if more than
that one line follows (a rotten disk) the rest is kept aside.
Ephemeral znodes are not journaled: they die with the process.  At start the journal
is replaced by its own result when it has grown to several times that size.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from tidelog import files
from tidelog.files import write_atomically
from tidelog.keeper.keeper import (
    BadVersion,
    Check,
    Create,
    KeeperError,
    NodeExists,
    NoNode,
    NotEmpty,
    NotWritten,
    Operation,
    SessionEvent,
    Set,
    Stat,
    Watch,
)

log = logging.getLogger(__name__)

_COMPACT_ABOVE = 1 << 20

Step = list[str]  # kind, path, data


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    ephemeral: bool = False
    version: int = 0
    children: set[str] = field(default_factory=set)
    next_number: int = 0  # of a sequential child
    mzxid: int = -1


class EmbeddedKeeper:
    """See the module.  Made by :meth:`open`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0)}
        self._zxid = 0
        self._fd = -1
        self._size = 0
        self._data_watches: dict[str, dict[Watch, None]] = defaultdict(dict)
        self._child_watches: dict[str, dict[Watch, None]] = defaultdict(dict)

    @classmethod
    def open(cls, path: str) -> Self:
        """Read the journal and take it for writing."""
        keeper = cls(path)
        try:
            content = files.read_file(path)
        except FileNotFoundError:
            write_atomically(path, b"")
            content = b""
        good = keeper._replay(content)
        if good < len(content):
            _set_aside(path, content[good:])
        keeper._size = keeper._compact(good)
        keeper._fd = files.open(path, os.O_WRONLY | os.O_APPEND)
        files.ftruncate(keeper._fd, keeper._size)
        return keeper

    # -- the interface ----------------------------------------------------------

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        node = self._node(path)
        if watch:
            self._data_watches[path][watch] = None
        return node.data, _stat(node)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        found = map(self._nodes.get, paths)
        return [(node.data, _stat(node)) if node else None for node in found]

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        if watch:
            self._data_watches[path][watch] = None
        node = self._nodes.get(path)
        return _stat(node) if node else None

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        found = sorted(self._node(path).children)
        if watch:
            self._child_watches[path][watch] = None
        return found

    async def multi(self, operations: Sequence[Operation]) -> list[str]:
        steps, lasting, made = self._plan(operations)
        if lasting:
            self._write(lasting)
        self._apply(steps)
        if self._data_watches or self._child_watches:
            self._fire(steps)
        return made

    async def sync(self) -> None:
        return

    async def reachable(self) -> None:
        return

    def problem(self) -> str:
        return ""

    def on_session(self, listener: Callable[[SessionEvent], None]) -> None:
        """The session lives as long as the process: nothing happens to it."""

    async def close(self) -> None:
        if self._fd >= 0:
            files.close(self._fd)
            self._fd = -1

    # -- transactions -----------------------------------------------------------

    def _node(self, path: str) -> _Node:
        try:
            return self._nodes[path]
        except KeyError:
            raise NoNode(path) from None

    def _fire(self, steps: list[Step]) -> None:
        """Call the watches of what these steps have touched, each once."""
        due: list[Watch] = []
        for kind, path, *_ in steps:
            due += self._data_watches.pop(path, ())
            if kind != "set":
                due += self._child_watches.pop(path.rsplit("/", 1)[0] or "/", ())
            if kind == "delete":
                due += self._child_watches.pop(path, ())
        loop = asyncio.get_running_loop()
        for watch in dict.fromkeys(due):
            loop.call_soon(watch)

    def _plan(self, operations: Sequence[Operation]) -> tuple[list[Step], list[Step], list[str]]:
        """Check everything against the tree as it will be; all steps, those to journal, and
        the paths of the operations."""
        steps: list[Step] = []
        lasting: list[Step] = []
        made: list[str] = []
        seen: dict[str, tuple[int, bool] | None] = {}  # version, ephemeral: what changes here
        new_children: dict[str, set[str]] = {}

        def state(path: str) -> tuple[int, bool] | None:
            if path in seen:
                return seen[path]
            node = self._nodes.get(path)
            return (node.version, node.ephemeral) if node else None

        def step(ephemeral: bool, *parts: str) -> None:
            steps.append(list(parts))
            if not ephemeral:
                lasting.append(list(parts))

        def create(path: str, data: bytes, ephemeral: bool) -> None:
            if state(path):
                raise NodeExists(path)
            parent = path.rsplit("/", 1)[0]
            above = state(parent) if parent else (0, False)
            if above is None:
                create(parent, b"", False)
            elif above[1]:
                raise KeeperError(f"{parent} is ephemeral: it cannot have children")
            seen[path] = (0, ephemeral)
            new_children.setdefault(parent, set()).add(path)
            step(ephemeral, "ephemeral" if ephemeral else "create", path, _as_text(data))

        def below(path: str) -> Iterator[str]:
            """Everything under a path, the deepest first."""
            node = self._nodes.get(path)
            children = {f"{path}/{name}" for name in node.children} if node else set()
            children |= new_children.get(path, set())
            for child in sorted(children):
                if state(child):
                    yield from below(child)
                    yield child

        for operation in operations:
            path = operation.path
            if isinstance(operation, Create):
                if operation.sequential:
                    parent = self._nodes.get(path.rsplit("/", 1)[0] or "/")
                    number = parent.next_number if parent else 0
                    while state(f"{path}{number:010d}"):
                        number += 1
                    path = f"{path}{number:010d}"
                create(path, operation.data, operation.ephemeral)
                made.append(path)
                continue
            made.append(path)
            found = state(path)
            if found is None:
                raise NoNode(path)
            version, ephemeral = found
            if operation.version not in (-1, version):
                raise BadVersion(path)
            if isinstance(operation, Check):
                continue
            if isinstance(operation, Set):
                seen[path] = (version + 1, ephemeral)
                step(ephemeral, "set", path, _as_text(operation.data))
                continue
            doomed = list(below(path))
            if doomed and not operation.recursive:
                raise NotEmpty(path)
            for gone in (*doomed, path):
                step((state(gone) or found)[1], "delete", gone)
                seen[gone] = None
        return steps, lasting, made

    def _write(self, steps: list[Step]) -> None:
        line = _line(steps)
        try:
            if files.fstat(self._fd).st_size != self._size:
                files.ftruncate(self._fd, self._size)  # what an earlier failure left behind
            if files.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, "the disk is full")
            files.fdatasync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                files.ftruncate(self._fd, self._size)
            raise NotWritten(f"{self._path} cannot be written: {error.strerror}") from error
        self._size += len(line)

    def _apply(self, steps: list[Step]) -> None:
        self._zxid += 1
        for kind, path, *rest in steps:
            if kind == "delete":
                del self._nodes[path]
                self._parent(path).children.discard(path.rsplit("/", 1)[1])
            elif kind == "set":
                node = self._nodes[path]
                node.data = _as_bytes(rest[0])
                node.version += 1
                node.mzxid = self._zxid
            else:
                self._nodes[path] = _Node(
                    _as_bytes(rest[0]), self._zxid, kind == "ephemeral", mzxid=self._zxid
                )
                parent, name = self._parent(path), path.rsplit("/", 1)[1]
                parent.children.add(name)
                if name[-10:].isdecimal():
                    parent.next_number = max(parent.next_number, int(name[-10:]) + 1)

    def _parent(self, path: str) -> _Node:
        return self._nodes[path.rsplit("/", 1)[0] or "/"]

    # -- the journal ------------------------------------------------------------

    def _replay(self, content: bytes) -> int:
        """Apply every whole line; returns where they end."""
        good = 0
        for line in content.splitlines(keepends=True):
            steps = _parse_line(line)
            if steps is None:
                break
            self._apply(steps)
            good += len(line)
        return good

    def _compact(self, size: int) -> int:
        """Replace a journal that has outgrown the tree; returns its size."""
        if size > _COMPACT_ABOVE:
            compact = b"".join(
                _line([["create", path, _as_text(node.data)]])
                for path, node in self._nodes.items()
                if path != "/"
            )
            if size > 4 * len(compact):
                write_atomically(self._path, compact)
                return len(compact)
        return size


def _set_aside(path: str, rest: bytes) -> None:
    """What follows the first damaged line: nothing of worth if it is the last one."""
    if b"\n" in rest[:-1]:
        write_atomically(path + ".damaged", rest)
        log.error(
            "%s is damaged: %d bytes from there on are not used, and kept in %s.damaged",
            path,
            len(rest),
            path,
        )
    else:
        log.warning("%s: cut off a transaction that was not finished", path)


def _stat(node: _Node) -> Stat:
    return Stat(node.version, node.czxid, node.ephemeral, node.ephemeral, node.mzxid)


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _line(steps: list[Step]) -> bytes:
    body = json.dumps(steps, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parse_line(line: bytes) -> list[Step] | None:
    crc, _, body = line.rstrip(b"\n").partition(b" ")
    if not body or not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(body):
        return None
    steps: list[Step] = json.loads(body)
    return steps
