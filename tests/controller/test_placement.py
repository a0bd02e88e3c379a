"""Plans of moves: every broker its share, few moves, never two replicas on one broker."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.controller.placement import fill_up, plan
from tidelog.controller.topics import spread
from tidelog.errors import ApiError

Key = tuple[str, int]


def placed(partitions: int, factor: int, brokers: list[int]) -> dict[Key, tuple[int, ...]]:
    return {("t", i): tuple(row) for i, row in enumerate(spread(partitions, factor, brokers))}


def result(current: dict[Key, tuple[int, ...]], brokers: list[int]) -> dict[Key, tuple[int, ...]]:
    return {**current, **plan(current, brokers)}


def leads(rows: dict[Key, tuple[int, ...]], brokers: list[int]) -> list[int]:
    return [sum(row[0] == broker for row in rows.values()) for broker in brokers]


def test_nothing_to_do() -> None:
    assert plan(placed(12, 3, [1, 2, 3]), [1, 2, 3]) == {}


def test_a_broker_is_added() -> None:
    before = placed(12, 2, [1, 2, 3])
    after = result(before, [1, 2, 3, 4])
    counts = [sum(b in row for row in after.values()) for b in (1, 2, 3, 4)]
    assert counts == [6, 6, 6, 6]
    moved = sum(len(set(after[key]) - set(before[key])) for key in before)
    assert moved == 6, "not one more than the new broker's share"
    assert leads(after, [1, 2, 3, 4]) == [3, 3, 3, 3]


@pytest.mark.parametrize("factor", [2, 3])
def test_a_new_broker_leads_its_share(factor: int) -> None:
    """Also where nobody else has more than the share, rounded up."""
    after = result(placed(6, factor, [1, 2, 3]), [1, 2, 3, 4])
    assert sorted(leads(after, [1, 2, 3, 4])) == [1, 1, 2, 2]


def test_of_each_topic_a_share() -> None:
    before = {
        (name, i): tuple(row)
        for name, count in (("__consumer_offsets", 50), ("orders", 6))
        for i, row in enumerate(spread(count, 3, [1, 2, 3]))
    }
    after = result(before, [1, 2, 3, 4])
    moved = Counter(name for name, i in before if 4 in after[name, i])
    assert (moved["orders"], moved.total()) == (5, 42)
    orders = {key: row for key, row in after.items() if key[0] == "orders"}
    assert sorted(leads(orders, [1, 2, 3, 4])) == [1, 1, 2, 2]


def test_the_lead_is_handed_on() -> None:
    """1 leads too many and 4 too few, and they have nothing in common."""
    before = {("t", 0): (1, 2), ("t", 1): (1, 3), ("t", 2): (2, 4), ("t", 3): (3, 4)}
    after = result(before, [1, 2, 3, 4])
    assert leads(after, [1, 2, 3, 4]) == [1, 1, 1, 1]
    assert all(set(after[key]) == set(before[key]) for key in before), "only the order changes"


def test_a_broker_goes() -> None:
    before = placed(12, 2, [1, 2, 3, 4])
    after = result(before, [1, 2, 3])
    assert all(4 not in row for row in after.values())
    assert all(set(before[key]) - {4} <= set(after[key]) for key in before), "the rest stays"


def test_too_few() -> None:
    with pytest.raises(ApiError, match="t-0 has 3 replicas, for 2 brokers"):
        plan(placed(3, 3, [1, 2, 3]), [1, 2])


@given(
    st.integers(1, 20),
    st.integers(1, 3),
    st.lists(st.integers(1, 9), min_size=3, max_size=6, unique=True),
    st.lists(st.integers(1, 9), min_size=3, max_size=6, unique=True),
    st.integers(1, 3),
)
def test_any_plan(
    partitions: int, factor: int, before: list[int], after: list[int], racks: int
) -> None:
    current = placed(partitions, factor, before)
    rack_of: dict[int, str | None] = {b: f"rack-{b % racks}" for b in range(10)}
    planned = {**current, **plan(current, after, rack_of)}
    for key, row in planned.items():
        assert len(row) == factor
        assert len(set(row)) == factor
        assert set(row) <= set(after)
        kept = len({rack_of[b] for b in current[key] if b in after})
        assert len({rack_of[b] for b in row}) >= kept, "no rack is given up"
    if racks == 1:
        counts = leads(planned, after)
        assert max(counts) - min(counts) <= 1, "everybody leads as many"


def test_what_is_missing_is_filled_up() -> None:
    few = {0: (1,), 1: (1,), 2: (1,)}
    racks = dict.fromkeys((1, 2, 3, 4))
    assert fill_up(few, 3, [1], racks) == {}
    assert fill_up(few, 3, [1, 2], racks) == {0: (1, 2), 1: (2, 1), 2: (1, 2)}
    assert fill_up(few, 3, [1, 2, 3], racks) == {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}
    found = fill_up(few, 2, [1, 2, 3, 4], racks)
    assert found == {0: (1, 2), 1: (1, 2), 2: (1, 3)}, "who has a replica keeps it"
    assert fill_up({0: (1, 2, 9), 1: (1, 2)}, 3, [1, 2, 3], racks) == {1: (2, 3, 1)}
    assert fill_up({0: (1, 2, 3)}, 2, [1, 2, 3], racks) == {}, "nobody loses one"
    assert fill_up({}, 3, [1, 2, 3], racks) == {}
    assert fill_up({1: (1,)}, 2, [1, 2], racks) == {1: (2, 1)}
