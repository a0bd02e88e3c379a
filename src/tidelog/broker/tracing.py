"""What ``tidelog up -v`` tells about clients: who comes, what for, and when it leaves.

    127.0.0.1:41234: connected
    127.0.0.1:41234 (rdkafka): Produce v10: searches

A line for each API and its topics the first time that a connection uses them: not one for
each request, which nobody could read.  Only with -v does a request come through here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tidelog.broker.dispatch import REGISTRY
from tidelog.wire.compiler import decoder
from tidelog.wire.frame import REQUEST_PREFIX, skip_tags

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.connection import Connection

log = logging.getLogger(__name__)

Dispatch = Callable[["Connection", memoryview], None]

_SHOWN_TOPICS = 5


def traced(dispatch: Dispatch, broker: Broker) -> Dispatch:
    """The same dispatcher, with a line for what a connection does for the first time."""
    told: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()

    def trace(connection: Connection, data: memoryview) -> None:
        try:
            line = _line(broker, data)
        except Exception:
            line = ""  # the dispatcher says what is wrong with it
        if line and line not in told.setdefault(connection, set()):
            told[connection].add(line)
            log.debug("%s %s", connection.peer, line)
        dispatch(connection, data)

    return trace


def _line(broker: Broker, data: memoryview) -> str:
    """``(client id): API version: topics``."""
    key, version, _, size = REQUEST_PREFIX.unpack_from(data)
    api, start = REGISTRY[key], REQUEST_PREFIX.size
    client_id = bytes(data[start : start + max(size, 0)]).decode("utf-8", "replace")
    start += max(size, 0)
    if version >= api.request.flexible:
        start = skip_tags(data, start)
    message, _ = decoder(api.request, version)(data, start)
    names = sorted({_name(broker, row) for row in _topics(message)})
    shown = ", ".join(names[:_SHOWN_TOPICS])
    if len(names) > _SHOWN_TOPICS:
        shown += f" and {len(names) - _SHOWN_TOPICS} more"
    software = getattr(message, "client_software_name", "")
    if software:
        shown = f"{software} {message.client_software_version}"
    return f"({client_id}): {api.name} v{version}" + (f": {shown}" if shown else "")


def _topics(message: Any) -> list[Any]:
    """The part of a request that names topics."""
    for name in ("topic_data", "topics", "topic_names", "topic_partitions"):
        rows = getattr(message, name, None)
        if rows:
            return list(rows)
    return []


def _name(broker: Broker, row: Any) -> str:
    if isinstance(row, str):
        return row
    name = getattr(row, "name", None) or getattr(row, "topic", None)
    if not name:  # newer versions name a topic by its id
        known = broker.metadata.topic_by_id(row.topic_id)
        name = known.name if known else "a topic that is not there"
    return str(name)
