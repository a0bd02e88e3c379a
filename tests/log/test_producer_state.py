"""Idempotence: new, duplicate or gap, across wraps, epochs, expiry and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import NOW, append, contents, make_batch, open_in

from tidelog.errors import ApiError, ErrorCode
from tidelog.log.producer_state import Batch, Producer, ProducerState, snapshot_offsets
from tidelog.wire.batch import BatchHeader, add_sequence, read_header

LAST = 2**31 - 1


def header(
    sequence: int, count: int = 1, *, epoch: int = 0, time: int = NOW, attributes: int = 0
) -> BatchHeader:
    made = read_header(make_batch([b"x"] * count, time, producer=(1, epoch, sequence)))
    return made._replace(attributes=attributes)


class Sender:
    """A producer that talks to a state, as the log would."""

    def __init__(self, state: ProducerState | None = None) -> None:
        self.state = state or ProducerState()
        self.offset = 0

    def send(self, sequence: int, count: int = 1, **how: int) -> int | None:
        """The offset of a duplicate, or None if it was appended."""
        batch = header(sequence, count, **how)
        found = self.state.check(batch)
        if found is not None:
            return found.base_offset
        self.state.update(batch, self.offset)
        self.offset += count
        return None

    def refused(self, sequence: int, count: int = 1, **how: int) -> ErrorCode:
        with pytest.raises(ApiError) as error:
            self.send(sequence, count, **how)
        return error.value.code


def test_sequences_go_on() -> None:
    sender = Sender()
    for sequence, count in ((0, 1), (1, 5), (6, 2), (8, 1)):
        assert sender.send(sequence, count) is None
    assert sender.refused(10) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert sender.send(9) is None


def test_the_last_five_batches_are_known() -> None:
    sender = Sender()
    for sequence in range(0, 14, 2):
        sender.send(sequence, 2)
    for sequence in range(4, 14, 2):
        assert sender.send(sequence, 2) == sequence
    assert sender.refused(2, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_duplicate_has_the_same_first_and_last_sequence() -> None:
    sender = Sender()
    sender.send(0, 4)
    for sequence, count in ((0, 3), (1, 3), (0, 5), (2, 2)):
        assert sender.refused(sequence, count) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert sender.send(0, 4) == 0


@pytest.mark.parametrize("start", [LAST, LAST - 1, LAST - 2, LAST - 3])
def test_sequences_wrap(start: int) -> None:
    sender = Sender()
    assert sender.send(start, 3) is None
    after = add_sequence(start, 3)
    assert after == (start + 3) % 2**31
    assert sender.send(start, 3) == 0
    assert sender.refused(add_sequence(after, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert sender.send(after) is None
    again = Sender(ProducerState.decode(sender.state.encode()))
    assert again.send(after) == 3
    assert again.send(add_sequence(after, 1)) is None


@pytest.mark.parametrize("start", [LAST - 1, LAST])
def test_a_batch_across_the_wrap_survives_a_snapshot(start: int) -> None:
    sender = Sender()
    sender.send(start, 4)
    again = Sender(ProducerState.decode(sender.state.encode()))
    assert again.send(start, 4) == 0


def test_a_new_epoch_starts_at_zero() -> None:
    sender = Sender()
    sender.send(0, 7)
    assert sender.refused(7, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert sender.send(0, epoch=1) is None
    assert sender.refused(7) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert sender.refused(0, 7) == ErrorCode.INVALID_PRODUCER_EPOCH  # even what it once wrote
    assert sender.send(0, epoch=1) == 7
    assert sender.send(1, epoch=1) is None


def test_an_unknown_producer_may_start_anywhere() -> None:
    """Its history has expired or was deleted with the records; Kafka accepts it too."""
    sender = Sender()
    assert sender.send(4711, epoch=3) is None
    assert sender.send(4712, epoch=3) is None


def test_a_control_batch_ends_a_transaction_and_leaves_sequences_alone() -> None:
    sender = Sender()
    sender.send(0, 2)
    sender.state.update(header(-1, attributes=0x30), 2)
    assert sender.send(2) is None
    fresh = ProducerState()
    fresh.update(header(-1, epoch=4, attributes=0x30), 0)
    again = ProducerState.decode(fresh.encode())
    assert again.producers[1].batches == []
    # Its epoch is known and nothing that it wrote: it begins at 0.
    for state in fresh, again:
        assert Sender(state).refused(17, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert Sender(state).send(0, epoch=4) is None
        assert Sender(state).refused(2, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_marker_of_a_new_epoch_makes_sequences_begin_again() -> None:
    sender = Sender()
    sender.send(0, 2)
    sender.state.update(header(-1, epoch=1, attributes=0x30), 2)
    assert sender.refused(2, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert sender.send(0, epoch=1) is None


def test_expiry() -> None:
    sender = Sender()
    sender.send(0, time=NOW)
    sender.state.expire(NOW + 999, 1000)
    assert sender.refused(5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    sender.state.expire(NOW + 1000, 1000)
    assert sender.state.producers == {}
    assert sender.send(5) is None


def test_an_open_transaction_does_not_expire() -> None:
    state = ProducerState()
    state.producers[1] = Producer(0, [], NOW)
    state.transactions[1] = 5
    state.expire(NOW + 10**9, 1)
    assert list(state.producers) == [1]


producers = st.builds(
    Producer,
    epoch=st.integers(0, 32767),
    batches=st.lists(
        st.builds(
            lambda last, offset, delta, time: Batch(
                (last - delta) & LAST, last, offset + delta, delta, time
            ),
            st.integers(0, LAST),
            st.integers(0, 2**62),
            st.integers(0, 10_000),
            st.integers(-1, 2**62),
        ),
        max_size=1,
    ),
    coordinator_epoch=st.integers(-1, 1000),
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.integers(0, 2**62), producers, max_size=20),
    st.lists(st.integers(0, 2**62), max_size=20, unique=True),
)
def test_snapshots_keep_the_last_batch_of_each(
    known: dict[int, Producer], starts: list[int]
) -> None:
    state = ProducerState()
    for producer in known.values():
        producer.last_timestamp = producer.batches[-1].timestamp if producer.batches else NOW
    state.producers = known
    state.transactions = dict(zip(known, sorted(starts), strict=False))
    again = ProducerState.decode(state.encode())
    assert again.producers == known
    assert list(again.transactions.items()) == list(state.transactions.items())
    assert again.encode() == state.encode()


def test_a_snapshot_that_is_not_whole() -> None:
    sender = Sender()
    sender.send(0)
    data = sender.state.encode()
    for size in range(len(data)):
        with pytest.raises(ValueError):
            ProducerState.decode(data[:size])
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x10
        with pytest.raises(ValueError):
            ProducerState.decode(bytes(broken))
    with pytest.raises(ValueError):
        ProducerState.decode(data + b"\0")


@pytest.mark.parametrize("clean", [True, False])
def test_duplicates_after_a_restart(tmp_path: Path, clean: bool) -> None:
    """The last batch of each producer is recognised, and nothing is written twice."""
    log = open_in(tmp_path)
    for i in range(8):
        append(log, make_batch([b"%d" % i] * 2, producer=(i % 2, 0, i // 2 * 2)))
    if clean:
        log.close()
    log = open_in(tmp_path, clean=clean)
    before = contents(log)
    for i in (6, 7):
        done = append(log, make_batch([b"%d" % i] * 2, producer=(i % 2, 0, i // 2 * 2)))
        assert done == (2 * i, 2 * i + 1, True)
    assert contents(log) == before
    with pytest.raises(ApiError) as gap:
        append(log, make_batch(producer=(0, 0, 9)))
    assert gap.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not append(log, make_batch(producer=(0, 0, 8))).duplicate


def test_producers_survive_the_deletion_of_their_records(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    append(log, make_batch(producer=(1, 0, 0)))
    log.roll(NOW)
    append(log)
    log.advance_start(1)
    for path in log.apply_retention(NOW)[0]:
        Path(path).unlink()
    assert snapshot_offsets(str(tmp_path)) == [1]
    for clean in (False, True):
        log = open_in(tmp_path, clean=clean)
        assert append(log, make_batch(producer=(1, 0, 0))).duplicate
        log.close()


def test_a_refused_batch_leaves_no_trace(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    append(log, make_batch(producer=(1, 0, 0)))
    size, state = log.size, log.producers.encode()
    for producer in ((1, 0, 5), (1, 1, 3)):
        with pytest.raises(ApiError):
            append(log, make_batch(producer=producer))
    assert (log.size, log.producers.encode(), log.end_offset) == (size, state, 1)
