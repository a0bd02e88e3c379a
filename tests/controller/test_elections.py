"""Elections and reassignments are functions without I/O; their invariants hold for any input."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.controller import elections, reassignments
from tidelog.controller.elections import NO_LEADER, settle
from tidelog.controller.topics import spread
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import PartitionInfo


def info(leader: int, isr: list[int], replicas: tuple[int, ...] = (1, 2, 3)) -> PartitionInfo:
    return PartitionInfo(leader, 5, replicas, tuple(isr))


@pytest.mark.parametrize(
    ("before", "live", "leader", "isr", "epoch"),
    [
        (info(1, [1, 2, 3]), {1, 2, 3}, 1, (1, 2, 3), 5),  # nothing has happened
        (info(1, [1, 2, 3]), {2, 3}, 2, (2, 3), 6),  # the leader died
        (info(1, [1, 2, 3]), {1, 3}, 1, (1, 3), 5),  # a follower died: the leader goes on
        (info(1, [1, 3]), {2, 3}, 3, (3,), 6),  # 2 lives, but it is not in sync
        (info(1, [1]), {2, 3}, NO_LEADER, (1,), 6),  # no replica may lead; 1 is remembered
        (info(1, [1, 2, 3]), set(), NO_LEADER, (1,), 6),  # all died at once
        (info(NO_LEADER, [1]), {1, 2}, 1, (1,), 6),  # it came back
        (info(NO_LEADER, [1]), {2}, NO_LEADER, (1,), 5),  # still waiting
        (info(2, [1, 2]), {1, 2, 3}, 2, (1, 2), 5),  # no preferred election by itself
    ],
)
def test_settle(
    before: PartitionInfo, live: set[int], leader: int, isr: tuple[int, ...], epoch: int
) -> None:
    after = settle(before, live)
    assert (after.leader, after.isr, after.leader_epoch) == (leader, isr, epoch)


def test_unclean() -> None:
    after = settle(info(NO_LEADER, [1]), {2, 3}, unclean=True)
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 6)
    assert settle(info(1, [1, 3]), {2, 3}, unclean=True).leader == 3, "a clean one comes first"


def test_a_broker_that_is_about_to_stop() -> None:
    after = settle(info(1, [1, 2, 3]), {1, 2, 3}, avoid=[1])
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2, 3), 6)
    follower = settle(info(2, [1, 2, 3]), {1, 2, 3}, avoid=[1])
    assert (follower.leader, follower.isr, follower.leader_epoch) == (2, (2, 3), 5)
    alone = info(1, [1])
    assert settle(alone, {1, 2, 3}, avoid=[1]) is alone


def test_preferred() -> None:
    assert elections.prefer(info(2, [1, 2]), {1, 2, 3}).leader == 1
    assert elections.prefer(info(2, [2]), {1, 2, 3}).leader == 2, "it is not in sync"
    assert elections.prefer(info(2, [1, 2]), {2, 3}).leader == 2, "it is dead"


@st.composite
def partitions(draw: st.DrawFn) -> PartitionInfo:
    replicas = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    return PartitionInfo(leader, draw(st.integers(0, 9)), replicas, isr)


@given(partitions(), st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6), max_size=2))
def test_what_never_happens(before: PartitionInfo, live: set[int], avoid: set[int]) -> None:
    after = settle(before, live, avoid=avoid)
    assert after.isr, "somebody always is known to have everything"
    assert set(after.isr) <= set(before.isr), "nobody comes into sync by an election"
    assert after.leader == NO_LEADER or after.leader in after.isr
    if not avoid:
        assert after.leader == NO_LEADER or after.leader in live
        assert (after.leader == NO_LEADER) == (not set(before.isr) & live)
        assert settle(after, live) == after, "a second look changes nothing"
    assert (after.leader_epoch > before.leader_epoch) == (after.leader != before.leader)


@given(partitions(), st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True))
def test_moves(before: PartitionInfo, wanted: list[int]) -> None:
    moving = reassignments.begin(before, tuple(wanted))
    assert set(moving.replicas) == set(before.replicas) | set(wanted)
    assert elections.target(moving) == tuple(wanted)
    assert moving.isr == before.isr
    assert set(reassignments.cancel(moving).replicas) == set(before.replicas)
    again = reassignments.begin(moving, before.replicas)
    assert set(again.replicas) == set(before.replicas), "there and back"
    assert not again.adding
    caught_up = PartitionInfo(
        moving.leader,
        moving.leader_epoch,
        moving.replicas,
        moving.replicas,
        0,
        moving.adding,
        moving.removing,
    )
    if reassignments.can_finish(caught_up):
        after = reassignments.finish(caught_up, set(moving.replicas))
        assert after.replicas == tuple(wanted)
        assert set(after.isr) == set(wanted)
        assert after.leader in wanted or before.leader == NO_LEADER
        assert (after.leader_epoch > before.leader_epoch) == (after.leader != before.leader)
        assert (after.adding, after.removing) == ((), ())


@pytest.mark.parametrize(
    ("isr", "done"),
    [
        ([1, 2], False),  # the new replica is not in sync
        ([1, 3], False),  # the one that stays is not: the old one may have more than it
        ([3, 2], True),
        ([1, 2, 3], True),
    ],
)
def test_a_move_ends_when_all_that_stay_are_in_sync(isr: list[int], done: bool) -> None:
    moving = reassignments.begin(info(1, isr, (1, 2)), (3, 2))
    assert (moving.adding, moving.removing) == ((3,), (1,))
    assert reassignments.can_finish(replace(moving, isr=tuple(isr))) == done
    shrinking = reassignments.begin(info(1, [1, 2]), (2, 3))
    assert not reassignments.can_finish(shrinking), "3 stays and is not in sync"
    assert not reassignments.can_finish(info(1, [1, 2, 3])), "nothing moves"


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ((), "needs a replica"),
        ((2, 3, 2), "names a broker twice"),
        ((2, 9), "there is no broker 9"),
    ],
)
def test_moves_that_cannot_be(wanted: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as refused:
        reassignments.plan(info(1, [1, 2]), wanted, {1, 2, 4})
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassignments.plan(info(1, [1, 2]), (3, 1), {1, 2, 4}).replicas == (3, 1, 2), "3 is away"


def test_a_move_that_ends_elects_another_leader_in_a_new_epoch() -> None:
    """What the old one writes after this must be refused."""
    moving = replace(reassignments.begin(info(1, [1, 2], (1, 2)), (3, 2)), isr=(1, 2, 3))
    after = reassignments.finish(moving, {1, 2, 3})
    assert (after.leader, after.leader_epoch, after.replicas) == (3, 6, (3, 2))
    assert reassignments.finish(moving, {1, 2}).leader == 2, "3 is dead"
    stays = reassignments.finish(replace(moving, leader=2), {1, 2, 3})
    assert (stays.leader, stays.leader_epoch) == (2, 5)


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=9),
)
def test_racks(count: int, factor: int, rack_of: list[str]) -> None:
    brokers = list(range(len(rack_of)))
    racks: dict[int, str | None] = dict(enumerate(rack_of))
    factor = min(factor, len(brokers))
    rows = spread(count, factor, brokers, racks=racks)
    assert rows == spread(count, factor, brokers, racks=racks)
    for row in rows:
        assert len(set(row)) == factor, "never two on one broker"
        used = {racks[broker] for broker in row}
        assert len(used) == min(factor, len(set(rack_of))), "as many racks as there can be"
    leaders = [row[0] for row in rows]
    counts = [leaders.count(broker) for broker in brokers]
    assert max(counts) - min(counts) <= 1, "every broker leads its share"
