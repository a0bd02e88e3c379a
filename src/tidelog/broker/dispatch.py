"""The way from a frame to its handler, and from there to the answer.

An exception of a handler becomes an answer here: the message's own, with the code
(``Request.fail``).  Handlers raise; only what fails for one row of a request
(``failures.failed_row``), or after the request was deferred, is theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tidelog import workers
from tidelog.broker.connection import Connection
from tidelog.broker.failures import code_of
from tidelog.broker.registry import HOT, REGISTRY, Api
from tidelog.broker.request import Request
from tidelog.broker.request_stats import ApiStats
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.compiler import decoder
from tidelog.wire.frame import API_VERSIONS_KEY, REQUEST_PREFIX, encode_response, skip_tags
from tidelog.wire.primitives import ProtocolError
from tidelog.wire.schema import Message

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

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


class Dispatcher:
    """Serves the frames of a broker's clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._now = broker.clock.monotonic
        self.stats = {key: ApiStats(broker.clock) for key in REGISTRY}

    def serve(self, connection: Connection, data: memoryview) -> None:
        """Serve one frame.  Raises ProtocolError if it is not a request we understand."""
        arrived = self._now()
        try:
            key, version, correlation_id, client_size = _unpack_prefix(data)
        except struct.error:
            raise ProtocolError(f"a request of {len(data)} bytes has no header") from None
        start = _PREFIX_SIZE + client_size if client_size > 0 else _PREFIX_SIZE
        api = HOT.get((key, version))
        served = True
        if api is not None and start < len(data) and data[start] == 0:
            start += 1
        else:
            api = REGISTRY.get(key)
            if api is None:
                raise ProtocolError(f"there is no API with key {key}")
            served = api.announce_from <= version <= api.versions[1]
            if served:
                start = _message_start(api, version, data, start)
            elif key == API_VERSIONS_KEY:
                version = 0  # every client can read that
            else:
                low, high = api.versions
                raise ProtocolError(f"{api.name} v{version} is not served, only v{low} to v{high}")
        stats = self.stats[key]
        request = Request(connection, api, version, correlation_id, data, start, stats, arrived)
        if api.raw is not None:
            try:
                api.raw(self._broker, request)
            except ProtocolError:
                raise  # it cannot be decoded
            except Exception as error:
                request.message, _ = decoder(api.request, version)(data, start)
                request.fail(error)
        elif served:
            self._serve(request)
        else:
            request.message = api.request()
            request.fail(ApiError(ErrorCode.UNSUPPORTED_VERSION))
        if not request.deferred:
            stats.served(arrived)

    def _serve(self, request: Request) -> None:
        """Serve an API whose handler gets the decoded message."""
        broker, api, data = self._broker, request.api, request.data
        version, correlation_id = request.version, request.correlation_id
        cache_key = None
        if api.cached:
            connection = request.connection
            address = (connection.local_host, connection.local_port)
            cache_key = (api.key, version, address, bytes(data[request.start :]))
            known = broker.answers.get(cache_key)
            if known is not None:
                request.send([_CORRELATION.pack(len(known) + 4, correlation_id), known])
                return
        message, _ = decoder(api.request, version)(data, request.start)
        request.message = message
        try:
            answer = api.handler(broker, message, request)  # type: ignore[misc]
            if isinstance(answer, Message):
                if cache_key is None:
                    request.reply(answer)
                else:
                    encoded = encode_response(answer, version, correlation_id)
                    broker.keep_answer(cache_key, encoded[8:], len(data) + len(encoded))
                    request.send([encoded])
                return
        except Exception as error:
            request.fail(error)
            return
        if answer is not None:
            request.defer()
            task = broker.spawn(_answer_later(answer, request))
            # If we stop before the task has begun, the answer was never awaited.
            task.add_done_callback(lambda _: answer.close())
        elif not request.answered:
            request.defer()
            request.message = api.request()  # it may be large, and only an encoder can fail now


def _message_start(api: Api, version: int, data: memoryview, start: int) -> int:
    """Where the message begins, after the tags of the header."""
    try:
        if version >= api.request.flexible:
            start = skip_tags(data, start)
    except IndexError:
        start = len(data) + 1
    if start > len(data):
        raise ProtocolError(f"{api.name} v{version} has no complete header")
    return start


async def _answer_later(answer: Coroutine[Any, Any, Message], request: Request) -> None:
    try:
        message = await answer
        if request.api.large_answer:
            arguments = message, request.version, request.correlation_id
            request.send([await workers.run(encode_response, *arguments)])
        else:
            request.reply(message)
    except Exception as error:
        request.fail(error)


async def serve_own(broker: Broker, message: Message, version: int) -> Message:
    """The answer to a request of this broker to itself."""
    api = REGISTRY[message.api_key]
    stats, arrived = broker.server.request_stats[api.key], broker.clock.monotonic()
    request = Request.local(api, version, stats, arrived)
    try:
        answer = api.handler(broker, message, request)  # type: ignore[misc]
        assert answer is not None, "an API that brokers use answers by itself"
        return answer if isinstance(answer, Message) else await answer
    except Exception as error:
        failed = api.failed(message, version, *code_of(error, api.name))
        assert failed is not None
        return failed
    finally:
        stats.served(arrived)
