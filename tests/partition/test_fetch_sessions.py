"""Incremental fetch sessions: epochs, room, news, and topics by name or by id."""

from __future__ import annotations

import pytest

from tidelog.clock import FakeClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.partition import fetch_sessions
from tidelog.partition.fetch_sessions import FetchSession, FetchSessions
from tidelog.wire.hot import Fetched, FetchHead, FetchRow, TopicRef

LAST = 2**31 - 1


def row(partition: int, offset: int = 0, topic: TopicRef = "t") -> FetchRow:
    return FetchRow(topic, partition, -1, offset, -1, 1000)


def head(
    session_id: int,
    epoch: int,
    rows: list[FetchRow] | None = None,
    forgotten: list[tuple[TopicRef, int]] | None = None,
) -> FetchHead:
    return FetchHead(-1, 500, 1, 1 << 20, 0, session_id, epoch, rows or [], forgotten or [], "")


class Sessions:
    """A cache with a clock, and the calls that every test makes."""

    def __init__(self, slots: int = 10) -> None:
        self.clock = FakeClock()
        self.all = FetchSessions(slots, self.clock)

    def open(self, *rows: FetchRow, by_id: bool = False) -> FetchSession:
        session, incremental = self.all.resolve(head(0, 0, list(rows) or [row(0)]), by_id)
        assert session is not None
        assert not incremental
        return session

    def go_on(self, session: FetchSession, *rows: FetchRow, **more: object) -> FetchSession:
        wanted = head(session.session_id, session.epoch, list(rows), **more)  # type: ignore[arg-type]
        found, incremental = self.all.resolve(wanted, session.by_id)
        assert found is session
        assert incremental
        return found

    def refused(self, wanted: FetchHead, by_id: bool = False) -> ErrorCode:
        with pytest.raises(ApiError) as error:
            self.all.resolve(wanted, by_id)
        return error.value.code


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


# -- epochs -------------------------------------------------------------------------


def test_a_fetch_without_a_session(sessions: Sessions) -> None:
    assert sessions.all.resolve(head(0, -1, [row(0)]), False) == (None, False)
    assert len(sessions.all) == 0


def test_epochs_count(sessions: Sessions) -> None:
    session = sessions.open()
    assert session.session_id > 0
    for epoch in (1, 2, 3):
        assert session.epoch == epoch
        sessions.go_on(session)


def test_an_epoch_that_is_not_expected(sessions: Sessions) -> None:
    session = sessions.open()
    sessions.go_on(session)
    for epoch in (1, 3, LAST):
        wrong = head(session.session_id, epoch)
        assert sessions.refused(wrong) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    sessions.go_on(session)  # the right one still works


def test_epochs_wrap(sessions: Sessions) -> None:
    session = sessions.open()
    session.epoch = LAST - 1
    sessions.go_on(session)
    assert session.epoch == LAST
    sessions.go_on(session)
    assert session.epoch == 1  # 0 would open a new session
    sessions.go_on(session)


def test_a_session_that_is_not_there(sessions: Sessions) -> None:
    assert sessions.refused(head(99, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_closes_the_session_it_names(sessions: Sessions, epoch: int) -> None:
    session = sessions.open()
    found, incremental = sessions.all.resolve(head(session.session_id, epoch, [row(0)]), False)
    assert not incremental
    assert (found is None) == (epoch == -1)
    assert len(sessions.all) == (1 if found else 0)
    gone = sessions.refused(head(session.session_id, 1))
    assert gone == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_no_session_for_nothing(sessions: Sessions) -> None:
    assert sessions.all.resolve(head(0, 0), False) == (None, False)
    assert len(sessions.all) == 0


# -- rows ---------------------------------------------------------------------------


def test_rows_are_added_moved_and_forgotten(sessions: Sessions) -> None:
    session = sessions.open(row(0), row(1), row(2))
    sessions.go_on(session, row(1, 50), row(3))
    assert [(r.partition, r.offset) for r in session.partitions.values()] == [
        (0, 0),
        (1, 50),
        (2, 0),
        (3, 0),
    ]
    sessions.go_on(session, forgotten=[("t", 0), ("t", 3), ("other", 9)])
    assert [r.partition for r in session.partitions.values()] == [1, 2]
    sessions.go_on(session, row(0, 7))  # and back again
    assert [r.partition for r in session.partitions.values()] == [1, 2, 0]


def test_who_got_records_waits_for_the_others(sessions: Sessions) -> None:
    """Otherwise a busy partition would starve those behind it."""
    session = sessions.open(row(0), row(1), row(2))
    session.note_sent("t", Fetched(0, 0, 10, 10, 0, records=b"x"))
    session.note_sent("t", Fetched(1, 0, 10, 10, 0))
    assert [r.partition for r in session.partitions.values()] == [1, 2, 0]


# -- news ---------------------------------------------------------------------------


def test_only_news_is_told(sessions: Sessions) -> None:
    session = sessions.open()
    answer = Fetched(0, 0, high_watermark=10, last_stable_offset=10, log_start_offset=0)
    assert session.has_news("t", answer)  # never told before
    session.note_sent("t", answer)
    assert not session.has_news("t", answer)
    assert session.has_news("t", answer._replace(high_watermark=11))
    assert session.has_news("t", answer._replace(log_start_offset=1))
    assert session.has_news("t", answer._replace(records=b"x"))
    assert session.has_news("t", answer._replace(error=3))
    assert session.has_news("t", answer._replace(tags=b"\x01\x00\x01\x00"))
    assert not session.has_news("t", answer)  # asking changes nothing


def test_an_error_is_told_until_it_is_gone(sessions: Sessions) -> None:
    session = sessions.open()
    answer = Fetched(0, 0, 10, 10, 0)
    session.note_sent("t", answer)
    for _ in range(2):
        assert session.has_news("t", Fetched(0, 3))
        session.note_sent("t", Fetched(0, 3))
    assert session.has_news("t", answer)  # that it is gone is news too
    session.note_sent("t", answer)
    assert not session.has_news("t", answer)


def test_a_partition_that_was_forgotten_is_news_again(sessions: Sessions) -> None:
    session = sessions.open(row(0), row(1))
    answer = Fetched(0, 0, 10, 10, 0)
    session.note_sent("t", answer)
    sessions.go_on(session, forgotten=[("t", 0)])
    sessions.go_on(session, row(0))
    assert session.has_news("t", answer)


def test_all_is_news_in_a_new_leader_epoch(sessions: Sessions) -> None:
    """A follower drops an answer that meets the order with the new epoch on its way."""
    session = sessions.open(row(0)._replace(leader_epoch=1))
    answer = Fetched(0, 0, 10, 10, 0)
    session.note_sent("t", answer)
    sessions.go_on(session, row(0, 10)._replace(leader_epoch=1))
    assert not session.has_news("t", answer)
    sessions.go_on(session, row(0, 10)._replace(leader_epoch=2))
    assert session.has_news("t", answer)


# -- room ---------------------------------------------------------------------------


def test_no_slots_no_sessions() -> None:
    assert Sessions(0).all.resolve(head(0, 0, [row(0)]), False) == (None, False)


def test_a_full_cache_keeps_those_in_use() -> None:
    sessions = Sessions(3)
    for _ in range(3):
        sessions.open()
        sessions.clock.advance(1000)
    assert sessions.all.resolve(head(0, 0, [row(0)]), False) == (None, False)
    assert len(sessions.all) == 3


def test_the_longest_unused_goes_after_two_minutes() -> None:
    sessions = Sessions(2)
    first = sessions.open()
    sessions.clock.advance(1000)
    second = sessions.open()
    sessions.clock.advance(60_000)
    sessions.go_on(first)
    sessions.clock.advance(60_000)
    third = sessions.open()  # the second was last used 120 s ago
    assert sessions.refused(head(second.session_id, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.go_on(first)
    sessions.go_on(third)
    assert len(sessions.all) == 2


def test_partitions_of_all_sessions_are_counted(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "_MAX_PARTITIONS", 6)
    first = sessions.open(row(0), row(1), row(2))
    second = sessions.open(row(0))
    sessions.go_on(first, row(0, 5), row(3))  # four and one
    assert sessions.all.resolve(head(0, 0, [row(i) for i in range(5)]), False) == (None, False)
    sessions.go_on(first, forgotten=[("t", 0), ("t", 1)])
    sessions.go_on(second, row(1), row(2), row(3))  # two and four
    greedy = head(second.session_id, second.epoch, [row(4)])
    assert sessions.refused(greedy) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.open(*(row(i) for i in range(4)))  # its room is free again
    assert len(sessions.all) == 2


def test_ids_are_not_guessable_and_not_zero(sessions: Sessions) -> None:
    ids = {sessions.open().session_id for _ in range(10)}
    assert len(ids) == 10
    assert all(0 < session_id < LAST for session_id in ids)


# -- names and ids ------------------------------------------------------------------


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("rows", [[], [row(1)]], ids=["nothing new", "a row"])
def test_names_and_ids_do_not_mix(sessions: Sessions, by_id: bool, rows: list[FetchRow]) -> None:
    """A session by name cannot answer a version that has ids only, nor the other way."""
    topic: TopicRef = b"i" * 16 if by_id else "t"
    session = sessions.open(row(0, topic=topic), by_id=by_id)
    mixed = head(session.session_id, session.epoch, rows)
    assert sessions.refused(mixed, not by_id) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    sessions.go_on(session)  # nothing happened to it


def test_a_session_by_id(sessions: Sessions) -> None:
    topic = b"0123456789abcdef"
    session = sessions.open(row(0, topic=topic), by_id=True)
    session.note_sent(topic, Fetched(0, 0, 5, 5, 0))
    assert not session.has_news(topic, Fetched(0, 0, 5, 5, 0))
    sessions.go_on(session, forgotten=[(topic, 0)])
    assert session.partitions == {}
