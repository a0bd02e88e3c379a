"""Small files that must be whole: written beside, flushed, then renamed into place."""

from __future__ import annotations

import contextlib
import errno
import os


def write_atomically(path: str, data: bytes, *, sync: bool = True) -> None:
    """After this returns the file has the new content; before, or after a crash, the old.

    Without ``sync`` a power cut may leave anything: for files that carry a checksum.
    """
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        try:
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, "the disk is full", path)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # half a file is only in the way
        raise
    if sync:
        sync_directory(os.path.dirname(path))


def sync_file(path: str) -> None:
    """Make the content of a file that others wrote survive a power cut."""
    with contextlib.suppress(FileNotFoundError):  # deleted in the meantime: nothing to save
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)


def sync_directory(path: str) -> None:
    """Make renames and new names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove a file that may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
