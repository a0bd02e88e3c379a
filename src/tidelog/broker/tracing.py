"""What ``tidelog up -v`` tells about clients: who comes, what for, and when it leaves.

    127.0.0.1:41234: connected
    127.0.0.1:41234 (rdkafka): Produce v10: searches

A line for each API and its topics the first time that a connection uses them: not one for
each request, too much to read.  Only with -v does a request come through here.

What a client sends is in these lines, so they are bounded, and of printable characters only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tidelog.broker.registry import REGISTRY
from tidelog.wire.compiler import decoder
from tidelog.wire.frame import REQUEST_PREFIX, skip_tags
from tidelog.wire.hot import TopicRef, decode_produce
from tidelog.wire.messages.produce import ProduceRequest

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.connection import Connection

log = logging.getLogger(__name__)

Dispatch = Callable[["Connection", memoryview], None]

_SHOWN_TOPICS = 5
_SHOWN_NAME = 249  # characters: the longest name of a topic
_MOST_LINES = 200  # of one connection


def traced(dispatch: Dispatch, broker: Broker) -> Dispatch:
    """The same dispatcher, with a line for what a connection does for the first time."""
    told: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()

    def trace(connection: Connection, data: memoryview) -> None:
        try:
            line = _line(broker, data)
        except Exception:
            line = ""  # the dispatcher says what is wrong with it
        lines = told.setdefault(connection, set())
        if line and line not in lines and len(lines) < _MOST_LINES:
            lines.add(line)
            log.debug("%s %s", connection.peer, line)
        dispatch(connection, data)

    return trace


def _line(broker: Broker, data: memoryview) -> str:
    """``(client id): API version: topics``."""
    key, version, _, size = REQUEST_PREFIX.unpack_from(data)
    api, start = REGISTRY[key], REQUEST_PREFIX.size
    low, high = api.versions
    if not low <= version <= high:
        return ""
    client_id = printable(bytes(data[start : start + max(size, 0)]).decode("utf-8", "replace"))
    start += max(size, 0)
    if version >= api.request.flexible:
        start = skip_tags(data, start)
    message = None
    rows: list[Any]
    if api.request is ProduceRequest:  # without its records
        rows = [topic for topic, _ in decode_produce(data, start, version)[3]]
    else:
        message, _ = decoder(api.request, version)(data, start)
        rows = _topics(message)
    names = sorted({printable(_name(broker, row)) for row in rows})
    shown = ", ".join(names[:_SHOWN_TOPICS])
    if len(names) > _SHOWN_TOPICS:
        shown += f" and {len(names) - _SHOWN_TOPICS} more"
    software = getattr(message, "client_software_name", "")
    if software:
        shown = printable(f"{software} {getattr(message, 'client_software_version', '')}")
    return f"({client_id}): {api.name} v{version}" + (f": {shown}" if shown else "")


def _topics(message: Any) -> list[Any]:
    """The part of a request that names topics."""
    for name in ("topics", "topic_names", "topic_partitions"):
        rows = getattr(message, name, None)
        if rows:
            return list(rows)
    return []


def _name(broker: Broker, row: Any) -> str:
    if isinstance(row, (str, bytes)):
        ref: TopicRef = row
    else:
        ref = getattr(row, "name", None) or getattr(row, "topic", None) or row.topic_id
    if isinstance(ref, str):
        return ref
    known = broker.metadata.topic_by_id(ref)  # newer versions name a topic by its id
    return known.name if known else "a topic that is not there"


def printable(text: str) -> str:
    """What a client calls itself or something, fit for a line of the log."""
    return "".join(c if c.isprintable() else "?" for c in text[:_SHOWN_NAME])
