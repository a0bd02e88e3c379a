"""File operations: the only module through which the log and the embedded keeper use the disk.

The first part names the operations of the operating system.  They are plain attributes of this
module, bound to the functions of ``os`` themselves: ``files.pread(...)`` costs what ``os.pread``
costs.  :func:`use` puts others in their place, for the whole process: a simulation installs a
file system in memory that loses what was not synced (``tests/support/memory_files.py``), a test of
disk errors replaces single calls.  Several brokers in one process need no more than that, because a
path names a disk, as a mount point does.  So callers import the module, not the operations.

The second part is built on the first: small files that must be whole, and trees.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import os.path
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

# -- the operations ---------------------------------------------------------------------

open = os.open  # noqa: A001  (callers write files.open)
close = os.close
read = os.read
write = os.write
pread = os.pread
preadv = os.preadv
pwrite = os.pwrite
ftruncate = os.ftruncate
fsync = os.fsync
fdatasync = os.fdatasync
replace = os.replace
rename = os.rename
unlink = os.unlink
mkdir = os.mkdir
makedirs = os.makedirs
exists = os.path.exists
is_dir = os.path.isdir
stat = os.stat
fstat = os.fstat
utime = os.utime
disk_usage = shutil.disk_usage


def listdir(path: str) -> list[str]:
    """The names in a directory, sorted: no decision may depend on the order they lie in."""
    return sorted(os.listdir(path))


def map_file(fd: int, length: int = 0) -> mmap.mmap | bytes:
    """The content of a file (0: all of it) for reading, without a copy if that is possible."""
    return mmap.mmap(fd, length, access=mmap.ACCESS_READ)


def remove_tree(path: str) -> None:
    """Remove a directory and all below it, as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)


def lock(fd: int) -> None:
    """Lock a file against other processes until it is closed; BlockingIOError if one has it."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_unnamed(directory: str) -> int:
    """A file for writing that is gone when it is closed, however that happens."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        return os.dup(file.fileno())


OPERATIONS = (
    *("open", "close", "read", "write", "pread", "preadv", "pwrite", "ftruncate"),
    *("fsync", "fdatasync", "replace", "rename", "unlink", "mkdir", "makedirs"),
    *("exists", "is_dir", "stat", "fstat", "utime", "disk_usage"),
    *("listdir", "remove_tree", "map_file", "lock", "open_unnamed"),
)


def use(operations: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Put other operations in place of these; returns those that were in place."""
    unknown = operations.keys() - set(OPERATIONS)
    if unknown:
        raise ValueError(f"not an operation: {', '.join(sorted(unknown))}")
    before = {name: globals()[name] for name in operations}
    globals().update(operations)
    return before


# -- built on them ----------------------------------------------------------------------


def read_file(path: str) -> bytes:
    """The whole content of a small file."""
    fd = open(path, os.O_RDONLY)
    try:
        content = read(fd, fstat(fd).st_size)
        while more := read(fd, 1 << 16):  # one that grows, or has no size
            content += more
        return content
    finally:
        close(fd)


def write_all(fd: int, data: bytes | memoryview, path: str) -> None:
    """Write, or raise; ``path`` is for the message."""
    if write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, "the disk is full", path)


def write_atomically(path: str, data: bytes, *, sync: bool = True) -> None:
    """After this returns the file has the new content; before, or after a crash, the old.

    Without ``sync`` a power cut may leave anything: for files that carry a checksum.
    """
    temporary = path + ".tmp"
    fd = open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        try:
            write_all(fd, data, path)
            if sync:
                fsync(fd)
        finally:
            close(fd)
        replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            unlink(temporary)  # half a file is only in the way
        raise
    if sync:
        sync_directory(os.path.dirname(path))


def sync_file(path: str) -> None:
    """Make the content of a file that others wrote survive a power cut."""
    with contextlib.suppress(FileNotFoundError):  # deleted in the meantime: nothing to save
        fd = open(path, os.O_RDONLY)
        try:
            fdatasync(fd)
        finally:
            close(fd)


def sync_directory(path: str) -> None:
    """Make renames and new names in a directory survive a power cut."""
    fd = open(path, os.O_RDONLY)
    try:
        fsync(fd)
    finally:
        close(fd)


def size(path: str) -> int:
    """The size of a file, in bytes."""
    return stat(path).st_size


def modified_ms(path: str) -> int:
    """When a file was written last."""
    return stat(path).st_mtime_ns // 1_000_000


def remove(path: str) -> None:
    """Remove a file that may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        unlink(path)


def copy_file(source: str, target: str) -> None:
    """Copy a small file; not synced."""
    content = read_file(source)
    fd = open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(fd, content, target)
    finally:
        close(fd)
