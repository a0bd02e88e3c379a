"""What a start finds of partitions that were moving to another log directory.

See ``partition/log_dir_moves.py``, which moves them.
"""

from __future__ import annotations

import contextlib
import os
import re

from tidelog import files
from tidelog.errors import SettingError
from tidelog.files import sync_directory
from tidelog.log.checkpoints import PartitionKey
from tidelog.log.segment import Segment
from tidelog.topic_partition import directory_name

MOVED = "moved-here"  # in our copy of a partition whose old directory may still be there
_SEGMENT = re.compile(r"[0-9]{20}\.log")


def is_unfinished_copy(path: str) -> bool:
    """A ``-future`` directory of ours; a crash may have come before the mark was in it."""
    if not path.endswith("-future"):
        return False
    names = files.listdir(path)
    return MOVED in names or set(names) <= {MOVED + ".tmp"}


def unmark(directory: str) -> None:
    """The old directory of a moved partition is gone; a later move must not meet the mark."""
    with contextlib.suppress(FileNotFoundError):  # the topic may be deleted
        files.unlink(os.path.join(directory, MOVED))
        sync_directory(directory)


def one_directory_each(
    found: list[tuple[PartitionKey, str]],
) -> tuple[list[tuple[PartitionKey, str]], dict[PartitionKey, tuple[str, str]]]:
    """Of a partition that is in two directories, the copy counts that a move has finished.

    Returns what counts, and from where to where partitions were moved.
    """
    by_key: dict[PartitionKey, list[str]] = {}
    for key, directory in found:
        by_key.setdefault(key, []).append(directory)
    moved: dict[PartitionKey, tuple[str, str]] = {}
    for key, directories in by_key.items():
        paths = [os.path.join(directory, directory_name(*key)) for directory in directories]
        if len(paths) == 1:
            unmark(paths[0])  # its move is long over
            continue
        copies = [path for path in paths if files.exists(os.path.join(path, MOVED))]
        if len(paths) != 2 or len(copies) != 1:
            raise SettingError(
                f"log.dirs: {directory_name(*key)} is in {len(paths)} directories; remove all but "
                "one: " + ", ".join(f"{p} (ends at offset {_end_offset(p)})" for p in paths)
            )
        (new,) = (os.path.dirname(path) for path in copies)
        (old,) = set(directories) - {new}
        moved[key] = old, new
    return [row for row in found if row[0] not in moved or row[1] == moved[row[0]][1]], moved


def _end_offset(directory: str) -> int:
    """As far as its last segment can be read."""
    names = [name for name in files.listdir(directory) if _SEGMENT.fullmatch(name)]
    if not names:
        return 0
    segment = Segment(directory, int(max(names)[:20]))
    ends = (header.last_offset + 1 for _, header in segment.headers())
    return max(ends, default=segment.base_offset)
