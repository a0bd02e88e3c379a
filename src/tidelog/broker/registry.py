"""The registry of APIs: what is served, in which versions, and by which handler.

A handler file declares itself:

    @api(DeleteTopicsRequest, versions=(1, 6), needs="DELETE TOPIC")
    async def delete_topics(broker, message, request): ...

Dispatch, the ApiVersions answer, the table in the docs and the test that every API is
tested all read the same registry.  A handler gets the decoded message and the request it came
with, and returns the answer, at once or as a coroutine; or None, and calls ``request.reply``
when the answer is known.  Produce and Fetch decode the frame by themselves (``@raw_api``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.broker.failures import failed_answer
from tidelog.broker.rights import Needs, parse_needs
from tidelog.errors import ErrorCode
from tidelog.wire.schema import Message

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import Request

Answer = Message | Coroutine[Any, Any, Message] | None
Handler = Callable[["Broker", Any, "Request"], Answer]
RawHandler = Callable[["Broker", "Request"], None]
# Makes the answer to a request that failed: message, version, code, text.  None if the client
# waits for none: it finds the connection closed.
Failed = Callable[[Any, int, ErrorCode, str | None], Message | None]
H = TypeVar("H", bound=Handler)
R = TypeVar("R", bound=RawHandler)

# A request is decoded at once, in the only thread.  A mebibyte of it takes some tenths of a
# second; only APIs that say ``large`` (Produce, JoinGroup and SyncGroup: mostly bytes, which are
# not looked into) go by socket.request.max.bytes.
MAX_REQUEST = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the registry."""

    key: int
    name: str
    versions: tuple[int, int]
    announce_from: int  # the lowest version that ApiVersions announces
    request: type[Message]
    response: type[Message]
    handler: Handler | None
    raw: RawHandler | None
    failed: Failed
    needs: Needs  # what the client must be allowed to do
    summary: str
    cached: bool  # an answer given at once is good until the cluster changes
    large: bool  # may be as long as socket.request.max.bytes allows
    large_answer: bool  # is encoded in a thread, so that others are served meanwhile


REGISTRY: dict[int, Api] = {}
# Flexible versions of the APIs that decode the frame by themselves: nearly all requests, and
# nearly all of them have no tags in the header.
HOT: dict[tuple[int, int], Api] = {}


def api(
    request: type[Message],
    versions: tuple[int, int],
    *,
    needs: str,
    failed: Failed | None = None,
    cached: bool = False,
    large: bool = False,
    large_answer: bool = False,
) -> Callable[[H], H]:
    """Declare the handler of an API.

    ``needs``: what the client must be allowed to do (``rights.py``).
    ``failed``: the answer when the handler raises, where it does not follow from the schema.

    ``cached``: an answer given at once (not as a coroutine) depends only on the request, on
    the cluster's metadata and on the address that the client used; it is kept as bytes.
    ``large_answer``: that of a coroutine may take tenths of a second to encode.
    """

    def register(handler: H) -> H:
        _add(
            request,
            versions,
            versions[0],
            needs=needs,
            handler=handler,
            failed=failed,
            cached=cached,
            large=large,
            large_answer=large_answer,
        )
        return handler

    return register


def raw_api(
    request: type[Message],
    versions: tuple[int, int],
    announce_from: int | None = None,
    *,
    needs: str,
    failed: Failed | None = None,
    large: bool = False,
) -> Callable[[R], R]:
    """Declare a handler that decodes the frame by itself."""

    def register(handler: R) -> R:
        lowest = versions[0] if announce_from is None else announce_from
        _add(request, versions, lowest, needs=needs, raw=handler, failed=failed, large=large)
        return handler

    return register


def _add(
    request: type[Message],
    versions: tuple[int, int],
    announce_from: int,
    *,
    needs: str,
    handler: Handler | None = None,
    raw: RawHandler | None = None,
    failed: Failed | None = None,
    cached: bool = False,
    large: bool = False,
    large_answer: bool = False,
) -> None:
    key = request.api_key
    assert key not in REGISTRY, f"API {key} is declared twice"
    name = request.__name__.removesuffix("Request")
    response: type[Message] = getattr(sys.modules[request.__module__], f"{name}Response")
    declared = Api(
        key=key,
        name=name,
        versions=versions,
        announce_from=announce_from,
        request=request,
        response=response,
        handler=handler,
        raw=raw,
        failed=failed or partial(failed_answer, response),
        needs=parse_needs(needs),
        summary=(inspect.getdoc(handler or raw) or "").partition("\n")[0],
        cached=cached,
        large=large,
        large_answer=large_answer,
    )
    REGISTRY[key] = declared
    if raw is not None:
        first = max(announce_from, request.flexible)
        HOT.update({(key, version): declared for version in range(first, versions[1] + 1)})


def too_large(start: memoryview, size: int) -> str:
    """Why a request that begins like this may not have ``size`` bytes; empty if it may."""
    if size <= MAX_REQUEST or len(start) < 2:
        return ""
    found = REGISTRY.get(int.from_bytes(start[:2], "big", signed=True))
    if found is None or found.large:
        return ""
    return f"a {found.name} request of {size} bytes is over {MAX_REQUEST}"
