"""A log in a list, and the same steps for it and for the real one."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from support.log import NOW, append, contents, log_config, make_batch, open_in, read_segment
from support.memory_files import MemoryFiles

from tidelog import files
from tidelog.clock import FakeClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.log.log import Log
from tidelog.wire.compression import Codec
from tidelog.wire.records import Record, decode_batch


@dataclass
class Written:
    """One batch in the model."""

    base_offset: int
    last_offset: int
    data: bytes  # as it must be on disk
    sent: bytes  # as the producer sent it
    producer: tuple[int, int, int] | None = None  # id, epoch, first sequence

    @property
    def records(self) -> list[Record]:
        return list(decode_batch(self.data))


@dataclass
class Sent:
    """What the model knows of one producer: its batches, and how many the log must know."""

    epoch: int = 0
    next_sequence: int = 0
    batches: list[Written] = field(default_factory=list)
    known: int = 0  # of the newest batches, after a restart only the last


class LogModel:
    """Steps that do the same to a real log and to a list, and compare."""

    def __init__(
        self, directory: Path, rng: random.Random, disk: MemoryFiles | None = None
    ) -> None:
        self.rng = rng
        self.disk = disk
        self.directory = directory
        self.clock = FakeClock(NOW)
        self.config = log_config(
            segment_bytes=rng.choice((700, 2500, 8000)),
            segment_ms=rng.choice((5_000, 10**9)),
            segment_index_bytes=rng.choice((48, 10485760)),
            index_interval_bytes=rng.choice((0, 150, 4096)),
            retention_ms=rng.choice((-1, 60_000)),
            retention_bytes=rng.choice((-1, 6000)),
        )
        self.log: Log = open_in(directory, self.config)
        self.batches: list[Written] = []
        self.start = self.end = self.flushed = 0
        self.epoch = 0
        self.producers: dict[int, Sent] = {}

    # -- writing ----------------------------------------------------------------

    def append(self) -> None:
        self._write(None)

    def append_idempotent(self) -> None:
        producer_id = self.rng.randrange(3)
        sent = self.producers.get(producer_id)
        if sent is None:
            start = self.rng.choice((0, 2**31 - 3))
            sent = self.producers[producer_id] = Sent(next_sequence=start)
        elif self.rng.random() < 0.05:
            sent.epoch, sent.next_sequence, sent.known = sent.epoch + 1, 0, 0
        self._write(producer_id)

    def _write(self, producer_id: int | None) -> None:
        rng = self.rng
        if rng.random() < 0.02:
            self.epoch += 1
        now = self.clock.now_ms()
        count = rng.choice((1, 1, 2, 5))
        values = [rng.choice((None, b"v" * rng.randrange(400))) for _ in range(count)]
        times = [now + rng.randrange(-3000, 100) for _ in range(count)]
        codec = rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4))
        producer = None
        if producer_id is not None:
            sent = self.producers[producer_id]
            producer = (producer_id, sent.epoch, sent.next_sequence)
        raw = make_batch(values, times, producer=producer or (-1, -1, -1), codec=codec)
        done = append(self.log, raw, now, self.epoch)
        assert done == (self.end, self.end + count - 1, False)
        placed = bytearray(raw)
        placed[:8] = self.end.to_bytes(8, "big")
        placed[12:16] = self.epoch.to_bytes(4, "big")
        written = Written(self.end, self.end + count - 1, bytes(placed), raw, producer)
        self.batches.append(written)
        self.end += count
        if producer_id is not None:
            sent.next_sequence = (sent.next_sequence + count) & 0x7FFFFFFF
            sent.batches.append(written)
            sent.known = min(sent.known + 1, 5)

    def retry(self) -> None:
        """A batch that the log must still know is a duplicate, wherever it is."""
        for sent in self.producers.values():
            if sent.known:
                again = self.rng.choice(sent.batches[-sent.known :])
                done = append(self.log, again.sent, self.clock.now_ms(), self.epoch)
                assert done == (again.base_offset, again.last_offset, True)

    def gap(self) -> None:
        for producer_id, sent in self.producers.items():
            if sent.known:
                ahead = (sent.next_sequence + 1) & 0x7FFFFFFF
                lost = make_batch([b"lost"], producer=(producer_id, sent.epoch, ahead))
                try:
                    append(self.log, lost, self.clock.now_ms(), self.epoch)
                    raise AssertionError("a gap was taken")
                except ApiError as error:
                    assert error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll(self.clock.now_ms())

    def wait(self) -> None:
        self.clock.advance(self.rng.choice((100, 6_000, 70_000)))

    # -- reading ----------------------------------------------------------------

    def read(self) -> None:
        """From any offset, any number of bytes: whole batches but for a cut tail."""
        if not self.batches or self.batches[-1].last_offset < self.start:
            assert self.log.read(self.start, 1000, self.end, at_least_one=True) is None
            return
        offset = self.rng.randrange(self.start, self.end)
        visible = self.rng.choice((self.end, self.rng.choice(self.batches).last_offset + 1))
        max_bytes = self.rng.choice((1, 61, 300, 2000, 1 << 20))
        whole = self.rng.random() < 0.5
        found = self.log.read(offset, max_bytes, visible, at_least_one=whole)
        wanted = [b for b in self.batches if b.last_offset >= offset and b.last_offset < visible]
        if not wanted:
            assert found is None
            return
        first = len(wanted[0].data)
        if not whole and max_bytes < first:  # part of the first batch is of no use
            assert found is None
            return
        assert found is not None
        data = found.read()
        assert len(data) == len(found)
        assert b"".join(b.data for b in wanted).startswith(data)
        assert first <= len(data) <= max(max_bytes, first)
        if len(data) < max_bytes:  # less than asked for only at the end of a file
            count = self._count(wanted, data)
            last, bases = wanted[count - 1].last_offset, [s.base_offset for s in self.log.segments]
            assert count == len(wanted) or any(
                last < base <= wanted[count].base_offset for base in bases
            )

    def _count(self, wanted: list[Written], data: bytes) -> int:
        count, size = 0, 0
        while size < len(data):
            size += len(wanted[count].data)
            count += 1
        return count

    def find_by_time(self) -> None:
        visible = self.rng.choice((self.end, self.rng.randrange(self.start, self.end + 1)))
        target = self.clock.now_ms() + self.rng.choice((-(10**6), -2000, 0, 50, 10**6))
        if self.batches and self.rng.random() < 0.6:
            target = self.rng.choice(self.rng.choice(self.batches).records).timestamp
        expected = None
        for record in self._records():
            if record.timestamp >= target and record.offset < visible:
                expected = (record.timestamp, record.offset)
                break
        assert self.log.offset_for_timestamp(target, visible) == expected

    def newest(self) -> None:
        expected = None
        for record in self._records():
            if expected is None or record.timestamp > expected[0]:
                expected = (record.timestamp, record.offset)
        assert self.log.newest_record() == expected

    def _records(self) -> list[Record]:
        found = [record for batch in self.batches for record in batch.records]
        return [record for record in found if record.offset >= self.start]

    # -- forgetting -------------------------------------------------------------

    def retention(self) -> None:
        config, now = self.config, self.clock.now_ms()
        size_before = self.log.size
        renamed, _ = self.log.apply_retention(now)
        for path in renamed:
            files.unlink(path)
        first = self.log.segments[0].base_offset
        dropped = [b for b in self.batches if b.last_offset < first]
        self.start = max(self.start, first)
        self.batches = self.batches[len(dropped) :]
        if config.retention_bytes < 0 and config.retention_ms < 0 and first > self.start:
            raise AssertionError("nothing asked for this")
        if config.retention_bytes >= 0 and len(self.log.segments) > 1:
            kept = self.log.size - self.log.segments[0].size
            assert kept < config.retention_bytes or size_before < config.retention_bytes
        if config.retention_ms >= 0:
            oldest = self.log.segments[0]
            if oldest.size:
                assert now - oldest.max_timestamp[0] <= config.retention_ms

    def delete_records(self) -> None:
        offset = self.rng.randrange(self.start, self.end + 1)
        self.log.advance_start(offset)
        self.start = offset

    def truncate(self) -> None:
        offset = self.rng.randrange(max(self.start, self.end - 15), self.end + 1)
        self.log.truncate_to(offset)
        self._forget_after(offset)

    def truncate_and_flush(self) -> None:
        """Before that a power cut may bring back what was cut off; then it is cut off again."""
        self.truncate()
        self.flush()

    def _forget_after(self, offset: int) -> None:
        """Batches that reach ``offset`` are gone, and with them what their producers did."""
        self.batches = [b for b in self.batches if b.last_offset < offset]
        if offset < self.end:
            ends = [b.last_offset + 1 for b in self.batches]
            self.end = max([*ends, self.log.active.base_offset])
        for producer_id, sent in list(self.producers.items()):
            count = sum(b.last_offset < offset for b in sent.batches)
            if count:
                self._continue(sent, count)
            else:
                del self.producers[producer_id]
        if self.disk:
            self._ask_for_producers()
        self.start, self.flushed = min(self.start, self.end), min(self.flushed, self.end)
        self.log.high_watermark = self.log.end_offset

    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end
        assert self.log.recovery_point == self.end

    # -- stopping ---------------------------------------------------------------

    def clean_restart(self) -> None:
        self.log.close()
        self._reopen(clean=True)
        if self.disk:
            self._ask_for_producers()
        self.flushed = self.end
        assert self.log.recovery_point == self.end

    def crash(self) -> None:
        """Nothing is closed; what was not flushed may be torn at any byte."""
        if self.rng.random() < 0.6:
            self._tear()
        self._reopen(clean=False, recovery_point=self.rng.randint(0, self.flushed))
        assert self.log.end_offset >= self.flushed
        self._forget_after(self.log.end_offset)
        self.flushed = self.log.recovery_point

    def power_cut(self) -> None:
        """Flushed records stay; of the others any batches do, and none that was never written.

        Not only the last ones go: where a file that was not synced ends between two batches,
        and the next segment is whole, nothing tells recovery that records are missing.
        """
        assert self.disk
        parent = os.path.dirname(str(self.directory))
        self.disk.cut_power(parent, self.rng)
        self.disk.come_back(parent)
        self._reopen(clean=False, recovery_point=self.rng.randint(0, self.flushed))
        assert self.flushed <= self.log.end_offset <= self.end
        there = set(self.log.batches(self.start))
        assert there <= {batch.data for batch in self.batches}
        safe = [b for b in self.batches if self.start <= b.last_offset < self.flushed]
        assert there >= {batch.data for batch in safe}
        there.update(self.log.batches(self.log.segments[0].base_offset))  # deleted records too
        self.batches = [b for b in self.batches if b.data in there]
        self.end = self.flushed = self.log.end_offset
        assert self.log.recovery_point == self.end
        self._ask_for_producers()

    def _ask_for_producers(self) -> None:
        """Which batches of the producers the log knows: snapshots are not synced, and without
        them it knows those that it still has."""
        there = set(self.log.batches(self.start))
        for producer_id, sent in list(self.producers.items()):
            known = self.log.producers.producers.get(producer_id)
            if known is None or not known.batches:
                assert not any(b.data in there for b in sent.batches)
                del self.producers[producer_id]
                continue
            offsets = [b.last_offset for b in sent.batches]
            self._continue(sent, offsets.index(known.batches[-1].last_offset) + 1)

    def _continue(self, sent: Sent, count: int) -> None:
        """Of what a producer has sent the first ``count`` batches are in the log."""
        sent.batches = sent.batches[:count]
        sent.known = min(1, len(sent.batches))
        last = sent.batches[-1]
        assert last.producer
        records = last.last_offset - last.base_offset + 1
        sent.epoch = last.producer[1]
        sent.next_sequence = (last.producer[2] + records) & 0x7FFFFFFF

    def _tear(self) -> None:
        newest = self.log.segments[-1]
        batches = read_segment(newest.path)
        kept = sum(batch.size for batch in batches if batch.last_offset < self.flushed)
        fd = files.open(newest.path, os.O_RDWR)
        files.ftruncate(fd, self.rng.randint(kept, newest.size))
        files.close(fd)

    def _reopen(self, **how: object) -> None:
        start = self.start
        for sent in self.producers.values():
            sent.known = min(1, sent.known)
        self.log = open_in(self.directory, self.config, log_start_offset=start, **how)
        self.log.high_watermark = self.log.end_offset

    # -- checks -----------------------------------------------------------------

    def check(self) -> None:
        log = self.log
        log.check_invariants()
        assert (log.log_start_offset, log.end_offset) == (self.start, self.end)
        for segment in log.segments:
            assert segment.size == files.size(segment.path)
        newest = self.batches[-1] if self.batches else None
        if newest and newest.last_offset == self.end - 1 >= self.start:
            assert list(log.batches(self.end - 1)) == [newest.data]

    def check_everything(self) -> None:
        assert contents(self.log) == self._records()
        names = {name.partition(".")[2] for name in files.listdir(str(self.directory))}
        assert names <= {"log", "index", "timeindex", "snapshot", ""}
        for producer_id, sent in self.producers.items():
            if sent.known:
                found = self.log.producers.producers[producer_id]
                assert found.epoch == sent.epoch
                assert found.batches[-1].last_offset == sent.batches[-1].last_offset
