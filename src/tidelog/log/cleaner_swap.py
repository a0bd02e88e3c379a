"""How the copy of some segments takes their place, so that a crash leaves a valid log.

Kafka's suffixes.  ``X`` is the first of the old segments, ``Y`` any other:

    1  X.*.cleaned -> X.*.swap        the indexes, then the log; then the directory is synced
    2  Y.* -> Y.*.deleted             the log, then the rest
       X.* -> X.*.deleted             the indexes, then the log
    3  X.*.swap -> X.*                the indexes, then the log

``X.log.swap`` is the decision: without it a start throws the copy away, with it a start
goes on where the crash was.  While it lies there no other code may drop or cut segments;
who must calls :func:`abandon` first.
"""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING

from tidelog import files
from tidelog.files import remove, sync_directory
from tidelog.log.segment import Segment

if TYPE_CHECKING:
    from tidelog.log.log import Log

CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
_LOG = re.compile(r"([0-9]{20})\.log")
_INDEXES = (".index", ".timeindex", ".txnindex")

log = logging.getLogger(__name__)


class Swap:
    """The copy of some segments of a log, on its way in: begin, sync, finish.

    ``segments`` are the old ones.  What only renames is done by the log's owner; ``sync``
    is slow and may run in another thread.
    """

    def __init__(self, owner: Log, segments: list[Segment]) -> None:
        self._log = owner
        self._old = segments
        self._stem = segments[0].path[: -len(".log")]

    def begin(self) -> None:
        """Step 1: from here on a crash completes the swap."""
        for suffix in _INDEXES:
            _rename_if_there(self._stem + suffix + CLEANED, self._stem + suffix + SWAP)
        files.rename(self._stem + ".log" + CLEANED, self._stem + ".log" + SWAP)
        self._log.swapping = self._old[0].base_offset

    def sync(self) -> None:
        sync_directory(self._log.directory)

    def finish(self) -> list[str] | None:
        """Steps 2 and 3; returns what is to be removed later.  None: it was abandoned."""
        owner = self._log
        if owner.swapping != self._old[0].base_offset:
            return None
        renames: list[tuple[str, str]] = []
        for segment in self._old[1:]:
            renames += [(path, path + DELETED) for path in segment.files]
        for suffix in (*_INDEXES, ".log"):  # not the snapshot: it is as good as before
            renames.append((self._stem + suffix, self._stem + suffix + DELETED))
        for suffix in (*_INDEXES, ".log"):
            renames.append((self._stem + suffix + SWAP, self._stem + suffix))
        done: list[tuple[str, str]] = []
        try:
            for source, target in renames:
                if _rename_if_there(source, target):
                    done.append((source, target))
        except OSError:
            for source, target in reversed(done):
                files.rename(target, source)
            raise
        owner.replace_segments(self._old, Segment(owner.directory, self._old[0].base_offset))
        owner.swapping = None
        return [target for _, target in done if target.endswith(DELETED)]


def _rename_if_there(source: str, target: str) -> bool:
    try:
        files.rename(source, target)
    except FileNotFoundError:
        return False
    return True


def abandon(directory: str, base_offset: int) -> None:
    """Throw a copy away, whether it is a .cleaned or a .swap; the decision goes first."""
    stem = os.path.join(directory, f"{base_offset:020d}")
    for end in (SWAP, CLEANED):
        for suffix in (".log", *_INDEXES):
            remove(stem + suffix + end)


def recover(directory: str) -> None:
    """At start: complete the swaps that were decided, and forget the others."""
    names = files.listdir(directory)
    for name in names:
        if name.endswith((CLEANED, DELETED)):
            remove(os.path.join(directory, name))
    for name in sorted(names):
        if name.endswith(SWAP) and (match := _LOG.fullmatch(name.removesuffix(SWAP))):
            _recover_one(directory, int(match[1]))
    for name in files.listdir(directory):
        if name.endswith(SWAP):
            remove(os.path.join(directory, name))


def _recover_one(directory: str, base_offset: int) -> None:
    copy = Segment(directory, base_offset, suffix=SWAP)
    end = base_offset
    for _, header in copy.headers():
        end = header.last_offset + 1
    stem = os.path.join(directory, f"{base_offset:020d}")
    replaced = files.exists(stem + ".log")
    if copy.damage is not None and replaced:
        log.error("%s is damaged at byte %d; the old segment stays", copy.path, copy.damage)
        abandon(directory, base_offset)
        return
    copy.release()
    for name in files.listdir(directory):
        match = _LOG.fullmatch(name)
        if match and base_offset < int(match[1]) < end:
            for path in Segment(directory, int(match[1])).files:
                remove(path)
    if replaced:
        for suffix in (*_INDEXES, ".log"):
            remove(stem + suffix)
    for suffix in (*_INDEXES, ".log"):
        _rename_if_there(stem + suffix + SWAP, stem + suffix)
    log.info("%s.log: a compaction that was interrupted is complete now", stem)
