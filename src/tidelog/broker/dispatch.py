"""The registry of APIs, and the way from a frame to its handler.

A handler file declares itself:

    @api(DeleteTopicsRequest, versions=(1, 6))
    async def delete_topics(broker, request, client): ...

Dispatch, the ApiVersions answer, the table in the docs and the test that every API is
tested all read the same registry.  A handler takes a decoded message and returns one,
at once or as a coroutine.  Produce and Fetch take the frame itself (``@raw_api``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidelog.broker.connection import Connection, Pending
from tidelog.wire.compiler import decoder
from tidelog.wire.frame import API_VERSIONS_KEY, REQUEST_PREFIX, encode_response, skip_tags
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.schema import Message

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

_unpack_prefix, _PREFIX_SIZE = REQUEST_PREFIX.unpack_from, REQUEST_PREFIX.size
_new_tuple = tuple.__new__  # half the time of Frame(...)
_CORRELATION = struct.Struct(">ii")  # frame size, correlation id

# A request is decoded at once, in the only thread.  A mebibyte of it takes some tenths of
# a second; only APIs that say ``large`` (mostly bytes) go by socket.request.max.bytes.
MAX_REQUEST = 1024 * 1024

# What a broker serves that has not heard from a controller: LeaderAndIsr, StopReplica,
# UpdateMetadata, ApiVersions.
_ORDERS = frozenset((4, 5, 6, API_VERSIONS_KEY))


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks, for handlers that need to know."""

    connection: Connection
    version: int


class Frame(NamedTuple):
    """A request as it came, for the handlers of the hot path."""

    connection: Connection
    data: memoryview
    start: int  # where the message begins, after the header
    version: int
    correlation_id: int


Handler = Callable[["Broker", Any, Client], Message | Coroutine[Any, Any, Message]]
RawHandler = Callable[["Broker", Frame], None]
Serve = Callable[[Connection, memoryview], None]
H = TypeVar("H", bound=Handler)
R = TypeVar("R", bound=RawHandler)


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the registry."""

    key: int
    name: str
    versions: tuple[int, int]
    announce_from: int  # the lowest version that ApiVersions announces
    request: type[Message]
    handler: Handler | None
    raw: RawHandler | None
    summary: str
    cached: bool  # an answer given at once is good until the cluster changes
    large: bool  # may be as long as socket.request.max.bytes allows
    large_answer: bool  # is encoded in a thread, so that others are served meanwhile


REGISTRY: dict[int, Api] = {}
# Flexible versions of the APIs that read the frame by themselves: nearly all requests, and
# nearly all of them have no tags in the header.
_HOT: dict[tuple[int, int], RawHandler] = {}


def api(
    request: type[Message],
    versions: tuple[int, int],
    *,
    cached: bool = False,
    large_answer: bool = False,
) -> Callable[[H], H]:
    """Declare the handler of an API.

    ``cached``: an answer given at once (not as a coroutine) depends only on the request, on
    the cluster's metadata and on the address that the client used; it is kept as bytes.
    ``large_answer``: that of a coroutine may take tenths of a second to encode.
    """

    def register(handler: H) -> H:
        _add(
            request,
            versions,
            versions[0],
            handler=handler,
            cached=cached,
            large_answer=large_answer,
        )
        return handler

    return register


def raw_api(
    request: type[Message],
    versions: tuple[int, int],
    announce_from: int | None = None,
    *,
    large: bool = False,
) -> Callable[[R], R]:
    """Declare a handler that reads the frame by itself."""

    def register(handler: R) -> R:
        lowest = versions[0] if announce_from is None else announce_from
        _add(request, versions, lowest, raw=handler, large=large)
        return handler

    return register


def _add(
    request: type[Message],
    versions: tuple[int, int],
    announce_from: int,
    *,
    handler: Handler | None = None,
    raw: RawHandler | None = None,
    cached: bool = False,
    large: bool = False,
    large_answer: bool = False,
) -> None:
    key = request.api_key
    assert key not in REGISTRY, f"API {key} is declared twice"
    name = request.__name__.removesuffix("Request")
    summary = (inspect.getdoc(handler or raw) or "").partition("\n")[0]
    if raw is not None:
        first = max(announce_from, request.flexible)
        _HOT.update({(key, version): raw for version in range(first, versions[1] + 1)})
    REGISTRY[key] = Api(
        key=key,
        name=name,
        versions=versions,
        announce_from=announce_from,
        request=request,
        handler=handler,
        raw=raw,
        summary=summary,
        cached=cached,
        large=large,
        large_answer=large_answer,
    )


def too_large(start: memoryview, size: int) -> str:
    """Why a request that begins like this may not have ``size`` bytes; empty if it may."""
    if size <= MAX_REQUEST or len(start) < 2:
        return ""
    found = REGISTRY.get(int.from_bytes(start[:2], "big", signed=True))
    if found is None or found.large:
        return ""
    return f"a {found.name} request of {size} bytes is over {MAX_REQUEST}"


def only_orders(serve: Serve, connection: Connection, data: memoryview) -> None:
    """Serve the controller of the cluster; clients find the connection closed and try others."""
    if int.from_bytes(data[:2], "big", signed=True) in _ORDERS:
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
    raw = _HOT.get((key, version))
    if raw is not None and start < len(data) and data[start] == 0:
        raw(broker, _new_tuple(Frame, (connection, data, start + 1, version, correlation_id)))
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
    if found.raw is not None:
        values = (connection, data, start, version, correlation_id)
        found.raw(broker, _new_tuple(Frame, values))
        return
    assert found.handler is not None
    if start > len(data):
        raise ProtocolError(f"{found.name} v{version} has no complete header")
    cache_key = None
    if found.cached:
        address = (connection.local_host, connection.local_port)
        cache_key = (key, version, address, bytes(data[start:]))
        known = broker.answers.get(cache_key)
        if known is not None:
            connection.reply([_CORRELATION.pack(len(known) + 4, correlation_id), known])
            return
    client = Client(connection, version)
    message, _ = decoder(found.request, version)(data, start)
    answer = found.handler(broker, message, client)
    if isinstance(answer, Message):
        encoded = encode_response(answer, version, correlation_id)
        if cache_key is not None:
            broker.keep_answer(cache_key, encoded[8:], len(data) + len(encoded))
        connection.reply([encoded])
        return
    pending = Pending(connection, blocking=True)
    connection.park(pending)
    task = broker.spawn(_answer_later(answer, pending, found, version, correlation_id))
    # If we stop before the task has begun, nobody has awaited the answer.
    task.add_done_callback(lambda _: answer.close())


async def _answer_later(
    answer: Coroutine[Any, Any, Message],
    pending: Pending,
    found: Api,
    version: int,
    correlation_id: int,
) -> None:
    try:
        message = await answer
        if found.large_answer:
            encoded = await asyncio.to_thread(encode_response, message, version, correlation_id)
        else:
            encoded = encode_response(message, version, correlation_id)
    except Exception:
        # A handler turns what it expects into codes; this is a bug of ours.
        log.exception("%s v%d failed", found.name, version)
        pending.connection.close("internal error")
        return
    pending.complete([encoded])
