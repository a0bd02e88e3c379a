"""The classic group, one rule at a time."""

import pytest
from support.classic_group import Owner, assignment, request, subscription

from tidelog.coordinators.groups.classic_group import PENDING_HOLD_MS
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ErrorCode


@pytest.fixture
def owner():
    return Owner()


def kinds(owner):
    return [event.kind for event in owner.group.timeline]


def test_a_new_member_is_given_its_id_first(owner):
    token = owner.token()
    owner.group.join(request(), token)
    owner.after()
    answer = owner.answers[token]
    assert answer.error == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "app-id0"
    assert owner.group.state is GroupState.EMPTY
    token = owner.join(answer.member_id)
    owner.advance(0)
    assert owner.answers[token].member_id == "app-id0"


def test_old_clients_join_at_once(owner):
    token = owner.join(id_first=False)
    owner.advance(0)
    answer = owner.answers[token]
    assert (answer.error, answer.generation, answer.leader) == (0, 1, "app-id0")
    assert [row.member_id for row in answer.members] == ["app-id0"]


def test_the_first_member_leads_and_only_the_leader_is_told_the_members(owner):
    first = owner.join()
    owner.advance(0)
    leader = owner.answers[first].member_id
    second = owner.join()
    assert owner.group.state is GroupState.PREPARING
    assert owner.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in owner.answers
    again = owner.join(leader)
    a, b = owner.answers[again], owner.answers[second]
    assert a.leader == b.leader == leader
    assert (a.generation, b.generation) == (2, 2)
    assert len(a.members) == 2
    assert b.members == ()
    owner.stabilize()
    assert owner.heartbeat(leader) == 0
    assert owner.log[-1].value.generation == 2


def test_the_initial_delay_gathers_members_and_is_extended():
    owner = Owner(initial_delay_ms=3000)
    tokens = [owner.join()]
    owner.advance(2000)
    tokens.append(owner.join())
    owner.advance(2000)
    assert not any(t in owner.answers for t in tokens)  # the newcomer puts it off
    owner.advance(2000)
    assert [owner.answers[t].generation for t in tokens] == [1, 1]


def test_the_initial_delay_ends_with_the_rebalance_timeout():
    owner = Owner(initial_delay_ms=3000)
    first = owner.join(rebalance_ms=7000)
    for _ in range(3):
        owner.advance(2000)
        owner.join(rebalance_ms=7000)
    assert first not in owner.answers
    owner.advance(1000)
    assert owner.answers[first].generation == 1
    assert len(owner.group.members) == 4


def test_a_follower_that_joins_again_unchanged_disturbs_nobody(owner):
    _, follower = owner.members_join({}, {})
    generation = owner.group.generation
    token = owner.join(follower)
    assert owner.answers[token].generation == generation
    assert owner.group.state is GroupState.STABLE


def test_a_leader_that_joins_again_starts_a_rebalance(owner):
    leader, _ = owner.members_join({}, {})
    token = owner.join(leader, reason="partitions were added")
    assert token not in owner.answers
    assert owner.group.state is GroupState.PREPARING
    assert "partitions were added" in list(owner.group.timeline)[-1].cause


def test_a_changed_subscription_starts_a_rebalance(owner):
    _, follower = owner.members_join({}, {})
    owner.join(follower, protocols=(("range", subscription("other")),))
    assert owner.group.state is GroupState.PREPARING


def test_a_member_that_lost_the_answer_gets_it_again(owner):
    first = owner.join()
    owner.advance(0)
    answer = owner.answers[first]
    again = owner.join(answer.member_id)
    assert owner.answers[again] == answer
    assert owner.group.state is GroupState.COMPLETING


def test_a_second_request_of_a_member_ends_the_first(owner):
    first, _ = owner.members_join({}, {})
    one = owner.join(first)
    two = owner.join(first)
    assert owner.answers[one].error == ErrorCode.REBALANCE_IN_PROGRESS
    assert two not in owner.answers


def test_members_that_do_not_come_back_are_removed_after_the_rebalance_timeout(owner):
    a, b = owner.members_join({}, {})
    newcomer = owner.join()
    again = owner.join(a)
    for _ in range(19):
        owner.advance(3000)
        assert owner.heartbeat(b) == ErrorCode.REBALANCE_IN_PROGRESS
    owner.advance(3000)
    assert len(owner.answers[again].members) == 2
    assert owner.answers[newcomer].error == 0
    assert owner.heartbeat(b) == ErrorCode.UNKNOWN_MEMBER_ID
    assert "removed" in kinds(owner)


def test_the_leader_is_replaced_when_it_is_gone(owner):
    a, b = owner.members_join({}, {})
    owner.leave(a)
    token = owner.join(b)
    assert owner.answers[token].leader == b
    owner.stabilize()


def test_the_protocol_that_most_like_best_is_chosen(owner):
    both = (("range", b""), ("sticky", b""))
    sticky = (("sticky", b""), ("range", b""))
    owner.members_join({"protocols": both}, {"protocols": sticky}, {"protocols": sticky})
    assert owner.group.protocol == "sticky"


def test_a_protocol_that_not_all_know_is_not_chosen(owner):
    both = (("cooperative", b""), ("range", b""))
    owner.members_join({"protocols": both}, {"protocols": (("range", b""),)})
    assert owner.group.protocol == "range"


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_type": "connect"},
        {"protocol_type": ""},
        {"protocols": ()},
        {"protocols": (("roundrobin", b""),)},
    ],
)
def test_inconsistent_protocols(owner, changes):
    owner.members_join({})
    token = owner.join(**changes)
    assert owner.answers[token].error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert owner.group.state is GroupState.STABLE


def test_a_lonely_member_may_change_its_protocol(owner):
    (member,) = owner.members_join({})
    token = owner.join(member, protocols=(("sticky", b""),))
    assert owner.answers[token].protocol == "sticky"


def test_a_protocol_that_is_named_twice_counts_once(owner):
    owner.members_join({"protocols": (("range", b"a"), ("range", b"b"))}, {})
    assert owner.group.protocol == "range"


@pytest.mark.parametrize("session", [0, 5999, 1_800_001, -1])
def test_session_timeouts_have_limits(owner, session):
    token = owner.join(session_ms=session)
    assert owner.answers[token].error == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_group_that_is_full():
    owner = Owner(max_size=2)
    a, b = owner.members_join({}, {})
    token = owner.join()
    assert owner.answers[token].error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert owner.group.state is GroupState.STABLE
    owner.rejoin(a, b)  # those who are in may come again
    assert owner.group.state is GroupState.COMPLETING


def test_an_id_that_is_not_used_takes_nobodys_place():
    owner = Owner(max_size=1)
    owner.group.join(request(), owner.token())  # it takes its id and dies
    (member,) = owner.members_join({})
    late = owner.token()
    owner.group.join(request(next(iter(owner.group.pending))), late)
    owner.after()
    assert owner.answers[late].error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert list(owner.group.members) == [member]
    assert owner.group.state is GroupState.STABLE


def test_an_id_that_was_given_out_is_not_for_a_static_member(owner):
    first, _ = owner.members_join({"instance_id": "i"}, {})
    token = owner.token()
    owner.group.join(request(), token)
    owner.after()
    stolen = owner.join(owner.answers[token].member_id, "i")
    assert owner.answers[stolen].error == ErrorCode.FENCED_INSTANCE_ID
    assert owner.group.image.static == {"i": first}
    new = owner.join(owner.answers[token].member_id, "other")
    assert owner.answers[new].error == ErrorCode.UNKNOWN_MEMBER_ID
    assert owner.group.state is GroupState.STABLE


def test_an_id_that_is_not_used_holds_nobody_up_for_long(owner):
    a, _ = owner.members_join({}, {})
    for _ in range(1000):  # joins and disappears
        owner.group.join(request(), owner.token())
    owner.after()
    owner.leave(a)
    rest = list(owner.group.members)
    owner.rejoin(*rest)
    assert owner.group.state is GroupState.PREPARING
    owner.advance(PENDING_HOLD_MS)
    assert owner.group.state is GroupState.COMPLETING
    owner.stabilize()
    for _ in range(4):
        owner.advance(3000)
        assert owner.heartbeat(rest[0]) == 0
    assert not owner.group.pending


def test_a_member_that_stops_heartbeating(owner):
    a, b = owner.members_join({}, {})
    for _ in range(4):
        owner.advance(3000)
        owner.heartbeat(a)
    assert owner.group.state is GroupState.PREPARING
    event = next(e for e in owner.group.timeline if e.kind == "expired")
    assert event.member_id == b
    assert event.cause == "no heartbeat for 10000 ms"
    owner.rejoin(a)
    owner.stabilize()


def test_a_group_without_heartbeats_becomes_empty_and_says_so_in_the_log(owner):
    owner.members_join({}, {})
    owner.advance(20_000)
    group = owner.group
    assert (group.state, group.members, group.generation) == (GroupState.EMPTY, {}, 2)
    assert owner.log[-1].value.members == []
    assert group.next_deadline() is None


def test_whoever_waits_for_us_does_not_expire(owner):
    a, b = owner.members_join({}, {})
    token = owner.join(a)
    for _ in range(10):
        owner.advance(5000)
        owner.heartbeat(b)
    assert a in owner.group.members
    owner.rejoin(b)
    assert owner.answers[token].error == 0


def test_members_that_never_sync_are_removed(owner):
    a, b = owner.members_join({}, {})
    owner.rejoin(a, b)
    generation = owner.group.generation
    token = owner.sync(a, generation, {a: assignment(0), b: assignment(1)})
    assert owner.answers[token].error == 0
    for _ in range(20):  # b heartbeats but never asks for its assignment
        owner.heartbeat(a, generation)
        owner.heartbeat(b, generation)
        owner.advance(3000)
    assert b not in owner.group.members
    assert owner.group.state is GroupState.PREPARING


def test_sync_errors(owner):
    a, _ = owner.members_join({}, {})
    generation = owner.group.generation

    def error(*args, **options):
        return owner.answers[owner.sync(*args, **options)].error

    assert error("nobody", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert error(a, generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert error(a, generation, protocol="sticky") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(a, generation, protocol_type="x") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(a, generation, instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert error(a, generation) == 0
    owner.join(a)
    assert error(a, generation) == ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeat_and_commit_errors(owner):
    (a,) = owner.members_join({})
    group = owner.group
    for check in (group.heartbeat, group.may_commit):
        assert check(a, None, 1) == 0
        assert check("nobody", None, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert check(a, None, 2) == ErrorCode.ILLEGAL_GENERATION
        assert check(a, "instance", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.may_commit("", None, -1) == ErrorCode.UNKNOWN_MEMBER_ID
    owner.join(a)
    assert group.state is GroupState.COMPLETING
    assert group.may_commit(a, None, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.heartbeat(a, None, 2) == 0
    owner.leave(a)
    assert group.state is GroupState.EMPTY
    assert group.may_commit("", None, -1) == 0
    assert group.may_commit(a, None, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_errors_and_pending_members(owner):
    (a,) = owner.members_join({})
    assert owner.leave("nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert owner.leave(a, "instance") == ErrorCode.UNKNOWN_MEMBER_ID
    token = owner.token()
    owner.group.join(request(), token)
    owner.after()
    assert owner.leave(owner.answers[token].member_id) == 0
    assert owner.leave(a, reason="the consumer is closed") == 0
    assert owner.group.state is GroupState.EMPTY
    assert any("the consumer is closed" in event.cause for event in owner.group.timeline)


def test_parked_requests_of_a_member_that_leaves_are_answered(owner):
    a, b = owner.members_join({}, {})
    token = owner.join(a)
    owner.leave(a)
    assert owner.answers[token].error == ErrorCode.UNKNOWN_MEMBER_ID
    owner.rejoin(b)
    owner.stabilize()


# -- writing ----------------------------------------------------------------------


def test_the_assignment_is_given_out_after_it_is_stored():
    owner = Owner(hold=True)
    token = owner.join()
    owner.advance(0)
    member = owner.answers[token].member_id
    sync = owner.sync(member, 1, {member: assignment(3)})
    assert sync not in owner.answers
    assert owner.group.state is GroupState.COMPLETING
    owner.store()
    assert owner.answers[sync].assignment == assignment(3)
    assert owner.group.state is GroupState.STABLE


def test_an_assignment_that_cannot_be_written_starts_over():
    owner = Owner(hold=True)
    token = owner.join()
    owner.advance(0)
    member = owner.answers[token].member_id
    sync = owner.sync(member, 1, {member: assignment(3)})
    owner.store(ErrorCode.NOT_COORDINATOR)
    assert owner.answers[sync].error == ErrorCode.NOT_COORDINATOR
    assert owner.group.state is GroupState.PREPARING
    owner.join(member)
    owner.stabilize()


def test_a_write_that_is_overtaken_by_a_rebalance_changes_nothing():
    owner = Owner(hold=True)
    token = owner.join()
    owner.advance(0)
    member = owner.answers[token].member_id
    sync = owner.sync(member, 1, {member: assignment(3)})
    owner.join(client_id="other")
    assert owner.answers[sync].error == ErrorCode.REBALANCE_IN_PROGRESS
    owner.store()
    assert owner.group.state is GroupState.PREPARING
    owner.rejoin(member)
    assert owner.group.state is GroupState.COMPLETING
    owner.stabilize()


# -- static members -----------------------------------------------------------------


def test_a_static_member_that_restarts_does_not_rebalance(owner):
    a, b = owner.members_join({"instance_id": "one"}, {"instance_id": "two"})
    assert a.startswith("one-")
    given = owner.group.members[b].assignment
    token = owner.join(instance_id="two")
    answer = owner.answers[token]
    assert (answer.error, answer.generation) == (0, owner.group.generation)
    assert answer.member_id not in (a, b)
    assert owner.group.state is GroupState.STABLE
    sync = owner.sync(answer.member_id, answer.generation, instance_id="two")
    assert owner.answers[sync].assignment == given
    assert [m.member_id for m in owner.log[-1].value.members] == [a, answer.member_id]
    # The one it replaced is fenced, wherever it turns up.
    assert owner.heartbeat(b, instance_id="two") == ErrorCode.FENCED_INSTANCE_ID
    assert owner.group.may_commit(b, "two", answer.generation) == ErrorCode.FENCED_INSTANCE_ID
    assert owner.leave(b, "two") == ErrorCode.FENCED_INSTANCE_ID
    stale = owner.sync(b, answer.generation, instance_id="two")
    assert owner.answers[stale].error == ErrorCode.FENCED_INSTANCE_ID
    stale = owner.join(b, "two")
    assert owner.answers[stale].error == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("may_skip", [False, True])
def test_a_static_leader_that_restarts_computes_no_assignment(owner, may_skip):
    a, _ = owner.members_join({"instance_id": "one"}, {"instance_id": "two"})
    token = owner.join(instance_id="one", may_skip=may_skip)
    answer = owner.answers[token]
    assert answer.skip_assignment is may_skip
    assert owner.group.leader == answer.member_id
    assert answer.leader == (answer.member_id if may_skip else a)
    assert len(answer.members) == (2 if may_skip else 0)


def test_a_static_member_that_comes_back_with_other_topics_rebalances(owner):
    a, _ = owner.members_join({"instance_id": "one"}, {"instance_id": "two"})
    owner.join(instance_id="two", protocols=(("range", subscription("clicks", "more")),))
    assert owner.group.state is GroupState.PREPARING
    owner.rejoin(a)
    owner.stabilize()


def test_a_duplicate_static_member_fences_the_first_while_it_waits(owner):
    owner.members_join({"instance_id": "one"})
    parked = owner.join(client_id="other")
    assert parked not in owner.answers
    first = owner.join(owner.group.image.static["one"], "one")
    assert owner.answers[first].error == 0
    owner.stabilize()
    owner.join(client_id="third")
    waiting = owner.join(owner.group.image.static["one"], "one")
    owner.join(instance_id="one")
    assert owner.answers[waiting].error == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_keeps_its_place_until_its_session_ends(owner):
    a, b = owner.members_join(
        {"instance_id": "one", "rebalance_ms": 3000},
        {"instance_id": "two", "rebalance_ms": 3000, "session_ms": 30_000},
    )
    owner.join(a, "one", rebalance_ms=3000)  # the leader; two is down
    owner.advance(3000)
    assert set(owner.group.members) == {a, b}
    assert owner.group.state is GroupState.COMPLETING


def test_a_static_leader_that_does_not_join_again_leads_no_longer(owner):
    """The leader of a generation computes its assignment: it must be there."""
    a, b = owner.members_join(
        {"instance_id": "one", "rebalance_ms": 3000, "session_ms": 30_000},
        {"instance_id": "two", "rebalance_ms": 3000, "session_ms": 30_000},
    )
    assert owner.group.leader == a
    owner.join(rebalance_ms=3000)
    token = owner.join(b, "two", rebalance_ms=3000)
    owner.advance(3000)
    assert a in owner.group.members
    assert owner.group.leader == owner.answers[token].leader == b


def test_an_operator_removes_a_static_member_by_its_instance_id(owner):
    a, b = owner.members_join({"instance_id": "one"}, {"instance_id": "two"})
    assert owner.leave("", "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert owner.leave("", "two") == 0
    assert list(owner.group.members) == [a]
    assert b not in owner.group.image.static.values()


# -- moving ------------------------------------------------------------------------


def test_a_restart_in_the_middle_of_a_rebalance(owner):
    a, b = owner.members_join({}, {"instance_id": "s"})
    generation = owner.group.generation
    parked = owner.join(a)
    group = owner.restarted()
    assert owner.answers[parked].error == ErrorCode.NOT_COORDINATOR
    assert (group.state, group.generation) == (GroupState.STABLE, generation)
    assert owner.heartbeat(a) == 0
    assert owner.heartbeat(b, instance_id="s") == 0
    token = owner.join(a)
    owner.join(b, "s")
    assert owner.answers[token].generation == generation + 1
    owner.stabilize()


def test_sessions_begin_anew_after_a_restart(owner):
    a, _ = owner.members_join({}, {})
    owner.advance(9000)
    owner.heartbeat(a)
    owner.restarted()
    owner.advance(9000)
    assert len(owner.group.members) == 2
    owner.heartbeat(a)
    owner.advance(2000)
    assert list(owner.group.members) == [a]


def test_a_dead_group_says_so(owner):
    (a,) = owner.members_join({})
    owner.group.unload(ErrorCode.NOT_COORDINATOR)
    assert owner.group.heartbeat(a, None, 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert owner.group.leave(a) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    token = owner.join()
    assert owner.answers[token].error == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_what_is_subscribed(owner):
    owner.members_join({}, {"protocols": (("range", subscription("a", "b")),)})
    assert owner.group.subscribed() == {"clicks", "a", "b"}
    other = Owner()
    other.members_join({"protocols": (("range", b"who knows"),)})
    assert other.group.subscribed() is None


def test_the_timeline_tells_the_story_and_is_bounded(owner):
    a, b = owner.members_join({}, {})
    owner.leave(b, reason="bye")
    assert kinds(owner)[-2:] == ["left", "rebalance"]
    for _ in range(300):
        owner.join(a)
        owner.stabilize()
    assert len(list(owner.group.timeline)) == 200


def test_who_is_waited_for_and_for_how_long(owner):
    (old,) = owner.members_join({"session_ms": 45_000})
    owner.advance(12_000)
    (alive,) = owner.group.statuses()
    assert (alive.waited_for, alive.silent_ms, alive.expires_in_ms) == (False, 12_000, 33_000)
    owner.join()  # its successor
    owner.advance(3_000)
    gone, new = owner.group.statuses()
    assert (gone.member_id, gone.waited_for) == (old, True)
    assert (gone.silent_ms, gone.expires_in_ms) == (15_000, 30_000)
    assert (new.waited_for, new.silent_ms, new.expires_in_ms) == (False, -1, -1)
    owner.join(old)
    assert owner.group.state is GroupState.COMPLETING
    assert [row.waited_for for row in owner.group.statuses()] == [True, False]  # the leader


def test_the_end_of_a_rebalance_may_come_before_that_of_a_session(owner):
    owner.members_join({"session_ms": 45_000, "rebalance_ms": 20_000})
    owner.join(rebalance_ms=20_000)
    (gone, _) = owner.group.statuses()
    assert (gone.waited_for, gone.expires_in_ms) == (True, 20_000)


def test_refusals_are_in_the_timeline_and_do_not_push_the_rest_out():
    owner = Owner(max_size=1)
    owner.members_join({})
    before = kinds(owner)
    for i in range(20):
        owner.join(client_id=f"late{i}")
    assert kinds(owner) == before + ["refused"] * 5
    cause = list(owner.group.timeline)[-1].cause
    assert cause == "client 'late19' at 10.0.0.1: GROUP_MAX_SIZE_REACHED: group.max.size is 1"
