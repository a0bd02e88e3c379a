"""Fetch: whole batches from an offset on, as file ranges.

Versions
    4     isolation level             12    flexible; last fetched epoch
    5     log start offset            13    topic ids instead of names
    7     incremental sessions        15    replica state in a tag
    9     leader epoch                16    node endpoints
    11    rack                        18    (follower's high watermark)

The reading and the waiting are in ``partition/reading.py``.  Followers of this release send
version 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.failures import code_of
from tidelog.broker.registry import raw_api
from tidelog.broker.request import Deferred, Request
from tidelog.partition.reading import Fetch
from tidelog.wire.hot import decode_fetch, encode_fetch_response
from tidelog.wire.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_FIRST_FROM_FOLLOWERS = 11
_FIRST_TOPIC_ID = 13


@raw_api(FetchRequest, versions=(4, 18), needs="READ TOPIC or CLUSTER_ACTION CLUSTER")
def fetch(broker: Broker, request: Request) -> None:
    """Read record batches; waits for new ones if asked to."""
    version, correlation_id = request.version, request.correlation_id
    message = decode_fetch(request.data, request.start, version)
    work = broker.reader.fetch(
        message, by_id=version >= _FIRST_TOPIC_ID, leader_only=version < _FIRST_FROM_FOLLOWERS
    )
    if work.read():
        answer = encode_fetch_response(version, correlation_id, 0, *work.answer())
        request.connection.reply(answer)  # type: ignore[arg-type]
    else:
        request.connection.park(_Deferred(request, work))


class _Deferred(Deferred):
    """The reply to a fetch that waits; the connection's next requests wait behind it."""

    __slots__ = ("_work",)

    def __init__(self, request: Request, work: Fetch) -> None:
        super().__init__(request, blocking=True)
        self._work = work
        work.wait(self._answer)

    def _answer(self) -> None:
        version, correlation_id = self.request.version, self.request.correlation_id
        try:
            answer = encode_fetch_response(version, correlation_id, 0, *self._work.answer())
        except Exception as error:
            code, _ = code_of(error, f"{self.connection.peer}: Fetch v{version}")
            answer = encode_fetch_response(version, correlation_id, code, 0, [])
        self.complete(answer)  # type: ignore[arg-type]

    def cancel(self) -> None:
        super().cancel()
        if self.chunks is None:
            self._work.cancel()
