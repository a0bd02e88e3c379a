"""A producer that leaves a gap is asked once to begin where it should."""

from __future__ import annotations

from support.log import make_batch

from tidelog.partition.sequence_gaps import MAX_PRODUCERS, SequenceGaps
from tidelog.wire.batch import BatchHeader, read_header


def batch(sequence: int, producer: int = 1, epoch: int = 0) -> BatchHeader:
    return read_header(make_batch(producer=(producer, epoch, sequence)))


def test_the_same_batch_again_means_that_the_gap_is_real() -> None:
    gaps = SequenceGaps()
    assert all(gaps.may_close(batch(n)) for n in (5, 6, 7))
    assert not gaps.may_close(batch(5))
    assert not gaps.may_close(batch(5)), "and stays real"
    assert gaps.may_close(batch(3)), "it goes back further"
    assert not gaps.may_close(batch(3))
    assert gaps.may_close(batch(3, producer=2)), "another producer"


def test_a_gap_of_a_later_epoch_is_real_as_well_when_it_comes_again() -> None:
    gaps = SequenceGaps()
    assert gaps.may_close(batch(3))
    assert gaps.may_close(batch(5, epoch=1)), "behind the first one, but of a new epoch"
    assert gaps.may_close(batch(6, epoch=1))
    assert not gaps.may_close(batch(5, epoch=1))


def test_what_came_in_order_begins_anew() -> None:
    gaps = SequenceGaps()
    assert gaps.may_close(batch(5))
    gaps.closed(1)
    assert not gaps
    assert gaps.may_close(batch(5))
    gaps.forget()
    assert gaps.may_close(batch(5))


def test_many_producers_take_no_more_memory() -> None:
    gaps = SequenceGaps()
    for producer in range(MAX_PRODUCERS):
        assert gaps.may_close(batch(5, producer))
    assert not gaps.may_close(batch(5, MAX_PRODUCERS)), "no room to remember one more"
    assert gaps.may_close(batch(3, 0)), "the others are not forgotten for it"
    assert not any(gaps.may_close(batch(5, producer)) for producer in range(1, MAX_PRODUCERS))
    gaps.closed(7)
    assert gaps.may_close(batch(5, MAX_PRODUCERS)), "there is room again"
