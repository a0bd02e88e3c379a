"""The loop of ``tidelog consume``: from records to lines, until a limit or a signal.

Where the records come from is a :class:`Source`: partitions that are fetched
(``consume_partitions.py``), or a member of a consumer group (``consume_group.py``).
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple, Protocol

from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.tools.formats import FormatError, Formatter
from tidelog.tools.stop_signal import StopSignal
from tidelog.topic_partition import TopicPartition
from tidelog.wire.records import Record

_LONGEST_WAIT = 1.0


class RecordChunk(NamedTuple):
    """Records of one partition, in order."""

    partition: TopicPartition
    offset: int  # records before it are not wanted
    end: int | None  # nor are those from here on
    batches: Iterable[tuple[int, Iterable[Record]]]  # an ApiError: the batch cannot be decoded


class Source(Protocol):
    """Where records come from."""

    @property
    def at_end(self) -> bool:
        """Nothing more can come."""
        ...

    @property
    def disconnected(self) -> bool:
        """The brokers do not answer; the idle time does not count."""
        ...

    def poll(self, wait: float, room: int | None, stop: StopSignal) -> Iterable[RecordChunk]:
        """What has come within so many seconds; with ``room``, no more than so many are wanted."""
        ...

    def written(self, partition: TopicPartition, offset: int) -> None:
        """The lines of a chunk have been written; ``offset`` is the next one."""
        ...

    def close(self) -> None: ...


class ConsumeLoop:
    """See the module.  ``run`` returns when a limit is reached, or Ctrl-C or SIGTERM comes."""

    def __init__(
        self,
        source: Source,
        write: Formatter,
        out: IO[bytes],
        *,
        max_records: int | None = None,
        idle_seconds: float | None = None,
        skip_bad: bool = False,
    ) -> None:
        self.count = 0
        self.skipped = 0
        self._source = source
        self._write = write
        self._out = out
        self._max_records = max_records
        self._idle_seconds = idle_seconds
        self._skip_bad = skip_bad
        self._clock = SystemClock()

    def run(self) -> None:
        with StopSignal() as stop:
            try:
                self._run(stop)
            except KeyboardInterrupt:
                pass
            finally:
                with stop.cleaning_up():
                    self._source.close()

    def _run(self, stop: StopSignal) -> None:
        idle = self._idle_seconds
        last_read = self._clock.monotonic()
        while not stop and not self._source.at_end:
            wait = _LONGEST_WAIT
            if idle is not None:
                wait = min(wait, last_read + idle - self._clock.monotonic())
            before = self.count + self.skipped
            for chunk in self._source.poll(wait, self._room, stop):
                self._take(chunk)
                if self._room == 0:
                    return
            now = self._clock.monotonic()
            if self.count + self.skipped > before:
                last_read = now
            elif self._output_is_closed():
                raise BrokenPipeError
            elif idle is not None and now - last_read >= idle and not self._source.disconnected:
                return

    @property
    def _room(self) -> int | None:
        """How many records may still be shown."""
        return None if self._max_records is None else self._max_records - self.count

    def _take(self, chunk: RecordChunk) -> None:
        """Write a line for each record; then they count as read, also if a later one is bad."""
        lines: list[bytes] = []
        offset, room = chunk.offset, self._room
        try:
            for next_offset, line in self._lines(chunk):
                if line is not None:
                    lines.append(line)
                offset = next_offset
                if len(lines) == room:
                    break
        finally:
            if lines:
                self._emit(b"\n".join(lines) + b"\n")
                self.count += len(lines)
            if offset > chunk.offset:
                self._source.written(chunk.partition, offset)

    def _lines(self, chunk: RecordChunk) -> Iterator[tuple[int, bytes | None]]:
        """The line of each record and the offset after it; no line for what is skipped."""
        partition, first, end, batches = chunk
        write, offset = self._write, first
        for base_offset, records in batches:
            offset = max(offset, base_offset)
            try:
                for record in records:
                    offset = record.offset
                    if offset < first:
                        continue
                    if end is not None and offset >= end:
                        yield offset, None
                        return
                    try:
                        line = write(partition, record)
                    except FormatError as error:
                        self._bad(partition, offset, str(error))
                        line = None
                    yield offset + 1, line
            except _BadRecordError:
                raise
            except ApiError as error:
                self._bad(partition, offset, f"the batch cannot be decoded: {error}")
            offset += 1
            yield offset, None

    def _emit(self, data: bytes) -> None:
        """Write all of it.  With PYTHONUNBUFFERED a write may end early, at a signal."""
        view = memoryview(data)
        while view:
            view = view[self._out.write(view) :]
        self._out.flush()

    def _bad(self, partition: TopicPartition, offset: int, reason: str) -> None:
        if not self._skip_bad:
            raise _BadRecordError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{partition}@{offset}: {reason}; --skip-bad goes on without it",
            )
        self.skipped += 1

    def _output_is_closed(self) -> bool:
        """Has the reader of our output gone (`| head`)?  A quiet topic would not show it."""
        try:
            poller = select.poll()
            poller.register(self._out.fileno(), 0)
            return any(events & select.POLLERR for _, events in poller.poll(0))
        except OSError:  # no file: a test
            return False


class _BadRecordError(ApiError):
    """A record that cannot be shown, and must not be skipped."""
