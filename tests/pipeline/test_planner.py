"""What is read next, how much of it, and in which tasks: no cluster is needed to know."""

from __future__ import annotations

import itertools
import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.offsets import Extent
from tidelog.pipeline.offsets import Lost, StreamOffset
from tidelog.pipeline.planner import (
    DELETED,
    TOPIC_GONE,
    TOPIC_REPLACED,
    TRUNCATED,
    Logs,
    advance,
    cut,
    enough,
    follow,
    ranges_between,
)
from tidelog.pipeline.ranges import OffsetRange
from tidelog.topic_partition import TopicPartition

OLD, NEW = b"1" * 16, b"2" * 16
T0, T1, T2 = (TopicPartition("t", i) for i in range(3))
large = st.integers(0, 2**62)


def logs(extents: dict[TopicPartition, tuple[int, int]], topic_id: bytes = OLD) -> Logs:
    return Logs(
        {tp.topic: topic_id for tp in extents},
        {tp: Extent(*row) for tp, row in extents.items()},
    )


def at(offsets: dict[TopicPartition, int], topic_id: bytes = OLD) -> StreamOffset:
    return StreamOffset(offsets, {tp.topic: topic_id for tp in offsets})


# -- how much -----------------------------------------------------------------------


@st.composite
def work(draw: st.DrawFn) -> tuple[dict, dict, dict]:
    tps = [TopicPartition("t", i) for i in range(draw(st.integers(1, 8)))]
    begins = {tp: draw(large) for tp in tps}
    ends = {tp: begins[tp] + draw(st.integers(0, 10**9)) for tp in tps}
    sizes = {tp: draw(st.floats(0.01, 1e7)) for tp in tps if draw(st.booleans())}
    return begins, ends, sizes


@given(work(), st.none() | st.integers(1, 10**10), st.none() | st.integers(1, 10**12))
def test_limits_are_kept_and_nobody_starves(
    rows: tuple[dict, dict, dict], max_offsets: int | None, max_bytes: int | None
) -> None:
    begins, ends, sizes = rows
    found = advance(begins, ends, sizes, max_offsets=max_offsets, max_bytes=max_bytes)
    assert found.keys() == ends.keys()
    for tp in ends:
        assert begins[tp] <= found[tp] <= ends[tp]
        assert (found[tp] > begins[tp]) == (ends[tp] > begins[tp])
    taken = {tp: found[tp] - begins[tp] for tp in ends}
    if max_offsets is not None:
        # More only because each partition takes one offset at least.
        assert sum(n for n in taken.values() if n > 1) <= max_offsets
    if max_bytes is not None:
        size = sum(n * sizes.get(tp, 1024.0) for tp, n in taken.items() if n > 1)
        assert size <= max_bytes * 1.001 + 1
    if max_offsets is None and max_bytes is None:
        assert found == ends


def test_the_limit_is_shared_in_proportion() -> None:
    begins = {T0: 0, T1: 100, T2: 5}
    ends = {T0: 900, T1: 200, T2: 5}
    assert advance(begins, ends, {}, max_offsets=100, max_bytes=None) == {T0: 90, T1: 110, T2: 5}
    # Nine hundred offsets of a byte and a hundred of nine: half of the bytes is half of each.
    sizes = {T0: 1.0, T1: 9.0}
    assert advance(begins, ends, sizes, max_offsets=None, max_bytes=900) == {
        T0: 450, T1: 150, T2: 5,
    }  # fmt: skip
    # The tighter one of two limits holds.
    assert advance(begins, ends, sizes, max_offsets=10, max_bytes=900)[T0] == 9


def test_enough() -> None:
    assert enough({T0: 5, T1: 5}, {T0: 10, T1: 8}, 8)
    assert not enough({T0: 5, T1: 5}, {T0: 10, T1: 8}, 9)


# -- tasks --------------------------------------------------------------------------


@st.composite
def some_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    result = []
    for i in range(draw(st.integers(0, 6))):
        start = draw(large)
        result.append(OffsetRange("t", i, start, start + draw(st.integers(0, 5_000)), OLD))
    return result


@given(
    some_ranges(),
    st.floats(0.01, 1e5),
    st.integers(10_000, 10**9),
    st.none() | st.integers(10, 5_000),
    st.none() | st.integers(1, 300),
)
def test_tasks_cover_everything_once_and_keep_the_limits(
    ranges: list[OffsetRange],
    size: float,
    max_bytes: int,
    max_records: int | None,
    min_parts: int | None,
) -> None:
    sizes = {row.tp: size for row in ranges}
    tasks = cut(ranges, sizes, max_bytes=max_bytes, max_records=max_records, min_parts=min_parts)
    for row in ranges:
        own = [task for task in tasks if task.partition == row.partition]
        assert all(task.topic_id == OLD and len(task) for task in own)
        if len(row):
            assert own[0].start == row.start and own[-1].end == row.end
            assert all(a.end == b.start for a, b in itertools.pairwise(own))
        else:
            assert not own
    for task in tasks:
        assert max_records is None or len(task) <= max_records
        assert len(task) == 1 or (len(task) - 1) * size <= max_bytes
    assert len(tasks) >= min(min_parts or 0, sum(map(len, ranges)))


def test_one_hot_partition_becomes_many_tasks() -> None:
    hot, cold = OffsetRange("t", 0, 0, 1_000_000), OffsetRange("t", 1, 0, 100)
    tasks = cut([hot, cold], {hot.tp: 1024.0, cold.tp: 1024.0}, max_bytes=128 << 20)
    assert Counter(task.partition for task in tasks) == {0: 8, 1: 1}
    assert max(map(len, tasks)) == 125_000


def test_min_partitions_cuts_the_largest() -> None:
    ranges = [OffsetRange("t", 0, 0, 90), OffsetRange("t", 1, 0, 10)]
    tasks = cut(ranges, {}, max_bytes=1 << 30, min_parts=10)
    assert len(tasks) == 10
    assert Counter(task.partition for task in tasks) == {0: 9, 1: 1}
    assert cut(ranges, {}, max_bytes=1 << 30, min_parts=2) == ranges
    assert len(cut(ranges, {}, max_bytes=1 << 30, min_parts=1000)) == 100


# -- going on -----------------------------------------------------------------------


def test_a_stream_goes_on_where_it_was() -> None:
    found = follow(at({T0: 5, T1: 7}), logs({T0: (0, 9), T1: (7, 7)}), {}, from_pattern=False)
    assert found.begins == {T0: 5, T1: 7}
    assert not found.began and not found.lost


def test_retention_was_faster() -> None:
    found = follow(at({T0: 5}), logs({T0: (8, 9)}), {"t": True}, from_pattern=False)
    assert found.begins == {T0: 8}
    assert found.lost == (Lost(T0, 5, 8, DELETED),)


def test_the_log_was_cut() -> None:
    found = follow(at({T0: 9}), logs({T0: (0, 6)}), {"t": True}, from_pattern=False)
    assert found.begins == {T0: 6}
    assert found.lost == (Lost(T0, 6, 9, TRUNCATED),)


def test_a_new_partition_begins_at_its_start() -> None:
    found = follow(at({T0: 5}), logs({T0: (0, 9), T1: (0, 3)}), {}, from_pattern=False)
    assert found.begins == {T0: 5, T1: 0} and found.began == {T1: 0}
    assert not found.lost
    found = follow(at({T0: 5}), logs({T0: (0, 9), T1: (2, 3)}), {}, from_pattern=False)
    assert found.begins == {T0: 5, T1: 2}
    assert found.lost == (Lost(T1, 0, 2, DELETED),)


def test_a_topic_that_the_user_adds_begins_where_it_begins() -> None:
    other = TopicPartition("u", 0)
    now = logs({T0: (0, 9), other: (100, 200)})
    assert not follow(at({T0: 5}), now, {}, from_pattern=False).lost
    # But one that a pattern has found was made while the query ran, or so it must be taken.
    lost = follow(at({T0: 5}), now, {}, from_pattern=True).lost
    assert lost == (Lost(other, 0, 100, DELETED),)


def test_a_topic_that_was_made_again_is_another_one() -> None:
    found = follow(at({T0: 5, T1: 6}), logs({T0: (0, 9)}, NEW), {"t": True}, from_pattern=False)
    assert found.begins == {T0: 0} and found.began == {T0: 0}
    assert found.lost == (Lost(T0, 5, None, TOPIC_REPLACED), Lost(T1, 6, None, TOPIC_REPLACED))


def test_a_topic_that_is_gone_is_lost_only_if_the_user_still_wants_it() -> None:
    other = TopicPartition("u", 0)
    now = logs({other: (0, 1)})
    start = at({T0: 5, other: 1})
    assert follow(start, now, {"t": True}, from_pattern=False).lost == (
        Lost(T0, 5, None, TOPIC_GONE),
    )
    assert not follow(start, now, {"t": False}, from_pattern=False).lost


def test_a_topic_that_was_out_of_sight_goes_on_where_it_was() -> None:
    """A broker that has just started may not know of it yet; nothing is read twice then."""
    found = follow(at({T0: 5, T1: 7}), Logs({}, {}), {"t": True}, from_pattern=False)
    assert found.gone == {T0: 5, T1: 7}
    hidden = StreamOffset({}, {"t": OLD}, gone=found.gone)
    again = follow(hidden, Logs({}, {}), {"t": True}, from_pattern=False)
    assert again.gone == hidden.gone and not again.lost  # told once is enough
    assert not follow(hidden, Logs({}, {}), {"t": False}, from_pattern=False).gone
    back = follow(hidden, logs({T0: (6, 9), T1: (0, 9)}), {"t": True}, from_pattern=False)
    assert back.begins == back.began == {T0: 6, T1: 7}
    assert back.lost == (Lost(T0, 5, 6, DELETED),) and not back.gone
    other = follow(hidden, logs({T0: (0, 9)}, NEW), {"t": True}, from_pattern=False)
    assert other.begins == {T0: 0} and not other.gone
    unknown = follow(at({T0: 5}, bytes(16)), Logs({}, {}), {"t": True}, from_pattern=False)
    assert not unknown.gone  # without an id it might be another one that comes


def test_without_ids_nothing_is_guessed() -> None:
    start = StreamOffset({T0: 5}, {})
    assert not follow(start, logs({T0: (0, 9)}, NEW), {}, from_pattern=False).lost


# -- a whole life ---------------------------------------------------------------------

_events = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 50)),
    st.tuples(st.just("delete"), st.integers(0, 3), st.integers(1, 60)),
    st.tuples(st.just("grow"), st.just(0), st.just(0)),
    st.tuples(st.just("replace"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("step"), st.just(0), st.integers(1, 40)),
    st.tuples(st.just("hide"), st.just(0), st.integers(1, 40)),
)


@given(st.lists(_events, max_size=60))
def test_whatever_happens_each_record_is_read_once_or_reported(events: list[tuple]) -> None:
    """A topic lives, a stream follows: rows read and ranges lost add up to what there was."""
    topic_id, extents = 1, {0: [0, 0], 1: [0, 0]}
    offset = StreamOffset({T0: 0, T1: 0}, {"t": topic_id.to_bytes(16, "big")})
    read: Counter[tuple[int, int, int]] = Counter()
    lost: set[tuple[int, int, int]] = set()

    def step(limit: int | None, hidden: bool = False) -> None:
        nonlocal offset
        now = logs(
            {TopicPartition("t", i): (start, end) for i, (start, end) in extents.items()},
            topic_id.to_bytes(16, "big"),
        )
        now = Logs({}, {}) if hidden else now
        found = follow(offset, now, {"t": True}, from_pattern=False)
        ends = advance(
            found.begins,
            {tp: now.extents[tp].end for tp in found.begins},
            {},
            max_offsets=limit,
            max_bytes=None,
        )
        ids = now.ids or offset.ids
        after = StreamOffset(ends, ids, found.began, found.lost, gone=found.gone)
        # Both go through Spark's json, as in a query that is restarted in between.
        first, last = (
            StreamOffset.from_json(json.loads(json.dumps(row.to_json()))) for row in (offset, after)
        )
        for part in ranges_between(first, last):
            for row in range(part.start, part.end):
                assert extents[part.partition][0] <= row < extents[part.partition][1]
                read[topic_id, part.partition, row] += 1
        for row in found.lost:
            if row.end is not None:
                lost.update((topic_id, row.tp.partition, i) for i in range(row.start, row.end))
        offset = after

    for kind, number, amount in events:
        if kind == "append" and number in extents:
            extents[number][1] += amount
        elif kind == "delete" and number in extents:
            extents[number][0] = min(extents[number][0] + amount, extents[number][1])
        elif kind == "grow" and len(extents) < 4:
            extents[len(extents)] = [0, 0]
        elif kind == "replace":
            topic_id += 1
            extents = {i: [0, 0] for i in range(number)}
        elif kind in ("step", "hide"):
            step(amount, hidden=kind == "hide")
    step(None)
    assert all(count == 1 for count in read.values())
    assert not lost & read.keys()
    for number, (_, end) in extents.items():
        for row in range(end):
            assert (topic_id, number, row) in read or (topic_id, number, row) in lost
