"""Small files that must be whole: written beside, flushed, then renamed into place."""

from __future__ import annotations

import contextlib
import os


def write_atomically(path: str, data: bytes, *, sync: bool = True) -> None:
    """After this returns the file has the new content; before, or after a crash, the old.

    Without ``sync`` a power cut may leave anything: for files that carry a checksum.
    """
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        written = os.write(fd, data)
        if written != len(data):
            raise OSError(28, "the disk is full", path)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if sync:
        sync_directory(os.path.dirname(path))


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
