"""One flush of a log: what is to reach the disk, noted by the log, carried out by any thread.

A log has one flush in flight at most.  The kernel reports a failed write-back once per open
file: of two flushes that overlap, one may take the error and the other be told that all is
well.

After a failed fdatasync the kernel may count the pages as written though they are not on disk,
and the next fdatasync then succeeds ("fsyncgate").  Kafka takes the directory offline and
PostgreSQL stops itself; here a full or briefly absent disk must not need a restart.  So the
next flush first writes again everything that is not on disk for certain, which makes the pages
dirty again.  The bytes come from the page cache, and some file systems drop what they could
not write: each batch is checked, and one that is gone ends all writing to this log until a
restart, where recovery cuts it off.  Until a flush has gone well nothing counts as flushed.

What no flush here can heal: a broker that is restarted on a disk that failed reads its log
through the same page cache, and takes it for what is on disk.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from tidelog import files
from tidelog.files import sync_directory, sync_file
from tidelog.log.segment import LogFile
from tidelog.wire.batch import HEADER_SIZE, is_valid, read_header


class RecordsLost(OSError):
    """The kernel has dropped records that it could not write."""


@dataclass(slots=True)
class Flush:
    """Everything before ``end_offset``.  Made by :meth:`Log.begin_flush`."""

    end_offset: int
    truncations: int  # of the log, when the flush began
    files: list[LogFile | str] = field(default_factory=list)
    again: list[tuple[LogFile, int, int]] = field(default_factory=list)  # from byte, to byte
    directory: str | None = None  # there are new names in it
    epochs: bool = False  # the file of leader epochs is among the files

    def carry_out(self) -> None:
        """The slow part.  Nothing that others change is touched."""
        for file, position, end in self.again:
            _write_again(file, position, end)
        for entry in self.files:
            if isinstance(entry, LogFile):
                files.fdatasync(entry.fd)
            else:
                sync_file(entry)
        if self.directory is not None:
            sync_directory(self.directory)
            sync_directory(os.path.dirname(self.directory))


def _write_again(file: LogFile, position: int, end: int) -> None:
    while position < end:
        head = files.pread(file.fd, HEADER_SIZE, position)
        size = read_header(head).size if len(head) == HEADER_SIZE else 0
        batch = (
            files.pread(file.fd, size, position) if HEADER_SIZE <= size <= end - position else b""
        )
        if not is_valid(batch):
            message = f"records at byte {position} were lost by a flush that failed"
            raise RecordsLost(errno.EIO, message, file.path)
        if files.pwrite(file.fd, batch, position) != size:
            raise OSError(errno.ENOSPC, "the disk is full", file.path)
        position += size
