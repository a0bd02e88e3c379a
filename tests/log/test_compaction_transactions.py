"""Compaction of transactions: aborted records go, markers stay as long as they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compaction_model import table
from support.log import NOW, append, generator, log_config, open_in

from tidelog.log.cleaner_jobs import Limits, assess_log, clean_log
from tidelog.log.log import Log
from tidelog.wire.batch import CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchHeader, read_header
from tidelog.wire.markers import Marker, encode_marker, read_marker
from tidelog.wire.records import Record, decode_batch, encode_batch

pytestmark = pytest.mark.usefixtures("no_sync")
RETENTION = 1000


@pytest.fixture
def log(quick_path: Path) -> Log:
    config = log_config(
        cleanup_policy="compact", segment_bytes=10**6, delete_retention_ms=RETENTION
    )
    return open_in(quick_path / "t-0", config)


class Producer:
    """Writes transactions."""

    def __init__(self, log: Log, producer_id: int) -> None:
        self.log, self.id, self.sequence = log, producer_id, 0

    def send(self, *rows: tuple[str, str]) -> None:
        data = encode_batch(
            [(NOW, key.encode(), value.encode(), ()) for key, value in rows],
            producer_id=self.id,
            producer_epoch=0,
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL,
        )
        self.sequence += len(rows)
        append(self.log, data)

    def end(self, committed: bool) -> None:
        append(self.log, encode_marker(Marker(committed, 0), self.id, 0, NOW))


def plain(log: Log, key: str, value: str | None) -> None:
    append(log, encode_batch([(NOW, key.encode(), value and value.encode(), ())]))


def clean(log: Log, now_ms: int) -> None:
    """A round over everything but an empty active segment."""
    if log.active.size:
        log.roll(NOW)
    log.flush()
    clean_log(log, now_ms)
    log.check_invariants()


def batches(log: Log) -> list[bytes]:
    return list(log.batches(log.log_start_offset))


def headers(log: Log) -> list[BatchHeader]:
    return [read_header(batch) for batch in batches(log)]


def markers(log: Log) -> list[Marker | None]:
    return [read_marker(b) for b in batches(log) if read_header(b).attributes & CONTROL]


def records(log: Log) -> list[tuple[str, str]]:
    return [
        ((record.key or b"").decode(), (record.value or b"").decode())
        for batch in batches(log)
        if not read_header(batch).attributes & CONTROL
        for record in decode_batch(batch)
    ]


def committed(log: Log) -> list[Record]:
    """What a consumer with read_committed sees, as Kafka's clients work it out."""
    found = log.read(log.log_start_offset, 1 << 30, log.end_offset, at_least_one=True)
    seen: list[Record] = []
    aborted = []
    if found is not None:
        for segment in log.segments:
            segment.transaction_index.collect(log.log_start_offset, log.end_offset, aborted)
    aborted.sort(key=lambda entry: entry.first_offset)
    ending: set[int] = set()
    for batch in batches(log):
        header = read_header(batch)
        if header.last_offset >= log.last_stable_offset:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            ending.add(aborted.pop(0).producer_id)
        if header.attributes & CONTROL:
            marker = read_marker(batch)
            if marker is not None and not marker.committed:
                ending.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in ending):
            seen += decode_batch(batch)
    return seen


def test_aborted_records_go_and_do_not_supersede(log: Log) -> None:
    plain(log, "a", "old")
    first = Producer(log, 1)
    first.send(("a", "aborted"), ("b", "aborted"))
    first.end(committed=False)
    first.send(("c", "1"))
    first.end(committed=True)
    clean(log, NOW + 1)
    assert records(log) == [("a", "old"), ("c", "1")]
    assert markers(log) == [Marker(False, 0), Marker(True, 0)]


def test_a_marker_goes_when_nothing_needs_it(log: Log) -> None:
    first = Producer(log, 1)
    first.send(("a", "aborted"))
    first.end(committed=False)
    first.send(("a", "1"))
    first.end(committed=True)
    Producer(log, 2).send(("a", "2"))
    append(log, encode_marker(Marker(True, 0), 2, 0, NOW))
    clean(log, NOW + 1)  # the records go
    assert records(log) == [("a", "2")]
    assert len(markers(log)) == 3
    plain(log, "x", "1")
    clean(log, NOW + 2)  # the abort marker is alone: it gets its time
    horizons = [
        header.base_timestamp for header in headers(log) if header.attributes & DELETE_HORIZON
    ]
    assert horizons == [NOW + 2 + RETENTION]
    assert len(markers(log)) == 3
    plain(log, "x", "2")
    clean(log, NOW + 1 + RETENTION)
    assert len(markers(log)) == 3
    plain(log, "x", "3")
    clean(log, NOW + 2 + RETENTION)
    # The commit of the first producer stays: its last batch does, for its sequence.
    assert markers(log) == [Marker(True, 0), Marker(True, 0)]
    assert records(log) == [("a", "2"), ("x", "3")]
    (kept,) = [h for h in headers(log) if h.producer_id == 1 and not h.attributes & CONTROL]
    assert (kept.record_count, kept.last_sequence) == (0, 1)


def test_an_open_transaction_holds_compaction_back(log: Log) -> None:
    for i in range(5):
        plain(log, "a", str(i))
    log.roll(NOW)
    slow = Producer(log, 1)
    slow.send(("a", "open"))
    log.roll(NOW)
    plain(log, "a", "last")
    log.roll(NOW)
    log.flush()
    found = assess_log(log, NOW)
    assert (found.end, log.last_stable_offset) == (5, 5)
    assert "transaction" in found.held_back
    clean_log(log, NOW)
    assert records(log) == [("a", "4"), ("a", "open"), ("a", "last")]
    slow.end(committed=True)
    clean(log, NOW)
    assert records(log) == [("a", "last")]


@pytest.mark.parametrize("story", range(30))
def test_random_transactions(quick_path: Path, story: int) -> None:
    """Whoever reads committed records sees the same table before and after."""
    rng = generator("transactions", story)
    config = log_config(
        cleanup_policy="compact",
        segment_bytes=rng.choice((500, 3000)),
        delete_retention_ms=rng.choice((0, 500)),
    )
    log = open_in(quick_path / "t-0", config)
    producers = [Producer(log, i) for i in range(3)]
    open_ones: set[int] = set()
    expected: list[tuple[int, str, str]] = []  # committed, by offset
    pending: dict[int, list[tuple[int, str, str]]] = {0: [], 1: [], 2: []}
    now = NOW
    for step in range(200):
        what = rng.random()
        producer = rng.choice(producers)
        key, value = f"k{rng.randrange(6)}", f"{step}"
        if what < 0.5:
            pending[producer.id].append((log.end_offset, key, value))
            producer.send((key, value))
            open_ones.add(producer.id)
        elif what < 0.6:
            expected.append((log.end_offset, key, value))
            plain(log, key, value)
        elif what < 0.85 and producer.id in open_ones:
            done = rng.random() < 0.6
            producer.end(done)
            open_ones.discard(producer.id)
            expected += pending[producer.id] if done else []
            pending[producer.id] = []
        elif what < 0.9:
            now += 400
        elif what < 0.95:
            log.flush()
            limits = Limits(
                buffer_bytes=rng.choice((1, 10**6)), chunk_bytes=rng.choice((61, 10**6))
            )
            clean_log(log, now, limits)
        else:
            clean_stop = rng.random() < 0.5
            if clean_stop:
                log.close()
            cleaned_to, point = log.cleaned_offset, log.recovery_point
            log = open_in(
                quick_path / "t-0",
                config,
                clean=clean_stop,
                recovery_point=rng.choice((0, point)),
            )
            log.high_watermark = log.end_offset
            log.cleaned_offset = cleaned_to
            for other in producers:
                other.log = log
        log.check_invariants()
        stable = log.last_stable_offset
        starts = [rows[0][0] for rows in pending.values() if rows]
        assert stable == min(starts, default=log.end_offset)
        wanted = {key: value for offset, key, value in sorted(expected) if offset < stable}
        found = {
            key.decode(): value.decode() for key, value in table(committed(log)).items() if key
        }
        assert found == wanted
