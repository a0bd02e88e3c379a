"""A directory of a log, whole; copies of it, damaged; and what must be left."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from support.log import (
    NOW,
    append,
    check_index_files,
    contents,
    log_config,
    log_files,
    make_batch,
    open_in,
    read_segment,
)

from tidelog.log.log import Log
from tidelog.wire.batch import BatchHeader, read_header
from tidelog.wire.compression import Codec
from tidelog.wire.records import decode_batch

CONFIG = log_config(segment_bytes=1500, index_interval_bytes=250)


class WholeLog:
    """Four segments written by two producers and by none, kept as bytes."""

    def __init__(self, directory: Path, *, clean: bool) -> None:
        self.directory = directory
        log = open_in(directory, CONFIG)
        sequences = {7: 0, 8: 2**31 - 2}
        i = 0
        while len(log.segments) < 4 or log.active.size < 900:
            producer = (-1, -1, -1)
            values = [b"%d" % i * (i % 9)] * (1 + i % 3)
            if i % 3:
                producer_id = 6 + i % 3
                producer = (producer_id, 0, sequences[producer_id])
                after = sequences[producer_id] + len(values)
                sequences[producer_id] = after & 0x7FFFFFFF
            codec = Codec.LZ4 if i % 5 == 0 else Codec.NONE
            append(
                log, make_batch(values, NOW + 10 * i, producer=producer, codec=codec), epoch=i // 9
            )
            i += 1
            if i == 12:
                log.flush()
        if clean:
            log.close()
        self.flushed = log.recovery_point
        self.end = log.end_offset
        self.files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
        self.newest = log_files(directory)[-1].name
        self.base = int(self.newest[:20])  # of the newest segment
        self.batches = {p.name: read_segment(p) for p in log_files(directory)}
        self.records = contents(log)

    def restore(self, **changed: bytes | None) -> None:
        """The whole directory again, but for the files named (None: not there)."""
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        for name, data in {**self.files, **changed}.items():
            if data is not None:
                (self.directory / name).write_bytes(data)

    def reopen(self, *, clean: bool, recovery_point: int | None = None, check: bool = True) -> Log:
        point = self.base if recovery_point is None else recovery_point
        log = open_in(self.directory, CONFIG, clean=clean, recovery_point=point)
        log.high_watermark = log.end_offset
        if check:
            log.check_invariants()
        return log

    def headers(self) -> list[BatchHeader]:
        """Every batch of the whole log."""
        return [
            read_header(self.files[name], batch.position)
            for name, batches in self.batches.items()
            for batch in batches
        ]

    def check(self, log: Log, end: int, *, indexes: bool = True) -> None:
        """Everything before ``end`` is there, nothing after it, and all goes on."""
        assert log.end_offset == end
        start = min(self.base, end)  # what is older was not touched
        expected = [record for record in self.records if start <= record.offset < end]
        assert contents(log, start) == expected
        if indexes:
            log.flush()
            check_index_files(self.directory, 250, active_closed=False)
        self.check_producers(log, end)
        for segment in log.segments:
            newest = max((b.max_timestamp for b in read_segment(segment.path)), default=-1)
            assert segment.max_timestamp[0] == newest
        assert append(log, make_batch([b"more"])).base_offset == end
        assert [record.value for record in contents(log, end)] == [b"more"]

    def check_producers(self, log: Log, end: int) -> None:
        expected = {}
        for header in self.headers():
            if header.producer_id >= 0 and header.last_offset < end:
                last = (header.producer_epoch, header.last_sequence, header.last_offset)
                expected[header.producer_id] = last
        found = {
            producer_id: (p.epoch, p.last_sequence, p.batches[-1].last_offset)
            for producer_id, p in log.producers.producers.items()
        }
        assert found == expected

    def check_reads(self, log: Log) -> None:
        """Reads from every offset and every time, as brute force has it."""
        self.check_reads_only(log)
        last = max(self.records, key=lambda record: (record.timestamp, -record.offset))
        assert log.newest_record() == (last.timestamp, last.offset)
        later = last.timestamp + 1
        assert log.offset_for_timestamp(later, log.end_offset) is None

    def check_reads_only(self, log: Log) -> None:
        for record in self.records:
            found = log.read(record.offset, 1, log.end_offset, at_least_one=True)
            assert found is not None
            assert record in decode_batch(found.read())
        for timestamp in {r.timestamp - delta for r in self.records for delta in (0, 1)}:
            first = next(r for r in self.records if r.timestamp >= timestamp)
            found_at = log.offset_for_timestamp(timestamp, log.end_offset)
            assert found_at == (first.timestamp, first.offset)


def flip(rng: random.Random, data: bytes, at: int) -> bytes:
    """One bit of one byte is wrong."""
    out = bytearray(data)
    out[at] ^= 1 << rng.randrange(8)
    return bytes(out)
