"""A consumer group (KIP-848), step by step, with a clock that moves when the test says so."""

import pytest
from support.consumer_group import Consumer, Owner, settle, slots

from tidelog.coordinators.groups.consumer_members import MemberState
from tidelog.coordinators.groups.records import (
    SERDE,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ErrorCode

ALL = slots("clicks", 0, 1, 2, 3, 4, 5)


@pytest.fixture
def owner():
    return Owner()


def consumers(owner, *names, **more):
    found = [Consumer(owner, name, "clicks", **more) for name in names]
    settle(owner, *found)
    return found


def owned(*members):
    return [len(member.owned) for member in members]


# -- joining and moving partitions ------------------------------------------------


def test_the_first_member_gets_everything_at_once(owner):
    result = owner.join("a", "clicks")
    assert (result.error, result.member_id, result.epoch) == (ErrorCode.NONE, "a", 1)
    assert result.assignment == ALL
    assert owner.group.state is GroupState.STABLE
    assert (owner.group.epoch, owner.group.target_epoch) == (1, 1)


def test_a_member_without_an_id_is_given_one(owner):
    assert owner.join("", "clicks").member_id == "id0"


def test_a_partition_is_given_up_before_it_is_given_on(owner):
    (a,) = consumers(owner, "a")
    b = Consumer(owner, "b", "clicks")
    assert b.beat().assignment == frozenset()  # all taken
    assert owner.group.members["b"].state is MemberState.UNRELEASED
    assert owner.group.state is GroupState.RECONCILING
    kept = a.beat().assignment  # a is told to give three up
    assert len(kept) == 3
    assert owner.group.members["a"].state is MemberState.UNREVOKED
    assert owner.group.members["a"].revoking == ALL - kept
    assert a.epoch == 1
    assert b.beat().assignment is None  # a has not said yet that it did
    assert a.beat().epoch == 2  # now it has
    assert b.beat().assignment == ALL - kept
    assert owner.group.state is GroupState.STABLE


def test_a_member_that_says_nothing_new_hears_nothing_new(owner):
    a, b = consumers(owner, "a", "b")
    assert a.beat().assignment is b.beat().assignment is None


def test_a_full_heartbeat_is_answered_in_full(owner):
    (a,) = consumers(owner, "a")
    more = {"topics": frozenset({"clicks"}), "rebalance_ms": 60_000}
    assert owner.beat("a", a.epoch, owned=a.owned, **more).assignment == a.owned


def test_another_subscription_makes_a_new_epoch(owner):
    owner.set_topics(clicks=6, views=2)
    (a,) = consumers(owner, "a")
    epoch = owner.group.epoch
    result = owner.beat("a", a.epoch, topics=frozenset({"views"}), owned=a.owned)
    assert result.assignment == frozenset()  # first it gives up what it has
    assert owner.beat("a", a.epoch, owned=frozenset()).assignment == slots("views", 0, 1)
    assert owner.group.epoch == epoch + 1


def test_the_assignor_that_most_ask_for(owner):
    owner.set_topics(clicks=6, views=6)
    first = [Consumer(owner, name, "clicks", "views", assignor="range") for name in "ab"]
    third = Consumer(owner, "c", "clicks", "views", assignor="uniform")
    settle(owner, *first, third)
    assert owner.group.assignor == "range"
    for index, member in enumerate((*first, third)):
        pair = (2 * index, 2 * index + 1)
        assert member.owned == slots("clicks", *pair) | slots("views", *pair)


def test_members_come_sooner_while_something_moves(owner):
    (a,) = consumers(owner, "a")
    assert a.beat().interval_ms < 1000
    owner.advance(11_000)
    assert a.beat().interval_ms == 5000
    b = Consumer(owner, "b", "clicks")
    assert b.beat().interval_ms < 1000


def test_requests_that_come_during_a_write_share_the_next_one(owner):
    owner.hold = True
    tokens = [
        owner.send(f"m{i}", 0, topics=frozenset({"clicks"}), owned=frozenset()) for i in range(50)
    ]
    assert not owner.answers
    owner.store()
    assert set(owner.answers) == {tokens[0]}
    owner.store()
    assert set(owner.answers) == set(tokens)
    assert owner.group.epoch == 2  # one run of the assignor for the other 49


# -- what does not fit -------------------------------------------------------------


def test_strangers_and_wrong_epochs(owner):
    a, b = consumers(owner, "a", "b")
    assert owner.beat("nobody", 5).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert owner.beat("a", a.epoch + 1).error == ErrorCode.FENCED_MEMBER_EPOCH
    assert owner.beat("a", a.epoch - 1).error == ErrorCode.FENCED_MEMBER_EPOCH
    previous = owner.group.members["a"].previous_epoch
    assert owner.beat("a", previous, owned=b.owned).error == ErrorCode.FENCED_MEMBER_EPOCH
    assert not owner.beat("a", previous, owned=a.owned).error  # our answer was lost


def test_a_fenced_member_comes_back(owner):
    (a,) = consumers(owner, "a")
    a.epoch = 99
    assert a.beat().error == ErrorCode.FENCED_MEMBER_EPOCH
    settle(owner, a)
    assert a.owned == ALL


def test_a_full_group(owner):
    owner = Owner(max_size=1)
    (a,) = consumers(owner, "a")
    result = owner.join("b", "clicks")
    assert result.error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "group.consumer.max.size" in result.message
    assert not a.beat().error


def test_commits_need_the_epoch_of_the_member(owner):
    group = owner.group
    places = [("clicks", 0)]
    assert group.membership.may_commit("", None, -1, places) == ErrorCode.NONE  # nobody is in it
    (a,) = consumers(owner, "a")
    assert group.membership.may_commit("a", None, a.epoch, places) == ErrorCode.NONE
    assert (
        group.membership.may_commit("a", None, a.epoch - 1, places) == ErrorCode.STALE_MEMBER_EPOCH
    )
    assert (
        group.membership.may_commit("a", None, a.epoch + 1, places) == ErrorCode.STALE_MEMBER_EPOCH
    )
    assert group.membership.may_commit("b", None, 1, places) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.membership.may_commit("", None, -1, places) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.membership.may_fetch(None, -1) == ErrorCode.NONE
    assert group.membership.may_fetch("a", a.epoch) == ErrorCode.NONE
    assert group.membership.may_fetch("a", a.epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert group.membership.may_fetch("b", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_in_an_epoch_that_is_over(owner):
    """KIP-1251: what a member has kept it may commit before it has heard of the new epoch."""
    (a,) = consumers(owner, "a")
    b = Consumer(owner, "b", "clicks")
    b.beat()
    kept = a.beat().assignment
    given = ALL - kept

    def may_commit(member_id, epoch, which):
        places = [("clicks", index) for _, index in which]
        return owner.group.membership.may_commit(member_id, None, epoch, places)

    assert may_commit("a", 1, ALL) == ErrorCode.NONE  # it has not given up anything yet
    assert a.beat().epoch == 2
    b.beat()
    for _ in range(2):
        stale = ErrorCode.STALE_MEMBER_EPOCH
        assert may_commit("a", 1, kept) == ErrorCode.NONE  # the answer was lost
        assert may_commit("a", 1, []) == ErrorCode.NONE
        assert may_commit("a", 1, given) == stale  # this is b's by now
        assert may_commit("a", 1, ALL) == stale
        assert may_commit("a", 0, kept) == stale
        assert may_commit("a", 3, kept) == stale
        assert may_commit("b", 2, given) == ErrorCode.NONE
        assert may_commit("b", 1, given) == stale  # it has them since epoch 2
        owner.restarted()


def test_records_of_older_brokers_have_no_epochs_of_partitions(owner):
    (a,) = consumers(owner, "a")
    b = Consumer(owner, "b", "clicks")
    settle(owner, a, b)
    owner.log = [_without_epochs(record) for record in owner.log]
    owner.restarted()
    places = [("clicks", index) for _, index in a.owned]
    assert owner.group.membership.may_commit("a", None, a.epoch, places) == ErrorCode.NONE
    assert (
        owner.group.membership.may_commit("a", None, a.epoch - 1, places)
        == ErrorCode.STALE_MEMBER_EPOCH
    )


def _without_epochs(encoded):
    record = SERDE.decode(*encoded)
    if isinstance(record.value, ConsumerGroupCurrentMemberAssignmentValue):
        for row in record.value.assigned_partitions:
            row.assignment_epochs = None
    return SERDE.encode(record)


# -- leaving, dying, being slow ----------------------------------------------------


def test_who_leaves_is_not_waited_for(owner):
    a, b = consumers(owner, "a", "b")
    assert b.leave().epoch == -1
    settle(owner, a)
    assert a.owned == ALL
    a.leave()
    assert owner.group.state is GroupState.EMPTY
    assert not owner.group.image.owners


def test_who_is_silent_for_the_session_timeout_is_dead(owner):
    a, b = consumers(owner, "a", "b")
    for _ in range(9):
        owner.advance(5000)
        a.beat()
    settle(owner, a)
    assert a.owned == ALL
    assert b.beat().error == ErrorCode.FENCED_MEMBER_EPOCH or b.epoch == 0


def test_who_does_not_give_up_in_time_is_removed(owner):
    (a,) = consumers(owner, "a")
    b = Consumer(owner, "b", "clicks")
    b.beat()
    a.beat()
    for _ in range(13):
        owner.advance(5000)
        # It is alive, and goes on to hold everything.
        owner.beat("a", a.epoch, owned=ALL)
        b.beat()
    assert "a" not in owner.group.members
    assert b.owned == ALL
    assert any(e.kind == "removed" and "give up" in e.cause for e in owner.group.timeline)


# -- topics ------------------------------------------------------------------------


def test_more_partitions(owner):
    a, b = consumers(owner, "a", "b")
    before = a.owned, b.owned
    owner.set_topics(clicks=8)
    settle(owner, a, b)
    assert a.owned > before[0]
    assert b.owned > before[1]
    assert a.owned | b.owned == slots("clicks", *range(8))


def test_topics_that_come_and_go(owner):
    (a,) = [Consumer(owner, "a", "clicks", "views")]
    settle(owner, a)
    assert a.owned == ALL
    owner.set_topics(clicks=6, views=1)
    settle(owner, a)
    assert a.owned == ALL | slots("views", 0)
    owner.set_topics(views=1)
    settle(owner, a)
    assert a.owned == slots("views", 0)


def test_other_topics_do_not_matter(owner):
    consumers(owner, "a")
    owner.set_topics(clicks=6, views=1)
    assert owner.group.epoch == 1


def test_a_change_while_the_coordinator_was_away_is_seen(owner):
    (a,) = consumers(owner, "a")
    owner.restarted()
    assert owner.group.epoch == 1
    owner.set_topics(clicks=7)
    assert owner.group.epoch == 2
    settle(owner, a)
    assert len(a.owned) == 7


def test_a_regular_expression(owner):
    a = Consumer(owner, "a", regex="click.*")
    settle(owner, a)
    assert a.owned == ALL
    owner.set_topics(clicks=6, clicks2=1, views=1, __consumer_offsets=3)
    settle(owner, a)
    assert a.owned == ALL | slots("clicks2", 0)
    assert owner.group.subscribed() == {"clicks", "clicks2"}
    owner.restarted()
    assert owner.group.image.regexes == {"click.*": {"clicks", "clicks2"}}
    result = owner.beat("a", a.epoch, regex="", topics=frozenset({"views"}), owned=frozenset())
    assert result.assignment == slots("views", 0)
    assert not owner.restarted().image.regexes


def test_a_pattern_matches_internal_topics_too(owner):
    """As in Kafka 4.1; franz-go's own tests look for it."""
    owner.set_topics(clicks=6, __consumer_offsets=3)
    a = Consumer(owner, "a", regex=".*(clicks|__consumer_offsets).*")
    settle(owner, a)
    assert a.owned == ALL | slots("__consumer_offsets", 0, 1, 2)


def test_a_bad_regular_expression_changes_nothing(owner):
    result = owner.beat("a", 0, regex="(", rebalance_ms=1, owned=frozenset())
    assert result.error == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "missing )" in result.message
    assert owner.group.untouched
    assert not owner.log


# -- static members ----------------------------------------------------------------


def test_a_static_member_that_restarts_keeps_its_partitions(owner):
    a = Consumer(owner, "a", "clicks", instance_id="one")
    b = Consumer(owner, "b", "clicks", instance_id="two")
    settle(owner, a, b)
    had, epoch = a.owned, owner.group.epoch
    assert a.leave(-2).epoch == -2
    b.beat()
    assert len(b.owned) == 3
    again = Consumer(owner, "a2", "clicks", instance_id="one")
    again.beat()
    assert again.owned == had
    assert owner.group.epoch == epoch
    assert set(owner.group.members) == {"a2", "b"}
    assert owner.beat("a", a.epoch, instance_id="one").error == ErrorCode.FENCED_INSTANCE_ID
    settle(owner, again, b)
    assert set(owner.restarted().members) == {"a2", "b"}


def test_a_static_member_that_stays_away_loses_its_place(owner):
    a = Consumer(owner, "a", "clicks", instance_id="one")
    b = Consumer(owner, "b", "clicks")
    settle(owner, a, b)
    a.leave(-2)
    for _ in range(10):
        owner.advance(5000)
        b.beat()
    settle(owner, b)
    assert b.owned == ALL


def test_a_static_member_that_goes_while_it_should_give_up_keeps_its_place(owner):
    a = Consumer(owner, "a", "clicks", instance_id="i", rebalance_ms=1000)
    settle(owner, a)
    owner.join("b", "clicks")
    a.beat()  # it hears what it has to give up
    a.leave(-2)
    owner.advance(2000)
    assert set(owner.group.members) == {"a", "b"}


def test_a_static_member_that_is_away_is_fenced(owner):
    a = Consumer(owner, "a", "clicks", instance_id="i")
    settle(owner, a)
    epoch, owned = a.epoch, a.owned
    a.leave(-2)
    late = owner.beat("a", epoch, instance_id="i", owned=owned)
    assert late.error == ErrorCode.FENCED_MEMBER_EPOCH
    assert owner.group.members["a"].epoch == -2


def test_a_member_id_is_not_for_two_instances(owner):
    a = Consumer(owner, "a", "clicks", instance_id="i")
    b = Consumer(owner, "b", "clicks", instance_id="j")
    settle(owner, a, b)
    a.leave(-2)
    taken = owner.join("b", "clicks", instance_id="i")
    assert taken.error == ErrorCode.INVALID_REQUEST
    assert owner.group.image.static == {"i": "a", "j": "b"}
    back = Consumer(owner, "c", "clicks", instance_id="i")
    settle(owner, back, b)
    assert len(back.owned | b.owned) == 6


def test_an_instance_id_that_is_in_use(owner):
    (a,) = consumers(owner, "a", instance_id="one")
    result = owner.join("b", "clicks", instance_id="one")
    assert result.error == ErrorCode.UNRELEASED_INSTANCE_ID
    assert not a.beat().error
    assert not owner.join("a", "clicks", instance_id="one").error  # it lost our answer
    assert owner.beat("x", 1, instance_id="two").error == ErrorCode.UNKNOWN_MEMBER_ID
    assert a.leave(-1).epoch == -1
    assert not owner.group.image.static


# -- the log -----------------------------------------------------------------------


def test_the_next_coordinator_goes_on_where_this_one_stopped(owner):
    (a,) = consumers(owner, "a", rack_id="r", assignor="uniform")
    b = Consumer(owner, "b", "clicks", instance_id="static")
    b.beat()
    a.beat()
    before = owner.group
    members = {
        m: (x.epoch, x.state, x.assigned, x.revoking, x.assigned_at, x.rack_id, x.assignor)
        for m, x in before.members.items()
    }
    epochs, targets = (before.epoch, before.target_epoch), dict(before.image.targets)
    group = owner.restarted()
    assert (group.epoch, group.target_epoch) == epochs
    assert group.image.targets == targets
    assert members == {
        m: (x.epoch, x.state, x.assigned, x.revoking, x.assigned_at, x.rack_id, x.assignor)
        for m, x in group.members.items()
    }
    assert group.state is GroupState.RECONCILING
    settle(owner, a, b)
    assert a.owned | b.owned == ALL


def test_who_waits_for_the_log_is_alive(owner):
    """However long a write takes: its heartbeats came in time."""
    a = Consumer(owner, "a", "t")
    settle(owner, a)
    owner.hold = True
    assert owner.join("b", "t") is None
    waiting = []
    for _ in range(4):
        owner.advance(owner.limits.session_ms // 2)
        waiting.append(owner.send("a", a.epoch))
    owner.hold = False
    owner.store()
    owner.after()
    assert "a" in owner.group.members
    assert {owner.answers[token].error for token in waiting} == {ErrorCode.NONE}


def test_a_failed_write_is_made_up_for(owner):
    (a,) = consumers(owner, "a")
    owner.hold = True
    b = Consumer(owner, "b", "clicks")
    token = owner.send("b", 0, topics=frozenset({"clicks"}), owned=frozenset(), rebalance_ms=1000)
    owner.store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert owner.answers[token].error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    owner.hold = False
    owner.advance(1000)  # it is written again by itself
    assert set(owner.restarted().members) == {"a", "b"}
    settle(owner, a, b)
    assert owned(a, b) == [3, 3]


def test_an_empty_group_leaves_only_its_epochs(owner):
    a, b = consumers(owner, "a", "b")
    a.leave()
    b.leave()
    group = owner.restarted()
    assert (group.state, group.members, group.image.targets, group.image.static) == (
        GroupState.EMPTY,
        {},
        {},
        {},
    )
    assert group.epoch > 2
    last = {}
    for key, value, _ in owner.log:
        last[key] = value
    alive = [SERDE.decode(key, value).key.api_key for key, value in last.items() if value]
    assert sorted(alive) == [3, 6]
    assert [r.key.api_key for r in group.tombstones()] == [6, 3]


def test_an_unloaded_group_answers_whoever_waits(owner):
    owner.hold = True
    first = owner.send("a", 0, topics=frozenset({"clicks"}), owned=frozenset())
    second = owner.send("b", 0, topics=frozenset({"clicks"}), owned=frozenset())
    owner.restarted()
    assert {owner.answers[t].error for t in (first, second)} == {ErrorCode.NOT_COORDINATOR}


def test_who_is_alive_away_or_waited_for(owner):
    a = Consumer(owner, "a", "clicks", instance_id="i")
    settle(owner, a)
    owner.advance(5_000)
    (alone,) = owner.group.statuses()
    assert (alone.waited_for, alone.away, alone.silent_ms) == (False, False, 5_000)
    assert alone.expires_in_ms == 40_000
    Consumer(owner, "b", "clicks").beat()
    assert {s.member_id: s.waited_for for s in owner.group.statuses()} == {"a": True, "b": False}
    a.leave(-2)
    assert {s.member_id: s.away for s in owner.group.statuses()} == {"a": True, "b": False}


def test_a_second_instance_is_refused_and_that_is_in_the_timeline(owner):
    settle(owner, Consumer(owner, "a", "clicks", instance_id="i"))
    result = owner.beat("b", 0, topics=frozenset({"clicks"}), instance_id="i", owned=frozenset())
    assert result.error == ErrorCode.UNRELEASED_INSTANCE_ID
    event = list(owner.group.timeline)[-1]
    assert event.kind == "refused"
    assert "UNRELEASED_INSTANCE_ID: instance 'i' is still in use by member a" in event.cause
