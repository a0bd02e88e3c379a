"""The in-sync set is pure: what must hold, holds for any history of fetches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.partition.in_sync import InSync

LEADER = 1


def state(isr: tuple[int, ...] = (1, 2, 3), now_ms: int = 0) -> InSync:
    return InSync(LEADER, (1, 2, 3), isr, 0, now_ms)


def test_the_slowest_decides() -> None:
    known = state()
    assert known.high_watermark(10) == -1, "nobody has been heard of"
    known.fetched(2, 10, 10, 1)
    assert known.high_watermark(10) == -1
    known.fetched(3, 7, 10, 1)
    assert known.high_watermark(10) == 7
    known.fetched(3, 10, 10, 2)
    assert known.high_watermark(10) == 10


def test_records_are_deleted_when_all_who_live_have_deleted_them() -> None:
    known = state()
    everybody = {1, 2, 3}
    assert known.low_watermark(5, everybody) == -1, "nobody has been heard of"
    assert known.starts_at(2, 5)
    assert not known.starts_at(2, 5), "no news"
    known.starts_at(3, 2)
    assert known.low_watermark(5, everybody) == 2
    assert known.low_watermark(5, {1, 2}) == 5, "3 is dead"
    known.starts_at(3, 7)
    assert known.low_watermark(5, everybody) == 5


def test_who_is_not_in_sync_does_not_count() -> None:
    known = state(isr=(1, 2))
    known.fetched(2, 10, 10, 1)
    known.fetched(3, 4, 10, 1)
    assert known.high_watermark(10) == 10
    assert known.to_add(3, 10, 0) is None
    known.fetched(3, 10, 10, 2)
    assert known.to_add(3, 10, 0) == (1, 2, 3)


def test_only_who_fetches_comes_into_sync() -> None:
    """3 had everything when it died; nobody knows what it has when it comes back."""
    known = state()
    known.fetched(2, 10, 10, 1)
    known.fetched(3, 10, 10, 1)
    assert known.decided((1, 2), 1)
    known.fetched(2, 10, 10, 2)
    assert known.to_add(2, 10, 0) is None
    known.fetched(3, 4, 10, 3)
    assert known.to_add(3, 10, 0) is None, "its log was cut"


def test_a_strange_follower() -> None:
    assert not state().fetched(9, 5, 5, 1)


def test_while_the_controller_thinks() -> None:
    """Who is about to be in sync is waited for; who is about to leave is waited for still."""
    known = state(isr=(1, 2))
    known.fetched(2, 10, 10, 1)
    known.fetched(3, 10, 10, 1)
    known.propose((1, 2, 3))
    known.fetched(2, 20, 20, 2)
    assert known.high_watermark(20) == 10
    assert known.to_add(3, 10, 0) is None, "one question at a time"
    assert known.decided((1, 2, 3), 1)
    assert known.high_watermark(20) == 10
    known.propose((1, 2))
    assert known.high_watermark(20) == 10
    assert known.decided((1, 2), 2)
    assert known.high_watermark(20) == 20
    assert not known.decided((1, 2, 3), 1), "an old answer"


def test_old_news_while_the_controller_thinks() -> None:
    """An order that repeats what we know is no answer to what we have asked since."""
    known = state(isr=(1, 2))
    known.fetched(2, 10, 10, 1)
    known.fetched(3, 10, 10, 1)
    assert known.decided((1, 2), 4)
    known.propose((1, 2, 3))
    assert not known.decided((1, 2), 4)
    known.fetched(2, 20, 20, 2)
    assert known.high_watermark(20) == 10, "3 may be in sync by now, for all we know"
    assert not known.answered((1, 2, 3), (1, 2, 3), 4), "it was so already"
    assert known.proposed is None


def test_a_follower_is_restarted_while_the_controller_thinks() -> None:
    """It is proposed as who it was when it had everything, not as who it is now."""
    known = state(isr=(1, 2))
    known.fetched(2, 10, 10, 1, broker_epoch=20)
    known.fetched(3, 10, 10, 1, broker_epoch=30)
    known.propose((1, 2, 3))
    assert known.proposed_epochs == {2: 20, 3: 30}
    known.fetched(3, 4, 10, 2, broker_epoch=31)
    assert known.proposed_epochs == {2: 20, 3: 30}
    assert not known.fetched(3, 10, 10, 3, broker_epoch=30), "from before it was restarted"
    assert known.followers[3].end_offset == 4
    known.refused((1, 2, 3))
    known.fetched(3, 10, 10, 4, broker_epoch=31)
    known.propose((1, 2, 3))
    assert known.proposed_epochs == {2: 20, 3: 31}
    known.propose((1, 2))
    assert known.proposed_epochs == {2: 20}


def test_what_the_leader_had_when_it_began() -> None:
    """The high watermark of a new leader is old: more is needed to be in sync."""
    known = state(isr=(1,))
    known.fetched(2, 5, 10, 1)
    assert known.to_add(2, 5, epoch_start=10) is None
    known.fetched(2, 10, 10, 2)
    assert known.to_add(2, 5, epoch_start=10) == (1, 2)


def test_lag() -> None:
    known = state(now_ms=0)
    known.fetched(2, 10, 10, 1000)
    known.fetched(3, 5, 10, 1000)
    assert known.to_drop(10, 900, 1000) is None
    assert known.to_drop(10, 1500, 1000) == (1, 2), "3 has not caught up since the beginning"
    assert known.to_drop(10, 5000, 1000) == (1, 2), "2 has everything, however long ago"
    assert known.to_drop(11, 5000, 1000) == (1,)


def test_a_follower_of_a_busy_leader() -> None:
    """Always a little behind, but up to where the end was at its fetch before."""
    known = state(now_ms=0)
    end = 0
    for now in range(0, 10_000, 100):
        end += 10
        known.fetched(2, end - 10, end, now)
        known.fetched(3, end - 10, end, now)
    assert known.to_drop(end, 10_000, 500) is None


def test_a_follower_that_keeps_pace_comes_into_sync() -> None:
    """There is more at each of its fetches, however it hurries: what came since its fetch before
    is not committed without it."""
    known = state(isr=(1,))
    known.fetched(2, 0, 100, 1)
    assert known.high_watermark(120) == 120, "it is far behind"
    known.fetched(2, 100, 120, 2)
    assert known.to_add(2, 120, 0) is None
    assert known.high_watermark(140) == 120, "it had all there was, so it will have that"
    known.fetched(2, 120, 140, 3)
    assert known.to_add(2, 120, 0) == (1, 2)


def test_nobody_waits_long_for_who_may_come_into_sync() -> None:
    known = state(isr=(1,))
    for offset, end in ((0, 10), (10, 20)):
        known.fetched(2, offset, end, 1)
    assert known.awaited == {2: 20}
    known.fetched(2, 15, 30, 2)
    assert known.high_watermark(30) == 30, "it does not keep pace"
    known.fetched(2, 30, 40, 3)
    known.no_longer_await(2, 20)
    assert known.high_watermark(50) == 40, "that was about another fetch"
    known.no_longer_await(2, 40)
    assert known.high_watermark(50) == 50
    known.fetched(2, 40, 60, 4)
    known.reassigned((1, 3), 5)
    assert known.high_watermark(70) == 70, "it is no replica any more"


def test_a_follower_dies_as_soon_as_it_is_proposed() -> None:
    """Who is out of sync again holds nobody up, though it never fetches again."""
    known = state(isr=(1,))
    for offset, end in ((0, 100), (100, 120), (120, 140)):
        known.fetched(2, offset, end, 1)
    isr = known.to_add(2, 120, 0)
    assert isr == (1, 2)
    known.propose(isr)
    assert known.high_watermark(150) == 120
    known.decided(isr, known.partition_epoch + 1)
    known.decided((1,), known.partition_epoch + 1)
    assert known.high_watermark(150) == 150


def test_who_was_refused_is_not_awaited() -> None:
    known = state(isr=(1,))
    known.fetched(2, 10, 10, 1000)
    known.propose((1, 2))
    known.refused((1, 2))
    known.fetched(2, 10, 20, 1500)
    assert known.high_watermark(20) == 20
    known.fetched(2, 20, 30, 2000)
    assert known.high_watermark(40) == 30, "but once a second it is tried"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("fetch"), st.sampled_from([2, 3]), st.integers(0, 5)),
        st.tuples(st.just("lag"), st.integers(0, 3000), st.just(0)),
        st.tuples(st.just("decide"), st.booleans(), st.just(0)),
    ),
    max_size=60,
)


def test_who_was_refused_holds_up_nobody() -> None:
    known = InSync(LEADER, (1, 2), (1,), 0, 0)
    known.fetched(2, 5, 5, 1000)
    assert known.to_add(2, 5, 0) == (1, 2)
    known.propose((1, 2))
    assert known.high_watermark(7) == 5
    known.refused((1, 2))
    assert known.high_watermark(7) == 7
    known.fetched(2, 7, 7, 1900)
    assert known.to_add(2, 7, 0) is None  # it would be refused again
    known.fetched(2, 7, 7, 2000)
    assert known.to_add(2, 7, 0) == (1, 2)


@given(steps)
def test_what_is_committed_is_with_everybody_in_sync(history: list[tuple[str, int, int]]) -> None:
    known = state()
    end = committed = epoch = now = 0
    ends = {1: 0, 2: 0, 3: 0}
    agreed = known.isr  # what the controller has written
    for what, first, second in history:
        now += 100
        if what == "append":
            end += first
            ends[1] = end
        elif what == "fetch":
            # A follower appends what it was sent before, then asks for the next.
            ends[first] = min(end, ends[first] + second)
            known.fetched(first, ends[first], end, now)
            proposal = known.to_add(first, committed, 0)
            if proposal:
                known.propose(proposal)
        elif what == "lag":
            proposal = known.to_drop(end, now + first, 1000)
            if proposal:
                known.propose(proposal)
        elif known.proposed is not None:
            if first:
                epoch += 1
                agreed = known.proposed
                known.answered(agreed, agreed, epoch)
            else:
                known.refused(known.proposed)
        high = known.high_watermark(end)
        committed = max(committed, high)
        assert LEADER in known.isr
        # Whoever the controller may elect, now or after it has agreed, has all of it.
        for broker in {*agreed, *(known.proposed or ())}:
            assert ends[broker] >= committed, (broker, ends, committed)
