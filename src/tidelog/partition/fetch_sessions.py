"""Incremental fetch sessions (KIP-227): requests and answers name only what has changed.

No I/O, and the time is injected.  A client opens a session with epoch 0 and
all its partitions; then each request carries the next epoch and only the partitions
that are new, moved or forgotten, and each response only those with news.

    session id, epoch     meaning
    any, -1               no session (and close the one named)
    any, 0                open a session (and close the one named)
    id, n > 0             go on; n must be the epoch we expect
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog import ids
from tidelog.clock import Clock
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.hot import Fetched, FetchHead, FetchRow, TopicRef

_EVICT_AFTER_S = 120.0
_MAX_EPOCH = 2**31 - 1
_MAX_PARTITIONS = 200_000  # partitions of all sessions together; about 50 MB

Key = tuple[TopicRef, int]


@dataclass(slots=True)
class FetchSession:
    """What one client reads, in the order in which it is served."""

    session_id: int
    by_id: bool  # topics are named by id
    epoch: int = 1
    last_used: float = 0.0
    partitions: dict[Key, FetchRow] = field(default_factory=dict)
    sent: dict[Key, tuple[int, int]] = field(default_factory=dict)  # high watermark, log start

    def update(self, request: FetchHead) -> None:
        for wanted in request.rows:
            key = (wanted.topic, wanted.partition)
            before = self.partitions.get(key)
            if before is not None and before.leader_epoch != wanted.leader_epoch:
                # A follower takes no answer from before the new epoch: send it all again.
                self.sent.pop(key, None)
            self.partitions[key] = wanted
        for key in request.forgotten:
            self.partitions.pop(key, None)
            self.sent.pop(key, None)

    def has_news(self, topic: TopicRef, answer: Fetched) -> bool:
        """Is there anything in this answer that the client does not know?"""
        if answer.error or answer.records is not None or answer.tags != b"\0":
            return True
        known = self.sent.get((topic, answer.partition))
        return known != (answer.high_watermark, answer.log_start_offset)

    def note_sent(self, topic: TopicRef, answer: Fetched) -> None:
        """The answer is sent; a partition with records goes to the end of the queue."""
        key = (topic, answer.partition)
        if answer.error:
            self.sent.pop(key, None)  # an error is sent until it is gone
            return
        self.sent[key] = (answer.high_watermark, answer.log_start_offset)
        if answer.records is not None and (wanted := self.partitions.pop(key, None)):
            self.partitions[key] = wanted


class FetchSessions:
    """All sessions of a broker, at most ``slots`` of them."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0  # of all sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchHead, by_id: bool) -> tuple[FetchSession | None, bool]:
        """The session of a request, and whether its answer is incremental."""
        if request.session_epoch <= 0:
            self.close(request.session_id)
            if request.session_epoch < 0:
                return None, False
            return self._open(request, by_id), False
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:  # its topics have no place in an answer of this version
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._partitions -= len(session.partitions)
        session.update(request)
        self._partitions += len(session.partitions)
        if self._partitions > _MAX_PARTITIONS:
            self.close(session.session_id)  # the client opens a new one
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        session.last_used = self._clock.monotonic()
        return session, True

    def _open(self, request: FetchHead, by_id: bool) -> FetchSession | None:
        """A new session, or None if the cache is full of sessions in use."""
        if not request.rows or not self._make_room(len(request.rows)):
            return None
        session_id = ids.number(1, _MAX_EPOCH)
        while session_id in self._sessions:
            session_id = ids.number(1, _MAX_EPOCH)
        session = FetchSession(session_id, by_id, last_used=self._clock.monotonic())
        session.update(request)
        self._sessions[session_id] = session
        self._partitions += len(session.partitions)
        return session

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

    def _make_room(self, partitions: int) -> bool:
        if len(self._sessions) < self._slots and self._partitions + partitions <= _MAX_PARTITIONS:
            return True
        if not self._sessions:
            return False
        oldest = min(self._sessions.values(), key=lambda s: s.last_used)
        if self._clock.monotonic() - oldest.last_used < _EVICT_AFTER_S:
            return False
        self.close(oldest.session_id)
        return self._partitions + partitions <= _MAX_PARTITIONS
