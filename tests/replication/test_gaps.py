"""A producer that leaves a gap is asked once to begin where it should."""

from __future__ import annotations

from log_support import make_batch

from tidelog.replication.gaps import MAX_PRODUCERS, Gaps
from tidelog.wire.batch import BatchHeader, read_header


def batch(sequence: int, producer: int = 1, epoch: int = 0) -> BatchHeader:
    return read_header(make_batch(producer=(producer, epoch, sequence)))


def test_the_same_batch_again_means_that_the_gap_is_real() -> None:
    gaps = Gaps()
    assert all(gaps.may_close(batch(n)) for n in (5, 6, 7))
    assert not gaps.may_close(batch(5))
    assert not gaps.may_close(batch(5)), "and stays real"
    assert gaps.may_close(batch(3)), "it goes back further"
    assert not gaps.may_close(batch(3))
    assert gaps.may_close(batch(3, producer=2)), "another producer"
    assert gaps.may_close(batch(3, epoch=1)), "behind the first one of a new epoch"


def test_what_came_in_order_begins_anew() -> None:
    gaps = Gaps()
    assert gaps.may_close(batch(5))
    gaps.closed(1)
    assert not gaps
    assert gaps.may_close(batch(5))
    gaps.forget()
    assert gaps.may_close(batch(5))


def test_many_producers_take_no_more_memory() -> None:
    gaps = Gaps()
    for producer in range(MAX_PRODUCERS * 2):
        assert gaps.may_close(batch(5, producer))
    assert len(gaps._first) == MAX_PRODUCERS
    assert not gaps.may_close(batch(5, MAX_PRODUCERS * 2 - 1))
