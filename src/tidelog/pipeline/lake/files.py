"""The few things that the ledger needs of a file system, and the lock of one destination.

Names are relative to the destination and use ``/``.  A local disk or a shared mount (NFS)
gives what is needed: a create that fails if the name is taken, and an atomic rename.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from tidelog.errors import ApiError, ErrorCode
from tidelog.files import sync_directory

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class LakeError(ApiError):
    """A load that cannot be; the message is a sentence for people."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


class Stopped(LakeError):
    """The user has ended the load before it was published."""

    def __init__(self) -> None:
        super().__init__("the load was stopped before it was published: nothing of it is there")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in the error of a disk that is full or fails."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS or error.filename is not None:
            raise
        raise LakeError(f"{path}: {os.strerror(error.errno)}") from error


class Files(Protocol):
    """See the module."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing if it is not there."""
        ...

    def read(self, name: str) -> bytes: ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is whole or not there, even after a power cut; False if it exists."""
        ...

    def move(self, source: str, target: str) -> bool:
        """Give a file its new name; False if there is none under the old one."""
        ...

    def remove(self, name: str) -> None:
        """A file, or a folder with all that is in it; nothing if it is not there."""
        ...

    def exists(self, name: str) -> bool: ...

    def touch(self, name: str) -> None:
        """Mark this file as still in use."""
        ...

    def touched_ms(self, name: str) -> int:
        """When a file was written or touched; 0 if it is not there."""
        ...


class LocalFiles:
    """Files of this machine, or of a mount that all machines share."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def create(self, name: str, data: bytes) -> bool:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with naming(target), draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        try:
            os.link(draft, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            raise LakeError(
                f"{self.root}: this file system cannot give a file a second name (a hard link), "
                "which a ledger needs so that two loads never take the same step; use a local "
                "disk or NFS"
            ) from error
        finally:
            draft.unlink()
        sync_directory(str(target.parent))
        return True

    def move(self, source: str, target: str) -> bool:
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self.root / source).rename(path)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        path = self.root / name
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(path, ignore_errors=True)

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def touch(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.root / name)

    def touched_ms(self, name: str) -> int:
        try:
            return (self.root / name).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return 0


def whoami() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextlib.contextmanager
def lock(
    path: Path, *, wait: bool = False, waiting: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """Hold a lock that dies with this process.

    It keeps two loads on one machine apart in a friendly way.  What keeps loads on different
    machines apart is that a manifest's number can be taken only once.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open(path))
        _take_lock(file, path, wait, waiting)
        while not _is_at(file, path):  # the process that held it before has removed it
            file = stack.enter_context(_open(path))
            _take_lock(file, path, wait, waiting)
        file.truncate(0)
        with naming(path):
            file.write(whoami())
            file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            if all(name in (path.name, "staging") for name in os.listdir(path.parent)):
                # Nothing was ever published here: leave nothing behind but what was there.
                with contextlib.suppress(OSError):
                    (path.parent / "staging").rmdir()
                path.unlink(missing_ok=True)
                for folder in (path.parent, *(row for row in made if row != path.parent)):
                    with contextlib.suppress(OSError):
                        folder.rmdir()


def _open(path: Path) -> IO[str]:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another one has removed the folder again
            return path.open("a+")


def _take_lock(file: IO[str], path: Path, wait: bool, waiting: Callable[[str], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        file.seek(0)
        holder = file.read().strip() or "another process"
        if not wait:
            raise LakeError(
                f"another load into {path.parent.parent} is at work ({holder}): wait for it "
                "with --wait, or load into another directory"
            ) from None
        waiting(holder)
        fcntl.flock(file, fcntl.LOCK_EX)


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether an open file still is the one of that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
