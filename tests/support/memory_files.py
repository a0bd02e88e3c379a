"""A file system in memory with power cuts: what was not synced may be lost, torn or kept.

    with MemoryFiles().installed() as disk:
        ...                              # every operation of tidelog.files works in memory
        disk.cut_power("/b1", rng)       # the broker whose log.dirs are below /b1 has lost power
        disk.crash("/b1")                # or its process was killed: the page cache survives
        disk.come_back("/b1")            # what is left of it can be opened again

Until then nothing is found at the path, and after that there are new files.  Descriptors that were
open go on with the old ones: what is left of a broker that was stopped in the middle writes to
files that no longer have a name.

What a power cut may do is as hostile as POSIX allows, and more than ext4 does:
  - a file keeps what was synced, then the first of the later changes, in order; of the writes
    after those any 512-byte sectors arrive, and where none did there may be zeros or garbage;
  - a directory keeps the names that were synced, and the first of the later changes, in order;
    directories do not wait for each other, and syncing a file does not sync its name.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from tidelog import files

_SECTOR = 512
_FIRST_FD = 1 << 20  # no descriptor of the system: one that goes astray is an error


@dataclass(eq=False)
class _File:
    modified_ns: int
    data: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut to a size
    locked_by: int | None = None

    def change(self, position: int, data: bytes | None, now_ns: int) -> None:
        _apply(self.data, position, data)
        self.changes.append((position, data))
        self.modified_ns = now_ns

    def sync(self) -> None:
        for change in self.changes:
            _apply(self.synced, *change)
        self.changes.clear()

    def survivor(self, rng: random.Random | None) -> _File:
        if rng is None:
            data, synced = bytearray(self.data), bytearray(self.synced)
            return _File(self.modified_ns, data, synced, list(self.changes))
        kept = bytearray(self.synced)
        count = _some(len(self.changes), rng)
        for change in self.changes[:count]:
            _apply(kept, *change)
        if rng.random() < 0.5:
            for position, data in self.changes[count:]:
                if data is None:
                    break  # a file system writes nothing new to blocks that are not free yet
                _tear(kept, position, data, rng)
        return _File(self.modified_ns, kept, bytearray(kept))


def _some(count: int, rng: random.Random) -> int:
    """None of so many, all, or any number."""
    return rng.choice((0, count, rng.randint(0, count)))


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _tear(content: bytearray, position: int, data: bytes, rng: random.Random) -> None:
    """Some sectors of a write arrive."""
    end, start = position + len(data), position
    while start < end:
        stop = min(end, (start // _SECTOR + 1) * _SECTOR)
        how = rng.choice(("arrives", "lost", "lost", "zeros", "garbage"))
        if how == "arrives":
            _apply(content, start, data[start - position : stop - position])
        elif how == "zeros" and start >= len(content):
            _apply(content, start, bytes(stop - start))
        elif how == "garbage" and start >= len(content):
            _apply(content, start, rng.randbytes(stop - start))
        start = stop


@dataclass(eq=False)
class _Directory:
    names: dict[str, _File | _Directory] = field(default_factory=dict)
    synced: dict[str, _File | _Directory] = field(default_factory=dict)
    changes: list[list[tuple[str, _File | _Directory | None]]] = field(default_factory=list)

    def change(self, *names: tuple[str, _File | _Directory | None]) -> None:
        """Names that are given or taken away (None), all at once."""
        _rename(self.names, names)
        self.changes.append(list(names))

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.changes.clear()

    def survivor(self, rng: random.Random | None) -> _Directory:
        if rng is None:
            copies = {id(node): node.survivor(None) for node in self._nodes()}
            result = _Directory(
                {name: copies[id(node)] for name, node in self.names.items()},
                {name: copies[id(node)] for name, node in self.synced.items()},
            )
            for names in self.changes:
                result.changes.append([(name, node and copies[id(node)]) for name, node in names])
            return result
        kept = dict(self.synced)
        for names in self.changes[: _some(len(self.changes), rng)]:
            _rename(kept, names)
        survivors = {name: node.survivor(rng) for name, node in sorted(kept.items())}
        return _Directory(survivors, dict(survivors))

    def _nodes(self) -> Iterator[_File | _Directory]:
        yield from self.names.values()
        yield from self.synced.values()
        yield from (node for names in self.changes for _, node in names if node)


def _rename(names: dict[str, _File | _Directory], changes: Any) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@dataclass
class _Open:
    node: _File | _Directory
    flags: int
    position: int = 0


class MemoryFiles:
    """See the module.  ``now_ns`` dates files."""

    # Of all that were ever made: the garbage collector closes files of an earlier one.
    _open: ClassVar[dict[int, _Open]] = {}
    _descriptors: ClassVar[Iterator[int]] = itertools.count(_FIRST_FD)

    def __init__(self, now_ns: Callable[[], int] = lambda: 0) -> None:
        self._root = _Directory()
        self._away: dict[str, _File | _Directory] = {}
        self._now_ns = now_ns

    @contextmanager
    def installed(self) -> Iterator[MemoryFiles]:
        """Use it for every operation of tidelog.files, meanwhile."""
        before = files.use({name: getattr(self, name) for name in files.OPERATIONS})
        try:
            yield self
        finally:
            files.use(before | {"close": self._closing(before["close"])})

    def _closing(self, close: Callable[[int], None]) -> Callable[[int], None]:
        return lambda fd: close(fd) if fd < _FIRST_FD else self.close(fd)

    # -- faults -----------------------------------------------------------------

    def crash(self, path: str) -> None:
        """The process that works below ``path`` is gone; what it wrote is there."""
        self._take_away(path, None)

    def cut_power(self, path: str, rng: random.Random) -> None:
        """The machine with the disk at ``path`` lost power."""
        self._take_away(path, rng)

    def _take_away(self, path: str, rng: random.Random | None) -> None:
        parent, name = self._parent(path)
        self._away[path] = parent.names.pop(name).survivor(rng)

    def come_back(self, path: str) -> None:
        """A new process may use what is left of a disk."""
        parent, name = self._parent(path)
        parent.names[name] = parent.synced[name] = self._away.pop(path)

    # -- names ------------------------------------------------------------------

    def _node(self, path: str) -> _File | _Directory:
        node: _File | _Directory | None = self._root
        for part in filter(None, path.split("/")):
            if isinstance(node, _File):
                raise OSError(errno.ENOTDIR, "Not a directory", path)
            node = node.names.get(part) if node else None
            if node is None:
                raise OSError(errno.ENOENT, "No such file or directory", path)
        assert node is not None
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        directory, name = os.path.split(path)
        parent = self._node(directory)
        if isinstance(parent, _File):
            raise OSError(errno.ENOTDIR, "Not a directory", path)
        return parent, name

    def exists(self, path: str) -> bool:
        try:
            return bool(self._node(path))
        except OSError:
            return False

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and isinstance(self._node(path), _Directory)

    def listdir(self, path: str) -> list[str]:
        node = self._node(path)
        if isinstance(node, _File):
            raise OSError(errno.ENOTDIR, "Not a directory", path)
        return sorted(node.names)

    def mkdir(self, path: str) -> None:
        parent, name = self._parent(path)
        if name in parent.names:
            raise OSError(errno.EEXIST, "File exists", path)
        parent.change((name, _Directory()))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if self.exists(path):
            if not (exist_ok and self.is_dir(path)):
                raise OSError(errno.EEXIST, "File exists", path)
            return
        self.makedirs(os.path.dirname(path), exist_ok=True)
        self.mkdir(path)

    def unlink(self, path: str) -> None:
        parent, name = self._parent(path)
        if isinstance(self._node(path), _Directory):
            raise OSError(errno.EISDIR, "Is a directory", path)
        parent.change((name, None))

    def rename(self, source: str, target: str) -> None:
        node = self._node(source)
        parent, name = self._parent(source)
        other, target_name = self._parent(target)
        if other is not parent:
            raise OSError(errno.EXDEV, "between directories: not simulated", source)
        there = parent.names.get(target_name)
        if isinstance(there, _Directory) and there.names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", target)
        parent.change((name, None), (target_name, node))

    replace = rename

    def remove_tree(self, path: str) -> None:
        if self.is_dir(path):
            parent, name = self._parent(path)
            parent.change((name, None))

    def disk_usage(self, path: str) -> Any:
        self._node(path)
        return SimpleNamespace(total=1 << 40, used=0, free=1 << 40)

    # -- descriptors ------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if node is None:
            if not flags & os.O_CREAT:
                raise OSError(errno.ENOENT, "No such file or directory", path)
            node = _File(self._now_ns())
            parent.change((name, node))
        if isinstance(node, _Directory) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EISDIR, "Is a directory", path)
        if isinstance(node, _File) and flags & os.O_TRUNC and node.data:
            node.change(0, None, self._now_ns())
        return self._descriptor(node, flags)

    def open_unnamed(self, directory: str) -> int:
        self._node(directory)
        return self._descriptor(_File(self._now_ns()), os.O_RDWR)

    def _descriptor(self, node: _File | _Directory, flags: int) -> int:
        fd = next(self._descriptors)
        self._open[fd] = _Open(node, flags)
        return fd

    def close(self, fd: int) -> None:
        node = self._opened(fd).node
        if isinstance(node, _File) and node.locked_by == fd:
            node.locked_by = None
        del self._open[fd]

    def _opened(self, fd: int) -> _Open:
        try:
            return self._open[fd]
        except KeyError:
            raise OSError(errno.EBADF, f"Bad file descriptor: {fd}") from None

    def _file(self, fd: int) -> _File:
        node = self._opened(fd).node
        if isinstance(node, _Directory):
            raise OSError(errno.EISDIR, "Is a directory")
        return node

    def lock(self, fd: int) -> None:
        file = self._file(fd)
        if file.locked_by not in (None, fd):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        file.locked_by = fd

    # -- content ----------------------------------------------------------------

    def pread(self, fd: int, length: int, position: int) -> bytes:
        return bytes(self._file(fd).data[position : position + length])

    def preadv(self, fd: int, buffers: list[memoryview], position: int) -> int:
        start = position
        for buffer in buffers:
            data = self.pread(fd, len(buffer), position)
            buffer[: len(data)] = data
            position += len(data)
        return position - start

    def read(self, fd: int, length: int) -> bytes:
        data = self.pread(fd, length, self._open[fd].position)
        self._open[fd].position += len(data)
        return data

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        file = self._file(fd)
        if not self._open[fd].flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EBADF, "Bad file descriptor: for reading only")
        file.change(position, bytes(data), self._now_ns())
        return len(data)

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        opened = self._opened(fd)
        if opened.flags & os.O_APPEND:
            opened.position = len(self._file(fd).data)
        opened.position += self.pwrite(fd, data, opened.position)
        return len(data)

    def ftruncate(self, fd: int, size: int) -> None:
        file = self._file(fd)
        if size != len(file.data):
            file.change(size, None, self._now_ns())

    def fsync(self, fd: int) -> None:
        self._opened(fd).node.sync()

    fdatasync = fsync

    def map_file(self, fd: int, length: int = 0) -> bytes:
        data = self._file(fd).data
        if not data:
            raise ValueError("cannot mmap an empty file")
        return bytes(data[:length] if length else data)

    def fstat(self, fd: int) -> Any:
        return _stat(self._opened(fd).node)

    def stat(self, path: str) -> Any:
        return _stat(self._node(path))

    def utime(self, path: str, *, ns: tuple[int, int]) -> None:
        node = self._node(path)
        assert isinstance(node, _File)
        node.modified_ns = ns[1]


def _stat(node: _File | _Directory) -> Any:
    if isinstance(node, _Directory):
        return SimpleNamespace(st_size=0, st_mtime_ns=0, st_atime_ns=0)
    return SimpleNamespace(
        st_size=len(node.data), st_mtime_ns=node.modified_ns, st_atime_ns=node.modified_ns
    )
