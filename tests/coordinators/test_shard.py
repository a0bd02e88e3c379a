"""Groups and offsets of a shard, while records are on their way into the log."""

import os
import random

import pytest
from support.classic_group import request
from support.consumer_group import cluster
from support.group_shard import Log, make_shard

from tidelog.coordinators.groups.consumer_members import Beat
from tidelog.coordinators.groups.offsets import Committed, commit_record
from tidelog.coordinators.groups.records import SERDE
from tidelog.errors import ErrorCode

HOUR = 3_600_000
TOPICS = cluster(clicks=6)


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def shard(log):
    return make_shard(log, TOPICS)


def commit(shard, group, offset, topic="clicks", partition=0):
    """What the committer hears, once it does."""
    heard = []
    now_ms = shard._clock.now_ms()
    shard.commit(group, [(topic, partition, Committed(offset, -1, "", now_ms))], heard.append)
    return heard


def committed(shard, group):
    return {(t, p): c.offset for t, p, c in shard.offsets.get(group, ())}


def expire(shard, retention_ms=HOUR, log_start=0):
    shard.expire(retention_ms, lambda *_: log_start)


def delete(shard, group):
    heard = []
    shard.delete(group, heard.append)
    return heard


def beat(shard, member_id, epoch=0, **more):
    heard = []
    values = {"rebalance_ms": 1000, "topics": frozenset({"clicks"}), "owned": frozenset()}
    beat = Beat(member_id, epoch, "app", "here", **{**values, **more})
    shard.manager.consumer_heartbeat("g", beat, heard.append)
    return heard


def test_an_offset_counts_when_it_is_safe(shard, log):
    heard = commit(shard, "g", 5)
    assert (heard, committed(shard, "g")) == ([], {})
    log.store()
    assert (heard, committed(shard, "g")) == ([ErrorCode.NONE], {("clicks", 0): 5})


def test_an_offset_that_is_just_being_committed_does_not_expire(shard, log):
    commit(shard, "g", 5)
    log.store()
    log.clock.advance(2 * HOUR)
    commit(shard, "g", 6)
    expire(shard)
    log.store_all()
    assert committed(shard, "g") == {("clicks", 0): 6}
    assert committed(make_shard(log, TOPICS), "g") == {("clicks", 0): 6}


def test_a_group_that_is_just_being_made_by_a_commit_stays(shard, log):
    commit(shard, "g", 5)
    shard.manager.join("g", request(session_ms=1), lambda _: None)  # refused
    log.store_all()
    assert list(shard.groups) == ["g"]


def test_a_group_that_is_forgotten_while_somebody_commits_comes_back(shard, log):
    commit(shard, "g", 5)
    log.store()
    shard.remove_offsets("g", [("clicks", 0, "so")], lambda _: None)
    log.store()
    expire(shard)  # nothing is left of it
    commit(shard, "g", 6)
    log.store_all()
    for found in (shard, make_shard(log, TOPICS)):
        assert list(found.groups) == ["g"]
        assert committed(found, "g") == {("clicks", 0): 6}


def test_a_group_that_is_committing_is_not_deleted(shard, log):
    commit(shard, "g", 5)
    assert delete(shard, "g") == [ErrorCode.NON_EMPTY_GROUP]
    log.store_all()
    heard = delete(shard, "g")
    log.store_all()
    assert heard == [ErrorCode.NONE]
    for found in (shard, make_shard(log, TOPICS)):
        assert not found.groups
        assert not found.offsets.get("g")


def test_an_offset_does_not_outlive_a_topic_that_is_deleted_meanwhile(log):
    topics = {"now": TOPICS}
    shard = make_shard(log, lambda: topics["now"])
    commit(shard, "g", 5)
    topics["now"] = cluster()
    shard.topics_deleted({"clicks"})
    log.store_all()
    for found in (shard, make_shard(log, TOPICS)):
        assert committed(found, "g") == {}
        assert found.offsets["g"].removals["clicks", 0].reason == "the topic was deleted"


@pytest.mark.parametrize("how", ["delete", "expire"])
def test_a_group_with_very_many_offsets_can_go(shard, log, how):
    rows = [("clicks", i, Committed(5, -1, "", log.clock.now_ms())) for i in range(30_000)]
    for start in range(0, len(rows), 1000):
        shard.commit("g", rows[start : start + 1000], lambda _: None)
    log.store_all()
    if how == "delete":
        heard = delete(shard, "g")
    else:
        heard = [0]
        log.clock.advance(2 * HOUR)
        expire(shard)
    log.store_all()
    assert heard == [0]
    assert committed(shard, "g") == committed(make_shard(log, TOPICS), "g") == {}


def test_a_restart_does_not_make_offsets_younger(shard, log):
    """Of a group that never had members, and of one whose members are gone."""
    commit(shard, "by-hand", 5)
    beat(shard, "m")
    log.store_all()
    beat(shard, "m", -1)
    commit(shard, "g", 7)
    log.store_all()
    log.clock.advance(HOUR // 2)
    again = make_shard(log, TOPICS)
    log.clock.advance(HOUR // 2)
    expire(again)
    log.store_all()
    assert committed(again, "by-hand") == committed(again, "g") == {}


@pytest.mark.parametrize("session_ms", [1, 2**31 - 1])
def test_session_timeouts_have_limits_in_consumer_groups_too(shard, log, session_ms):
    beat(shard, "m")
    log.store_all()
    heard = []
    shard.manager.join("g", request(session_ms=session_ms), heard.append)
    assert heard[0].error == ErrorCode.INVALID_SESSION_TIMEOUT


def test_who_may_commit_with_which_version(shard, log):
    unknown = shard.manager.may_commit("new", "m", None, 1, version=8)
    assert unknown == ErrorCode.ILLEGAL_GENERATION
    assert shard.manager.may_commit("new", "m", None, 1, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert shard.manager.may_commit("new", "", None, -1, version=2) == ErrorCode.NONE
    heard = beat(shard, "m")
    log.store_all()
    epoch = heard[0].epoch
    assert shard.manager.may_commit("g", "m", None, epoch, version=9) == ErrorCode.NONE
    old = shard.manager.may_commit("g", "m", None, epoch, version=8)
    assert old == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("number", range(40))
def test_what_is_known_is_what_the_log_says(number):
    """Commits, joins, expiry and deletion, in any order while writes are under way."""
    rng = random.Random(f"{os.environ.get('TIDELOG_SEED', '1')} {number}")
    log = Log()
    shard = make_shard(log, TOPICS)
    replica, replayed = make_shard(Log(log.clock), TOPICS), 0
    names, next_offset = ["a", "b"], iter(range(10**9))
    newest = {}  # the last commit that was acknowledged, and the deletions since
    for _ in range(400):
        group, what = rng.choice(names), rng.random()
        if what < 0.4:
            place, offset = (group, rng.randrange(2)), next(next_offset)
            heard = commit(shard, group, offset, partition=place[1])
            newest.setdefault(place, []).append((offset, heard))
        elif what < 0.5:
            shard.manager.join(group, request(session_ms=rng.choice((1, 10_000))), lambda _: None)
        elif what < 0.55:
            beat(shard, "m", rng.choice((0, -1)))
        elif what < 0.6:
            log.clock.advance(rng.choice((1, HOUR // 2, 2 * HOUR)))
            for key in list(log.deadlines):
                log.callback(key)
        elif what < 0.65:
            expire(shard)
        elif what < 0.7:
            delete(shard, group)
        else:
            while log.waiting and rng.random() < 0.7:
                failed = rng.random() < 0.05
                log.store(ErrorCode.NOT_COORDINATOR if failed else ErrorCode.NONE)
        # Offsets count once they are stored: what is known is the replay, at every step.
        for row, time_ms in zip(log.rows[replayed:], log.times[replayed:], strict=True):
            replica.replay(SERDE.decode(*row), time_ms)
        replayed = len(log.rows)
        for group in names:
            assert committed(shard, group) == committed(replica, group)
    log.store_all()
    again = make_shard(log, TOPICS)
    for group in names:
        assert committed(shard, group) == committed(again, group)
        assert bool(committed(shard, group)) <= (group in shard.groups)
        for (_, partition), offset in committed(shard, group).items():
            good = [o for o, heard in newest[group, partition] if heard == [ErrorCode.NONE]]
            assert offset == good[-1]


def pending(shard, group, offset, producer_id=1):
    """A commit inside a transaction, as it is found in the log."""
    record = commit_record(group, "clicks", 0, Committed(offset, -1, "", shard._clock.now_ms()))
    shard.replay_transactional(producer_id, record, 0, 0)


def test_nothing_expires_while_a_transaction_is_open(shard, log):
    commit(shard, "g", 5)
    log.store_all()
    pending(shard, "g", 6)
    pending(shard, "new", 7)
    shard.loaded()
    log.clock.advance(2 * HOUR)
    expire(shard)
    assert not log.waiting
    assert set(shard.groups) == {"g", "new"}
    shard.end_transaction(1, committed=True)
    assert (committed(shard, "g"), committed(shard, "new")) == (
        {("clicks", 0): 6},
        {("clicks", 0): 7},
    )
    log.clock.advance(2 * HOUR)
    expire(shard)
    log.store_all()
    assert committed(shard, "g") == committed(shard, "new") == {}


@pytest.mark.parametrize("end", ["topic", "group"])
def test_what_is_pending_goes_with_its_topic_and_with_its_group(shard, log, end):
    pending(shard, "g", 6)
    shard.loaded()
    if end == "topic":
        shard.topics_deleted({"clicks"})
    else:
        delete(shard, "g")
    log.store_all()
    shard.end_transaction(1, committed=True)
    assert committed(shard, "g") == {}
