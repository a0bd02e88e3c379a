"""Transactions at random, next to a list that knows how each of them ended.

Whatever is done to the log (rolled, opened again, recovered, truncated, deleted from), a
reader of committed records sees those of the list, reading as Kafka's clients do: batches
up to the last stable offset, and a list of the aborted transactions among them.
"""

import random
from pathlib import Path
from typing import NamedTuple

import pytest
from support.log import NOW, append, generator, log_config, open_in

from tidelog.log.log import Log
from tidelog.wire.batch import CONTROL, TRANSACTIONAL, read_header
from tidelog.wire.markers import Marker, encode_marker, read_marker
from tidelog.wire.records import decode_batch, encode_batch, split_batches


class Event(NamedTuple):
    """A batch in the list: data of a producer (-1: of none), or a marker."""

    offset: int
    count: int
    producer: int
    transactional: bool = False
    committed: bool | None = None


class Model:
    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.rng = rng
        self.directory = directory
        self.config = log_config(
            segment_bytes=rng.choice((300, 1000, 5000)),
            index_interval_bytes=rng.choice((0, 200, 4096)),
        )
        self.log: Log = open_in(directory, self.config)
        self.events: list[Event] = []
        self.sequences: dict[int, int] = {}
        self.start = 0

    @property
    def end(self) -> int:
        return self.events[-1].offset + self.events[-1].count if self.events else self.start

    def opened(self) -> dict[int, int]:
        """First offsets of the open transactions."""
        found: dict[int, int] = {}
        for event in self.events:
            if event.committed is not None:
                found.pop(event.producer, None)
            elif event.transactional:
                found.setdefault(event.producer, event.offset)
        return found

    def visible(self) -> list[int]:
        """The offsets that a reader of committed records must see, no more and no less."""
        stable = min(self.opened().values(), default=self.end)
        seen: set[int] = set()
        pending: dict[int, list[int]] = {}
        for event in self.events:
            offsets = list(range(event.offset, event.offset + event.count))
            if event.committed is not None:
                written = pending.pop(event.producer, [])
                seen.update(written if event.committed else [])
            elif event.transactional:
                pending.setdefault(event.producer, []).extend(offsets)
            else:
                seen.update(offsets)
        return sorted(offset for offset in seen if self.start <= offset < stable)

    # -- steps ------------------------------------------------------------------

    def write(self, producer: int, transactional: bool) -> None:
        count = self.rng.choice((1, 1, 3))
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        batch = encode_batch(
            [(NOW, None, b"v" * self.rng.randrange(60), ()) for _ in range(count)],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if transactional else 0,
        )
        done = append(self.log, batch)
        assert not done.duplicate
        self.events.append(Event(done.base_offset, count, producer, transactional))
        if producer >= 0:
            self.sequences[producer] = sequence + count

    def plain(self) -> None:
        self.write(-1, False)

    def transactional(self) -> None:
        self.write(self.rng.randrange(4), True)

    def idempotent(self) -> None:
        self.write(10, False)

    def finish(self) -> None:
        producer, committed = self.rng.randrange(4), self.rng.random() < 0.5
        done = append(self.log, encode_marker(Marker(committed, 0), producer, 0, NOW))
        self.events.append(Event(done.base_offset, 1, producer, True, committed))

    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll(NOW)

    def reopen(self) -> None:
        self.log.close()
        self._open(clean=True)

    def crash(self) -> None:
        point = self.rng.choice((0, self.rng.randint(0, self.end)))
        if self.rng.random() < 0.5:
            self.log.flush()
        else:
            point = min(point, self.log.recovery_point)
        for segment in self.log.segments:
            if segment.base_offset >= point and self.rng.random() < 0.5:
                Path(segment.transaction_index.path).unlink(missing_ok=True)
        if self.start == 0 and self.rng.random() < 0.3:
            # With the log's beginning gone, only snapshots know where a transaction began.
            for path in self.directory.glob("*.snapshot"):
                path.unlink()
        self._open(clean=False, recovery_point=point)

    def _open(self, **how: object) -> None:
        opened = open_in(self.directory, self.config, log_start_offset=self.start, **how)
        self.log = opened
        self.log.high_watermark = self.log.end_offset

    def truncate(self) -> None:
        if len(self.events) > 1 and self.events[-1].offset > self.start:
            event = self.rng.choice([e for e in self.events[-8:] if e.offset > self.start])
            self.log.truncate_to(event.offset)
            self.events = [kept for kept in self.events if kept.offset < event.offset]
            self.sequences = {}
            for kept in self.events:
                if kept.producer >= 0 and kept.committed is None:
                    self.sequences[kept.producer] = (
                        self.sequences.get(kept.producer, 0) + kept.count
                    )

    def delete(self) -> None:
        if self.end > self.start:
            self.start = self.rng.randint(self.start, self.start + (self.end - self.start) // 2)
            self.log.advance_start(self.start)
            files, _ = self.log.apply_retention(NOW)
            for file in files:
                Path(file).unlink()

    # -- reading ----------------------------------------------------------------

    def read(self, position: int) -> list[int]:
        """As a client does with isolation level read_committed."""
        seen: list[int] = []
        end = self.log.last_stable_offset
        while position < end:
            most = self.rng.choice((1, 200, 2000))
            found = self.log.read(position, most, end, at_least_one=True)
            assert found is not None
            left_out: set[int] = set()
            aborted = sorted(self.log.aborted_in(position, found), key=lambda row: row.first_offset)
            for batch in split_batches(found.read()):
                if len(batch) < 61 or len(batch) < read_header(batch).size:
                    break
                header = read_header(batch)
                while aborted and aborted[0].first_offset <= header.last_offset:
                    left_out.add(aborted.pop(0).producer_id)
                marker = read_marker(batch) if header.attributes & CONTROL else None
                if marker is not None and not marker.committed:
                    left_out.discard(header.producer_id)
                hidden = header.attributes & TRANSACTIONAL and header.producer_id in left_out
                if not hidden and marker is None:
                    offsets = (record.offset for record in decode_batch(batch))
                    seen += [offset for offset in offsets if offset >= position]
                position = header.last_offset + 1
        return seen

    def check(self) -> None:
        self.log.check_invariants()
        opened = self.opened()
        assert self.log.producers.transactions == opened
        stable = min(opened.values(), default=self.end)
        assert self.log.last_stable_offset == max(stable, self.start)
        position = self.rng.randint(self.start, self.end)
        for start in (self.start, position):
            assert self.read(start) == [offset for offset in self.visible() if offset >= start]


STEPS = {
    Model.plain: 8,
    Model.idempotent: 4,
    Model.transactional: 20,
    Model.finish: 10,
    Model.roll: 1,
    Model.reopen: 1,
    Model.crash: 1,
    Model.truncate: 1,
    Model.delete: 1,
}


@pytest.mark.parametrize("run", range(20))
def test_only_committed_records_are_seen(tmp_path: Path, run: int) -> None:
    rng = generator("transactions", run)
    model = Model(tmp_path, rng)
    for number in range(250):
        (step,) = rng.choices(list(STEPS), list(STEPS.values()))
        step(model)
        if number % 5 == 0 or step in (Model.reopen, Model.crash, Model.truncate, Model.delete):
            model.check()
    model.check()
