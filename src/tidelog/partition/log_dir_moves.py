"""Replicas that move to another log directory of this broker (AlterReplicaLogDirs).

The copy is made beside other work, in ``topic-0.<unique>-future`` as in Kafka: closed segments,
then what was appended meanwhile, until little is left.  That little is copied and synced between
two requests, the copy is renamed to ``topic-0``, and the same log goes on there.  A reader of
the old files may finish.  Then the old directory goes, and only then the next move of the partition
begins.

A crash at any time leaves one log that counts.  A start removes what is still called ``-future``.
Once the copy has its name there may be two directories of the partition: a file marks the
copy as moved there, and it wins.  A move does not outlive a restart of the broker; it is asked
for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tidelog import files, workers
from tidelog.errors import ApiError, ErrorCode
from tidelog.files import remove, sync_directory, write_atomically
from tidelog.log.manager import TOPIC_ID
from tidelog.log.moved import MOVED, unmark
from tidelog.log.producer_state import save_snapshot
from tidelog.log.segment import LogFile, Segment

if TYPE_CHECKING:
    from tidelog.partition.partition import Partition
    from tidelog.partition.replicas import Replicas

_LEAST, _PIECE = 64 << 10, 8 << 20  # bytes that are copied at a time
_LAST = 1 << 20  # so little may be copied between two requests
_AT_ONCE = 4  # partitions that are copied; the others wait

log = logging.getLogger(__name__)


class LogDirMoves:
    """See the module."""

    def __init__(
        self,
        replicas: Replicas,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        rate: Callable[[], int],
    ) -> None:
        self.moves: dict[tuple[str, int], Move] = {}  # under way
        self._latest: dict[tuple[str, int], Move] = {}  # those too whose old directory goes
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._replicas = replicas
        self._spawn = spawn
        self._rate = rate  # bytes a second

    def move(self, partition: Partition, directory: str) -> None:
        """Have a partition in this directory; a move elsewhere that is under way ends."""
        key = partition.topic, partition.index
        under_way = self.moves.get(key)
        if under_way is not None:
            if under_way.parent == directory:
                return
            under_way.cancelled = True
            del self.moves[key]
        if os.path.dirname(partition.log.directory) == directory:
            return
        if partition.log.lost_records or not self._replicas.log_dirs.takes_writes(directory):
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        before = self._latest.get(key)
        self.moves[key] = self._latest[key] = move = Move(self._replicas, partition, directory)
        self._spawn(self._after(before, key, move))

    async def _after(self, before: Move | None, key: tuple[str, int], move: Move) -> None:
        """One move of a partition at a time: no directory has the mark of another move."""
        try:
            if before is not None:
                await before.ended.wait()
            await self._carry_out(key, move)
        finally:
            move.ended.set()
            if self._latest.get(key) is move:
                del self._latest[key]

    async def _carry_out(self, key: tuple[str, int], move: Move) -> None:
        old = move.partition.log.directory
        try:
            async with self._turns:
                await workers.run(move.begin)
                await self._copy(move)
                finished = move.finish()
        except OSError as error:
            finished = False
            log.error("%s cannot be moved to %s: %s", old, move.parent, error)
        finally:
            self._replicas.flushes.release(move.partition)
            if self.moves.get(key) is move:
                del self.moves[key]
        if not finished:
            await workers.run(files.remove_tree, move.future)
            return
        log.info("%s was moved to %s", old, move.parent)
        try:
            with contextlib.suppress(FileNotFoundError):  # its topic was deleted meanwhile
                await self._replicas.flushes.in_thread(move.sync)
            await self._replicas.checkpoint()  # the files of the new directory have its offsets
            doomed = move.rename_old(old)
            if doomed is not None:
                await workers.run(move.remove_old, doomed)
        except OSError as error:
            log.error("%s was moved, but not removed: %s; the next start does it", old, error)

    async def _copy(self, move: Move) -> None:
        """Until next to nothing is left, and no flush of the old files is under way.

        The last megabyte is copied and synced in a thread too: the event loop does not wait for
        more than what was appended meanwhile.
        """
        ready = False
        while True:
            piece = move.next_piece(self._rate())
            if piece is not None:
                self._replicas.flushes.release(move.partition)
                ready = False
                await workers.run(piece.copy)
                move.copied(piece)
                await asyncio.sleep(min(piece.size / max(self._rate(), 1), 1))
            elif ready:
                return
            else:
                await self._replicas.flushes.hold(move.partition)
                piece = move.rest()
                if piece is not None:
                    await workers.run(piece.copy)
                    move.copied(piece)
                ready = True


class Piece:
    """Some bytes of a segment; at its end the files beside it too, if it is closed."""

    def __init__(self, segment: Segment, start: int, end: int, target: str, last: bool) -> None:
        self.segment = segment
        self.start, self.end = start, end
        self.size = end - start
        self.last = last  # of a closed segment
        self._target = target
        self._file = segment.open_once()  # compaction or retention may take its name away
        self._beside = [path for path in segment.files if not path.endswith(".log")]

    def copy(self) -> None:
        name = os.path.basename(self.segment.path)
        copy_range(self._file, os.path.join(self._target, name), self.start, self.end)
        for path in self._beside if self.last else ():
            with contextlib.suppress(FileNotFoundError):
                files.copy_file(path, os.path.join(self._target, os.path.basename(path)))


class Move:
    """One partition on its way."""

    def __init__(self, replicas: Replicas, partition: Partition, parent: str) -> None:
        self.partition = partition
        self.parent = parent
        self.future = replicas.manager.future_directory(partition.log.directory, parent)
        self.final = os.path.join(parent, os.path.basename(partition.log.directory))
        self.cancelled = False
        self.ended = asyncio.Event()
        self._replicas = replicas
        self._truncations = partition.log.truncations
        self._done: dict[Segment, int] = {}  # bytes that are copied
        self._whole: set[Segment] = set()  # closed, and all its files are copied

    @property
    def size(self) -> int:
        return sum(self._done.values())

    @property
    def lag(self) -> int:
        """About how many offsets the copy is behind."""
        segments = self.partition.log.segments
        first = next((s for s in segments if s not in self._whole), segments[-1])
        return self.partition.log.end_offset - first.base_offset

    def begin(self) -> None:
        files.mkdir(self.future)
        write_atomically(os.path.join(self.future, MOVED), b"")
        with contextlib.suppress(FileNotFoundError):  # a lost id is taken from the registry
            files.copy_file(
                os.path.join(self.partition.log.directory, TOPIC_ID),
                os.path.join(self.future, TOPIC_ID),
            )

    def next_piece(self, rate: int = _PIECE) -> Piece | None:
        """What to copy next, in about a second at this rate; None if it is time to finish."""
        current = self.partition.log
        if self.cancelled or self.partition.deleted:
            return None
        if current.truncations != self._truncations:  # a follower was cut: from the beginning
            self._truncations = current.truncations
            self._done.clear()
            self._whole.clear()
        for segment in current.segments:
            start, active = self._done.get(segment, 0), segment is current.active
            if segment in self._whole or (active and segment.size - start <= _LAST):
                continue
            end = min(segment.size, start + min(max(rate, _LEAST), _PIECE))
            return Piece(segment, start, end, self.future, not active and end == segment.size)
        return None

    def rest(self) -> Piece | None:
        """What is left of the active segment."""
        active = self.partition.log.active
        start = self._done.get(active, 0)
        if self.cancelled or self.partition.deleted or start >= active.size:
            return None
        return Piece(active, start, active.size, self.future, last=False)

    def copied(self, piece: Piece) -> None:
        self._done[piece.segment] = piece.end
        if piece.last:
            self._whole.add(piece.segment)

    def finish(self) -> bool:
        """Copy the rest, and let the log go on in the copy; nothing else happens meanwhile."""
        partition, current = self.partition, self.partition.log
        if self.cancelled or partition.deleted:
            return False
        current.abandon_swap()
        active = current.active
        target = os.path.join(self.future, os.path.basename(active.path))
        copy_range(active.file, target, self._done.get(active, 0), active.size)
        save_snapshot(self.future, current.end_offset, current.producers)
        current.epochs.save(self.future)
        known = {os.path.basename(path) for s in current.segments for path in s.files}
        for name in files.listdir(self.future):
            # Of segments that retention or compaction has let go meanwhile.
            if name[:20].isdecimal() and not name.endswith(".snapshot") and name not in known:
                remove(os.path.join(self.future, name))
        files.rename(self.future, self.final)
        current.move_to(self.final)
        return True

    def sync(self) -> None:
        sync_directory(self.final)
        sync_directory(self.parent)

    def rename_old(self, old: str) -> str | None:
        """The copy is safe: the old directory is not the partition's any more.

        None if it is that of a new topic of the same name by now.
        """
        manager = self._replicas.manager
        there = manager.logs.get((self.partition.topic, self.partition.index))
        if there is not None and there.directory == old:
            return None
        return manager.delete_directory(old)

    def remove_old(self, doomed: str) -> None:
        sync_directory(os.path.dirname(doomed))
        unmark(self.final)
        files.remove_tree(doomed)


def copy_range(source: LogFile, target: str, start: int, end: int) -> None:
    """Bytes of a file into another, to the same place, synced."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if start == 0 else 0)
    fd = files.open(target, flags, 0o644)
    try:
        while start < end:
            data = files.pread(source.fd, min(end - start, 1 << 20), start)
            if not data:
                raise OSError(5, "the segment is shorter than it was", source.path)
            start += files.pwrite(fd, data, start)
        files.fdatasync(fd)
    finally:
        files.close(fd)
