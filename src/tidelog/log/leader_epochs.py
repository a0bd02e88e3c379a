"""Which leader epoch started at which offset: ``leader-epoch-checkpoint``.

Pure but for load and save.  Epochs and their start offsets both only grow.  A
follower that was away asks "where did epoch E end for you?" and cuts its log there.

    0                 format version
    2                 number of entries
    0 0               epoch, start offset
    3 1742
"""

from __future__ import annotations

import logging
import os
from itertools import pairwise

from tidelog import files
from tidelog.files import write_atomically

NAME = "leader-epoch-checkpoint"

log = logging.getLogger(__name__)


class LeaderEpochs:
    """The epochs of one log, oldest first."""

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.entries = entries or []

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that ``epoch`` begins at ``start_offset``; True if that is news."""
        if epoch <= self.latest:  # none (-1) is no epoch either
            return False
        # An epoch that never wrote anything has no end of its own.
        while self.entries and self.entries[-1][1] >= start_offset:
            self.entries.pop()
        self.entries.append((epoch, start_offset))
        return True

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch at most ``epoch`` and where it ended; (-1, -1) if unknown."""
        if epoch < 0:
            return -1, -1
        if epoch == self.latest:
            return epoch, log_end
        found = epoch  # older than all we know: it ended where our first epoch starts
        for known, start in self.entries:
            if known > epoch:
                return found, start
            found = known
        return -1, -1

    def epoch_at(self, offset: int) -> int:
        """The epoch in which ``offset`` was written, or -1."""
        result = -1
        for epoch, start in self.entries:
            if start > offset:
                break
            result = epoch
        return result

    def truncate_from_end(self, end_offset: int) -> bool:
        """The log was cut back to ``end_offset``; True if entries went."""
        keep = [entry for entry in self.entries if entry[1] < end_offset]
        changed = len(keep) != len(self.entries)
        self.entries = keep
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log starts at ``start_offset`` now; the epoch there keeps its number."""
        older = [entry for entry in self.entries if entry[1] <= start_offset]
        if not older or older == [(older[-1][0], start_offset)]:
            return False
        newer = [entry for entry in self.entries if entry[1] > start_offset]
        self.entries = [(older[-1][0], start_offset), *newer]
        return True

    def save(self, directory: str, *, sync: bool = True) -> None:
        """Without ``sync`` a power cut may leave the file torn: it is then rebuilt."""
        lines = [
            "0",
            str(len(self.entries)),
            *(f"{epoch} {start}" for epoch, start in self.entries),
        ]
        write_atomically(epochs_path(directory), "\n".join(lines).encode() + b"\n", sync=sync)

    @classmethod
    def load(cls, directory: str) -> LeaderEpochs | None:
        """What was saved; None if there is nothing that can be read."""
        path = epochs_path(directory)
        try:
            return cls(parse_epochs(files.read_file(path).decode()))
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            log.warning("%s cannot be read (%s); rebuilt from the log", path, error)
            return None


def epochs_path(directory: str) -> str:
    return os.path.join(directory, NAME)


def parse_epochs(text: str) -> list[tuple[int, int]]:
    """Epochs and their start offsets; ValueError if the file is not whole."""
    lines = text.splitlines()
    whole = text.endswith("\n")  # else the last number may be cut
    if not whole or len(lines) < 2 or lines[0] != "0" or int(lines[1]) != len(lines) - 2:
        raise ValueError("its header does not match its lines")
    entries = [(int(a), int(b)) for a, b in (line.split(" ") for line in lines[2:])]
    grow = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    if not grow or any(epoch < 0 or start < 0 for epoch, start in entries):
        raise ValueError("its epochs do not grow")
    return entries
