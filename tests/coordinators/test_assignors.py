"""The assignors on random groups: everything given once, balanced, sticky, contiguous."""

import os
import random
from itertools import pairwise

import pytest

from tidelog.coordinators.groups.assignors import ASSIGNORS, Wish, range_, uniform

SEED = os.environ.get("TIDELOG_SEED", "1")


def topic(number):
    return number.to_bytes(16, "big")


def everything(sizes, topics):
    return sorted((t, i) for t in topics if t in sizes for i in range(sizes[t]))


def random_group(rng, same):
    sizes = {topic(i): rng.choice((1, 2, 7, 12)) for i in range(rng.randint(1, 5))}
    chosen = frozenset(rng.sample(sorted(sizes), rng.randint(1, len(sizes))))
    wishes = {}
    for i in range(rng.randint(1, 9)):
        mine = chosen if same else frozenset(rng.sample(sorted(sizes), rng.randint(0, len(sizes))))
        wishes[f"m{i}"] = Wish(mine, instance_id=rng.choice((None, f"s{i}")))
    return wishes, sizes


def after(wishes, result):
    """The same group, when everybody has what it was given."""
    return {m: wish._replace(owned=result[m]) for m, wish in wishes.items()}


def moved(wishes, result):
    return sum(len(wish.owned - result[m]) for m, wish in wishes.items())


@pytest.mark.parametrize("assignor", ASSIGNORS.values())
@pytest.mark.parametrize("same", [True, False])
def test_every_partition_that_is_wanted_goes_to_one_who_wants_it(assignor, same):
    rng = random.Random(SEED)
    for _ in range(300):
        wishes, sizes = random_group(rng, same)
        result = assignor(wishes, sizes)
        assert result.keys() == wishes.keys()
        given = sorted(slot for slots in result.values() for slot in slots)
        assert given == everything(sizes, set().union(*(w.topics for w in wishes.values())))
        assert all(t in wishes[m].topics for m, slots in result.items() for t, _ in slots)


def test_uniform_is_balanced_within_one():
    rng = random.Random(SEED)
    for _ in range(300):
        wishes, sizes = random_group(rng, same=True)
        counts = [len(slots) for slots in uniform(wishes, sizes).values()]
        assert max(counts) - min(counts) <= 1


def test_uniform_with_other_subscriptions_cannot_be_made_fairer_by_moving_one_partition():
    rng = random.Random(SEED)
    for _ in range(300):
        wishes, sizes = random_group(rng, same=False)
        result = uniform(wishes, sizes)
        for giver, slots in result.items():
            for t, _ in slots:
                others = [len(result[m]) for m, wish in wishes.items() if t in wish.topics]
                assert len(result[giver]) - min(others) <= 1


@pytest.mark.parametrize("same", [True, False])
def test_uniform_moves_nothing_when_nothing_changes(same):
    rng = random.Random(SEED)
    for _ in range(300):
        wishes, sizes = random_group(rng, same)
        result = uniform(wishes, sizes)
        assert uniform(after(wishes, result), sizes) == result


def test_uniform_moves_only_what_a_change_of_members_asks_for():
    rng = random.Random(SEED)
    for _ in range(300):
        wishes, sizes = random_group(rng, same=True)
        owned = after(wishes, uniform(wishes, sizes))
        total = sum(len(wish.owned) for wish in owned.values())
        if len(owned) > 1:
            gone = rng.choice(sorted(owned))
            fewer = {m: wish for m, wish in owned.items() if m != gone}
            assert moved(fewer, uniform(fewer, sizes)) == 0
        more = {**owned, "new": Wish(next(iter(owned.values())).topics)}
        result = uniform(more, sizes)
        assert moved(more, result) == len(result["new"]) <= total // len(more) + 1


def test_uniform_gives_new_partitions_to_whoever_has_least():
    one, two = topic(1), topic(2)
    wishes = {m: Wish(frozenset((one, two))) for m in "ab"}
    owned = after(wishes, uniform(wishes, {one: 3, two: 0}))
    grown = uniform(owned, {one: 3, two: 3})
    assert moved(owned, grown) == 0
    assert [len(grown[m]) for m in "ab"] == [3, 3]


def test_what_is_gone_or_claimed_twice_is_no_trouble():
    claimed = frozenset({(topic(1), 0), (topic(1), 99), (topic(9), 0)})
    for other in (topic(1), topic(2)):
        wishes = {
            "a": Wish(frozenset({topic(1)}), claimed),
            "b": Wish(frozenset({topic(1), other}), claimed),
        }
        result = uniform(wishes, {topic(1): 2})
        assert sorted(map(len, result.values())) == [1, 1]


def test_range_is_contiguous_and_the_same_for_every_topic():
    rng = random.Random(SEED)
    for _ in range(300):
        wishes, sizes = random_group(rng, same=True)
        result = range_(wishes, sizes)
        for t in next(iter(wishes.values())).topics:
            parts = [sorted(i for found, i in result[m] if found == t) for m in wishes]
            for rows in parts:
                assert all(b == a + 1 for a, b in pairwise(rows))
            counts = [len(rows) for rows in parts]
            assert max(counts) - min(counts) <= 1
            # Members in the same order in every topic: partitions with one number stay together.
            assert _order(result, t) == sorted(
                (m for m in wishes if any(found == t for found, _ in result[m])),
                key=lambda m: (wishes[m].instance_id is None, wishes[m].instance_id or m),
            )


def _order(result, t):
    firsts = {
        m: min((i for found, i in slots if found == t), default=None) for m, slots in result.items()
    }
    return sorted((m for m in result if firsts[m] is not None), key=firsts.__getitem__)


def test_a_static_member_keeps_its_range_after_a_restart():
    wishes = {"x": Wish(frozenset({topic(1)}), instance_id="1"), "y": Wish(frozenset({topic(1)}))}
    before = range_(wishes, {topic(1): 6})
    restarted = {"zzz": wishes["x"], "y": wishes["y"]}
    after_it = range_(restarted, {topic(1): 6})
    assert after_it["zzz"] == before["x"]
    assert after_it["y"] == before["y"]


def test_a_large_group():
    wishes = {f"m{i}": Wish(frozenset({topic(1)})) for i in range(500)}
    owned = after(wishes, uniform(wishes, {topic(1): 10_000}))
    assert {len(w.owned) for w in owned.values()} == {20}


def test_nobody():
    assert uniform({}, {topic(1): 3}) == range_({}, {topic(1): 3}) == {}
