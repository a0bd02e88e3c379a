"""Compaction by its description: lists of records, a dict of the newest offset of each key."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from support.log import NOW, append, check_index_files, log_config, open_in

from tidelog.log.cleaner import Finished
from tidelog.log.cleaner_jobs import Limits, assess_log, clean_log
from tidelog.wire.batch import DELETE_HORIZON, read_header
from tidelog.wire.compression import Codec
from tidelog.wire.records import Record, decode_batch, encode_batch

CODECS = tuple(Codec)


@dataclass
class ModelBatch:
    """One batch that should be in the log."""

    base_offset: int
    last_offset: int
    records: list[Record]
    producer: tuple[int, int, int]  # id, epoch, first sequence
    codec: Codec
    horizon: int | None = None

    def described(self) -> tuple[object, ...]:
        codec = self.codec if self.records else Codec.NONE
        horizon = self.horizon if self.records else None
        return (self.base_offset, self.last_offset, self.records, self.producer, codec, horizon)


def described(batch: bytes) -> tuple[object, ...]:
    """The same of a batch in the log."""
    header = read_header(batch)
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
    records = list(decode_batch(batch))
    if records:
        assert header.max_timestamp == max(record.timestamp for record in records)
    codec = Codec(header.attributes & 7)
    return (header.base_offset, header.last_offset, records, producer, codec, horizon)


class CompactionModel:
    """A real log and a model of it, side by side."""

    def __init__(self, directory: Path, rng: random.Random, **settings: object) -> None:
        self.rng = rng
        self.now = NOW
        self.directory = directory
        self.config = log_config(
            **{
                "cleanup_policy": "compact",
                "segment_bytes": rng.choice((400, 1500, 6000, 40_000)),
                "index_interval_bytes": rng.choice((0, 300, 4096)),
                "delete_retention_ms": rng.choice((0, 1000, 60_000)),
                "min_compaction_lag_ms": rng.choice((0, 0, 5_000)),
                **settings,
            }
        )
        self.log = open_in(directory, self.config)
        self.batches: list[ModelBatch] = []
        self.sent: list[Record] = []  # everything, for ever
        self.sequences: dict[int, int] = {}
        self.cleaned_to = 0
        many = rng.choice((3, 12, 60))
        self.keys = [b"key-%d" % i * rng.choice((1, 1, 9)) for i in range(many)] + [b""]

    # -- steps ------------------------------------------------------------------

    def append(self) -> None:
        rng = self.rng
        self.now += rng.choice((0, 1, 20, 3_000))
        rows = [
            (
                self.now - rng.choice((0, 0, 7)),
                rng.choice(self.keys),
                None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 5, 40, 200))),
                [("h", b"x")] if rng.random() < 0.1 else (),
            )
            for _ in range(rng.choice((1, 1, 2, 9)))
        ]
        producer = (-1, -1, -1)
        if rng.random() < 0.5:
            producer_id = rng.randrange(4)
            sequence = self.sequences.get(producer_id, 0)
            producer = (producer_id, 0, sequence)
            self.sequences[producer_id] = sequence + len(rows)
        codec = rng.choice(CODECS) if rng.random() < 0.5 else Codec.NONE
        data = encode_batch(
            rows,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        base = append(self.log, data, self.now).base_offset
        records = [
            Record(base + i, time, key, value, tuple(headers))
            for i, (time, key, value, headers) in enumerate(rows)
        ]
        last = base + len(rows) - 1
        self.batches.append(ModelBatch(base, last, records, producer, codec))
        self.sent += records

    def wait(self) -> None:
        self.now += self.rng.choice((500, 6_000, 61_000))

    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll(self.now)

    def reopen(self) -> None:
        """A crash or a clean stop; where the cleaner was is in a checkpoint, or lost."""
        clean = self.rng.random() < 0.5
        if clean:
            self.log.close()
        point = self.log.recovery_point
        self.log = open_in(self.directory, self.config, clean=clean, recovery_point=point)
        self.log.high_watermark = self.log.end_offset
        if self.rng.random() < 0.7:
            self.log.cleaned_offset = self.cleaned_to
        else:
            self.cleaned_to = 0

    def clean(self, buffer_bytes: int | None = None) -> Finished | None:
        """A round of both; the model learns from the log only which segments it has."""
        self.log.flush()
        limits = Limits(
            buffer_bytes=buffer_bytes or self.rng.choice((1, 2_000, 10_000, 10**8)),
            chunk_bytes=self.rng.choice((61, 1000, 512 * 1024)),
        )
        found = assess_log(self.log, self.now)
        cut = [segment.base_offset for segment in self.log.segments]  # before they are joined
        result = clean_log(self.log, self.now, limits)
        if result is None:
            return None
        assert result.end_offset <= found.end
        assert result.end_offset > found.first_dirty
        self._clean_model(result.end_offset, min(base for base in cut if base >= result.end_offset))
        self.cleaned_to = result.end_offset
        return result

    def _clean_model(self, end: int, read_to: int) -> None:
        """``end``: up to here the keys are known.  ``read_to``: where the copied segments end."""
        newest = {
            record.key: record.offset
            for batch in self.batches
            for record in batch.records
            if self.cleaned_to <= record.offset < end
        }
        mapped = [
            batch.last_offset
            for batch in self.batches
            if self.cleaned_to <= batch.last_offset < end
        ]
        last_of_producer = {b.producer[0]: b for b in self.batches if b.producer[0] >= 0}
        kept = []
        for batch in self.batches:
            if batch.base_offset >= read_to:
                kept.append(batch)
                continue
            expired = batch.horizon is not None and batch.horizon <= self.now
            batch.records = [
                record
                for record in batch.records
                if record.offset >= end
                or (
                    newest.get(record.key, -1) <= record.offset
                    and not (record.value is None and expired)
                )
            ]
            if batch.horizon is None and any(record.value is None for record in batch.records):
                batch.horizon = self.now + self.config.delete_retention_ms
            is_last = batch is last_of_producer.get(batch.producer[0])
            if batch.records or is_last or batch.last_offset == max(mapped):
                kept.append(batch)
        self.batches = kept

    # -- checks -----------------------------------------------------------------

    def check(self) -> None:
        log = self.log
        log.check_invariants()
        assert log.end_offset == (self.sent[-1].offset + 1 if self.sent else 0)
        found = [described(batch) for batch in log.batches(0)]
        assert found == [batch.described() for batch in self.batches]
        self._check_meaning()
        for producer_id, sequence in self.sequences.items():
            assert log.producers.producers[producer_id].last_sequence == sequence - 1

    def _check_meaning(self) -> None:
        """Whoever reads from the start ends with the same table as before compaction."""
        records = [record for batch in self.batches for record in batch.records]
        assert set(map(repr, records)) <= set(map(repr, self.sent))
        assert table(records) == table(self.sent)

    def check_reads(self) -> None:
        """From any offset the next record that is left is found, and by any time too."""
        records = [record for batch in self.batches for record in batch.records]
        for _ in range(10):
            offset = self.rng.randrange(self.log.end_offset) if self.log.end_offset else 0
            after = [record for record in records if record.offset >= offset]
            found = [r for b in self.log.batches(offset) for r in decode_batch(b)]
            assert [record for record in found if record.offset >= offset] == after
            time = self.now - self.rng.randrange(70_000)
            first = next((r for r in records if r.timestamp >= time), None)
            answer = self.log.offset_for_timestamp(time, self.log.end_offset)
            assert answer == (first and (first.timestamp, first.offset))

    def check_files(self) -> None:
        self.log.flush()
        check_index_files(self.directory, self.config.index_interval_bytes, active_closed=False)


def table(records: list[Record]) -> dict[bytes | None, bytes]:
    """What a consumer that keeps the newest value of each key ends with."""
    found: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = record.value
    return found


def run_steps(model: CompactionModel, count: int) -> None:
    """A random story."""
    steps = [model.append] * 12 + [model.wait, model.roll, model.reopen] + [model.clean] * 3
    for _ in range(count):
        model.rng.choice(steps)()
        model.check()
    model.check_reads()
