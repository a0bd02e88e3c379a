"""The loop of ``tidelog consume``: from partitions to lines, whatever happens meanwhile.

A reader is told where each partition begins and where it ends, if it does.  A broker that
restarts is waited for, records that are deleted before they are read are skipped with a
note, and a topic that is deleted is let go.  New partitions (and, with a pattern, new
topics) are found every two seconds, and are read from their start.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import IO

from tidelog.client.cluster import Cluster, TopicView, error_of
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.fetcher import Fetched, Fetcher, records_of
from tidelog.client.partitions import extents
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.tools.formats import FormatError, Formatter
from tidelog.tools.output import note
from tidelog.topic_partition import TopicPartition

_DISCOVERY_SECONDS = 2.0
_RETRY_SECONDS = 0.3
_LONGEST_WAIT = 1.0

Chooser = Callable[[], Iterable[TopicView]]


@dataclass(slots=True)
class Limits:
    """When to stop."""

    until: dict[TopicPartition, int] | None = None  # None: never by itself
    max_records: int | None = None
    idle_seconds: float | None = None
    retry_seconds: float = 60.0


class Stopped(Exception):
    """Enough was read, or Ctrl-C or SIGTERM came."""


class Reader:
    """See the module.  ``run`` returns when there is nothing left to do."""

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        write: Formatter,
        out: IO[bytes],
        limits: Limits,
        *,
        skip_bad: bool = False,
        choose: Chooser | None = None,
        waits: bool = False,
    ) -> None:
        """``choose`` looks for topics again; ``waits``: for new ones, though there is none."""
        self.count = 0
        self.skipped = 0
        self._cluster = cluster
        self._fetcher = fetcher
        self._write = write
        self._out = out
        self._limits = limits
        self._skip_bad = skip_bad
        self._choose = choose
        self._waits = choose is not None and waits
        self._known: set[TopicPartition] = set()
        self._deleted: set[str] = set()
        self._clock = SystemClock()
        self._down_since: float | None = None
        self._interrupted = False
        self._waiting = False

    def assign(self, row: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on, unless it is at its end already."""
        self._known.add(row)
        if not self._is_done(row, offset):
            self._fetcher.assign(row, offset)

    # -- the loop ---------------------------------------------------------------

    def run(self) -> None:
        """Read until a limit, Ctrl-C or SIGTERM: they take effect between two lines."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = [signal.signal(number, self._on_interrupt) for number in numbers]
        try:
            self._run()
        except Stopped:
            pass
        finally:
            for number, handler in zip(numbers, previous, strict=True):
                signal.signal(number, handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._waiting or self._interrupted:
            raise Stopped
        self._interrupted = True

    def _run(self) -> None:
        heard = looked = self._clock.monotonic()
        while not self._interrupted and (self._fetcher.positions or self._waits):
            wait = _LONGEST_WAIT
            if self._limits.idle_seconds is not None:
                wait = min(wait, heard + self._limits.idle_seconds - self._clock.monotonic())
            before = self.count
            for fetched in self._poll(wait):
                self._take(fetched)
            now = self._clock.monotonic()
            if self.count > before:
                heard = now
            elif self._output_is_closed():
                raise BrokenPipeError
            elif (
                self._limits.idle_seconds is not None
                and now - heard >= self._limits.idle_seconds
                and self._down_since is None
            ):
                return
            if self._choose and now - looked >= _DISCOVERY_SECONDS and self._down_since is None:
                looked = now
                self._discover(self._choose)

    def _poll(self, wait: float) -> list[Fetched]:
        self._waiting = True
        try:
            if not self._fetcher.positions:
                time.sleep(max(0.0, min(wait, _RETRY_SECONDS)))
                return []
            result = self._fetcher.poll(wait)
            if self._down_since is not None:
                self._down_since = None
                note("the broker is back; going on")
            return result
        except BrokerUnreachable as error:
            now = self._clock.monotonic()
            if self._down_since is None:
                self._down_since = now
                note(f"{error}; trying again for {self._limits.retry_seconds:g} seconds")
            if now - self._down_since >= self._limits.retry_seconds:
                seconds = f"{self._limits.retry_seconds:g} seconds"
                raise BrokerUnreachable(f"{error}; gave up after {seconds}") from error
            time.sleep(_RETRY_SECONDS)
            return []
        finally:
            self._waiting = False

    def _output_is_closed(self) -> bool:
        """Has the reader of our output gone (`| head`)?  A quiet topic would not tell."""
        try:
            poller = select.poll()
            poller.register(self._out.fileno(), 0)
            return any(events & select.POLLERR for _, events in poller.poll(0))
        except OSError:  # no file: a test
            return False

    # -- records ----------------------------------------------------------------

    def _take(self, fetched: Fetched) -> None:
        if fetched.error:
            self._handle(fetched)
            return
        lines: list[bytes] = []
        try:
            for batch in fetched.batches:
                self._take_batch(fetched, batch, lines)
        finally:
            if lines:
                self._emit(b"\n".join(lines) + b"\n")
                self.count += len(lines)
        if self.count == self._limits.max_records:
            raise Stopped
        row = fetched.partition
        if row in self._fetcher.positions and self._is_done(row, self._fetcher.positions[row]):
            self._fetcher.drop(row)

    def _emit(self, data: bytes) -> None:
        """Write all of it.  With PYTHONUNBUFFERED a write may end early, at a signal."""
        view = memoryview(data)
        while view:
            view = view[self._out.write(view) :]
        self._out.flush()

    def _take_batch(self, fetched: Fetched, batch: memoryview, lines: list[bytes]) -> None:
        row, first, write = fetched.partition, fetched.offset, self._write
        until = self._limits.until
        limit = until[row] if until is not None else None
        most = self._limits.max_records
        room = None if most is None else most - self.count
        offset = max(first, int.from_bytes(batch[:8], "big"))
        try:
            for record in records_of(batch):
                offset = record.offset
                if offset < first:
                    continue
                if (limit is not None and offset >= limit) or len(lines) == room:
                    return
                try:
                    lines.append(write(row, record))
                except FormatError as error:
                    self._bad(row, offset, str(error))
        except ApiError as error:
            if isinstance(error, _BadRecord):
                raise
            self._bad(row, offset, f"the batch cannot be decoded: {error}")

    def _bad(self, row: TopicPartition, offset: int, reason: str) -> None:
        if not self._skip_bad:
            raise _BadRecord(
                ErrorCode.CORRUPT_MESSAGE,
                f"{row}@{offset}: {reason}; --skip-bad goes on without it",
            )
        self.skipped += 1

    def _is_done(self, row: TopicPartition, position: int) -> bool:
        until = self._limits.until
        return until is not None and position >= until.get(row, 0)

    # -- what may happen --------------------------------------------------------

    def _handle(self, fetched: Fetched) -> None:
        row, position = fetched.partition, fetched.offset
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            log = extents(self._cluster, [row])[row]
            if position < log.start:
                gone = f"offsets {position} to {log.start - 1}"
                note(f"{row}: {gone} were deleted before they were read")
            elif position > log.end:
                note(f"{row}: the log was cut to offset {log.end}, before {position}")
            offset = min(max(position, log.start), log.end)
            if self._is_done(row, offset):
                self._fetcher.drop(row)
            else:
                self._fetcher.assign(row, offset)
            return
        if fetched.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error_of(fetched.error, None, f"{row}@{position}")
        self._fetcher.drop(row)
        if row.topic not in self._deleted:
            self._deleted.add(row.topic)
            message = f"topic {row.topic!r} was deleted while it was read"
            if not self._fetcher.positions and not self._waits:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            note(message)
        self._known = {known for known in self._known if known.topic != row.topic}

    def _discover(self, choose: Chooser) -> None:
        """Look for partitions that were not there before."""
        try:
            new = [
                row
                for topic in choose()
                for part in topic.partitions
                if (row := TopicPartition(topic.name, part.index)) not in self._known
            ]
            for row, log in extents(self._cluster, new).items():
                self._deleted.discard(row.topic)
                self.assign(row, log.start)
        except BrokerUnreachable:
            return  # the next poll deals with it
        except ApiError as error:
            if error.code not in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.LEADER_NOT_AVAILABLE,
            ):
                raise


class _BadRecord(ApiError):
    """A record that cannot be shown, and must not be skipped."""
