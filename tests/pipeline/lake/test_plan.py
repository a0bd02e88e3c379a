"""Which offsets a load reads: nothing twice, and nothing left out without a word."""

from __future__ import annotations

from tidelog.client.offsets import Extent
from tidelog.pipeline.lake import plan
from tidelog.pipeline.lake.ledger import LOAD, Manifest, RangeEntry, State
from tidelog.topic_partition import TopicPartition

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


def load(state: State, logs: dict[TopicPartition, Extent]) -> tuple[State, list[RangeEntry]]:
    """Load everything; what was lost is also given back."""
    spans = plan.wanted(state, logs, None, None)
    there, lost = plan.without_lost(spans, logs)
    rows = [
        RangeEntry(*tp, start, end, end - start)
        for tp, found in there.items()
        for start, end in found
    ]
    begins = plan.beginnings(state, logs, None, spans)
    manifest = Manifest(LOAD, number=state.number + 1, ranges=(*rows, *lost), begins=begins)
    again = Manifest.decode(manifest.encode(), "")
    assert again == manifest
    after = state.after(again)
    assert State.decode(after.encode(), "") == after
    return after, lost


def test_records_that_came_and_went_between_two_loads() -> None:
    state, lost = load(State(), {P0: Extent(5, 10), P1: Extent(7, 7)})
    assert not lost  # what was deleted before the first load was never promised
    assert (state.end(P0), state.end(P1)) == (10, 7)
    state, lost = load(state, {P0: Extent(10, 10), P1: Extent(20, 30)})
    assert [(row.tp, row.lost) for row in lost] == [(P1, ((7, 20),))]
    assert state.covered[P1] == ((7, 30),)


def test_a_partition_that_was_added_begins_at_zero() -> None:
    state, _ = load(State(), {P0: Extent(5, 10)})
    state, lost = load(state, {P0: Extent(5, 10), P2: Extent(3, 4)})
    assert [(row.tp, row.lost) for row in lost] == [(P2, ((0, 3),))]
    other = TopicPartition("another", 0)
    _, lost = load(state, {other: Extent(3, 4)})
    assert not lost  # a topic that is new here begins where it begins


def test_a_part_of_the_past_leaves_a_mark_in_every_partition() -> None:
    """What a load of some hours did not find in a partition, the next one does not load either."""
    logs = {P0: Extent(0, 10), P1: Extent(0, 10)}
    first, last = {P0: 4, P1: 6}, {P0: 8, P1: 6}
    spans = plan.wanted(State(), logs, first, last)
    assert spans == {P0: ((4, 8),)}
    begins = plan.beginnings(State(), logs, last, spans)
    assert begins == (("t", 1, 6),)
    state = State().after(
        Manifest(LOAD, number=1, ranges=(RangeEntry("t", 0, 4, 8, 4),), begins=begins)
    )
    assert plan.wanted(state, logs, None, None) == {P0: ((8, 10),), P1: ((6, 10),)}
