"""Replies that a coordinator gives when it is ready, for handlers that take the frame.

Such a handler needs two things that an ordinary one does not get: the client id, from the
header of the request, and a place for its reply in the order of the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tidelog.broker.connection import Pending
from tidelog.broker.dispatch import Frame
from tidelog.wire.compiler import decoder
from tidelog.wire.frame import REQUEST_PREFIX, encode_response
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.schema import Message

log = logging.getLogger(__name__)

_LONGEST_CLIENT_ID = 1000  # it goes into records and answers, where a string has 32767 bytes

R = TypeVar("R", bound=Message)


def read_request(cls: type[R], frame: Frame) -> R:
    """The message of a frame."""
    if frame.start > len(frame.data):
        raise ProtocolError(f"{cls.__name__} v{frame.version} has no complete header")
    message, _ = decoder(cls, frame.version)(frame.data, frame.start)
    result: R = message
    return result


def client_id(frame: Frame) -> str:
    """What the client calls itself."""
    size = REQUEST_PREFIX.unpack_from(frame.data)[3]
    start = REQUEST_PREFIX.size
    return str(frame.data[start : start + max(size, 0)], "utf-8", "replace")[:_LONGEST_CLIENT_ID]


def reply_later(frame: Frame) -> Callable[[Message], None]:
    """Keep a place for the reply; requests behind it wait, as they do in Kafka."""
    connection, version, correlation_id = frame.connection, frame.version, frame.correlation_id
    pending = Pending(connection, blocking=True)
    connection.park(pending)

    def reply(message: Message) -> None:
        try:
            encoded = encode_response(message, version, correlation_id)
        except Exception:
            # A bug of ours.  The client must not wait for an answer that never comes.
            log.exception("%s v%d cannot be sent", type(message).__name__, version)
            connection.close("internal error")
            return
        pending.complete([encoded])

    return reply
