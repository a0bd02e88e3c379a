"""The way from a frame to its handler, and from there to the answer."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tidelog.broker.connection import Connection
from tidelog.broker.registry import HOT, REGISTRY
from tidelog.broker.request import Request
from tidelog.wire.compiler import decoder
from tidelog.wire.frame import API_VERSIONS_KEY, REQUEST_PREFIX, encode_response, skip_tags
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.schema import Message

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

_unpack_prefix, _PREFIX_SIZE = REQUEST_PREFIX.unpack_from, REQUEST_PREFIX.size
_CORRELATION = struct.Struct(">ii")  # frame size, correlation id

# What a broker serves that has no metadata from a controller yet: LeaderAndIsr, StopReplica,
# UpdateMetadata, ApiVersions.
_CONTROLLER_REQUESTS = frozenset((4, 5, 6, API_VERSIONS_KEY))

Serve = Callable[[Connection, memoryview], None]


def only_controller_requests(serve: Serve, connection: Connection, data: memoryview) -> None:
    """Serve the controller of the cluster; clients find the connection closed and try others."""
    if int.from_bytes(data[:2], "big", signed=True) in _CONTROLLER_REQUESTS:
        serve(connection, data)
    else:
        connection.hang_up("not a member of the cluster yet")


def dispatch(broker: Broker, connection: Connection, data: memoryview) -> None:
    """Serve one frame.  Raises ProtocolError if it is not a request we understand."""
    try:
        key, version, correlation_id, client_size = _unpack_prefix(data)
    except struct.error:
        raise ProtocolError(f"a request of {len(data)} bytes has no header") from None
    start = _PREFIX_SIZE + client_size if client_size > 0 else _PREFIX_SIZE
    hot = HOT.get((key, version))
    if hot is not None and start < len(data) and data[start] == 0:
        hot.raw(broker, Request(connection, hot, version, correlation_id, data, start + 1))  # type: ignore[misc]
        return
    found = REGISTRY.get(key)
    if found is None:
        raise ProtocolError(f"there is no API with key {key}")
    if version > found.versions[1] or version < found.announce_from:
        if key != API_VERSIONS_KEY:
            low, high = found.versions
            raise ProtocolError(f"{found.name} v{version} is not served, only v{low} to v{high}")
    elif version >= found.request.flexible:
        try:
            start = skip_tags(data, start)
        except IndexError:
            raise ProtocolError(f"{found.name} v{version} has no complete header") from None
    if start > len(data):
        raise ProtocolError(f"{found.name} v{version} has no complete header")
    request = Request(connection, found, version, correlation_id, data, start)
    if found.raw is not None:
        found.raw(broker, request)
        return
    assert found.handler is not None
    cache_key = None
    if found.cached:
        address = (connection.local_host, connection.local_port)
        cache_key = (key, version, address, bytes(data[start:]))
        known = broker.answers.get(cache_key)
        if known is not None:
            request.send([_CORRELATION.pack(len(known) + 4, correlation_id), known])
            return
    message, _ = decoder(found.request, version)(data, start)
    answer = found.handler(broker, message, request)
    if isinstance(answer, Message):
        encoded = encode_response(answer, version, correlation_id)
        if cache_key is not None:
            broker.keep_answer(cache_key, encoded[8:], len(data) + len(encoded))
        request.send([encoded])
    elif answer is not None:
        request.defer()
        task = broker.spawn(_answer_later(answer, request))
        # If we stop before the task has begun, the answer was never awaited.
        task.add_done_callback(lambda _: answer.close())
    elif not request.answered:
        request.defer()


async def _answer_later(answer: Coroutine[Any, Any, Message], request: Request) -> None:
    try:
        message = await answer
        args = message, request.version, request.correlation_id
        if request.api.large_answer:
            encoded = await asyncio.to_thread(encode_response, *args)
        else:
            encoded = encode_response(*args)
    except Exception:
        # A handler turns what it expects into codes; this is a bug of ours.
        log.exception("%s v%d failed", request.api.name, request.version)
        request.connection.close("internal error")
        return
    request.send([encoded])
