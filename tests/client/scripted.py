"""A broker that answers as a test says: real sockets and real frames, and nothing behind them.

    with ScriptedBroker() as broker:
        broker.on(ListOffsetsRequest, refused, answer)

The first ListOffsets gets ``refused``, every later one ``answer``.  An answer is a message, or a
function that makes one from the request (and may wait for something before that).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tidelog.wire.compiler import decoder
from tidelog.wire.frame import REQUEST_PREFIX, encode_response, skip_tags
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.schema import Message

Answer = Message | Callable[[Any], Message]


class ScriptedBroker:
    """See the module."""

    def __init__(self, broker_id: int = 0) -> None:
        self.broker_id = broker_id
        self.asked: dict[type[Message], list[Any]] = defaultdict(list)
        self._script: dict[type[Message], list[Answer]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def on(self, request: type[Message], *answers: Answer) -> None:
        """What to answer, in this order; the last one stays."""
        self._script[request] = list(answers)

    def __enter__(self) -> ScriptedBroker:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the test is over
            while True:
                peer = self._listener.accept()[0]
                self._open.append(peer)
                thread = threading.Thread(target=self._serve, args=(peer,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            while size := peer.recv(4, socket.MSG_WAITALL):
                frame = peer.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
                peer.sendall(self._answer(frame))

    def _answer(self, frame: bytes) -> bytes:
        key, version, correlation_id, client_size = REQUEST_PREFIX.unpack_from(frame)
        kinds = {kind.api_key: kind for kind in self._kinds()}
        kind, start = kinds[key], REQUEST_PREFIX.size + max(client_size, 0)
        if version >= kind.flexible:
            start = skip_tags(frame, start)
        request, _ = decoder(kind, version)(memoryview(frame), start)
        self.asked[kind].append(request)
        if kind is ApiVersionsRequest:
            return encode_response(self._versions(), version, correlation_id)
        answers = self._script[kind]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        message = answer if isinstance(answer, Message) else answer(request)
        return encode_response(message, version, correlation_id)

    def _kinds(self) -> list[type[Message]]:
        return [ApiVersionsRequest, *self._script]

    def _versions(self) -> ApiVersionsResponse:
        rows = [
            ApiVersion(
                api_key=kind.api_key, min_version=kind.versions[0], max_version=kind.versions[1]
            )
            for kind in self._kinds()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=rows)


def metadata(
    *brokers: ScriptedBroker, controller: int = 0, leaders: dict[str, list[int]] | None = None
) -> MetadataResponse:
    """These brokers, and topics with the leader of each partition (-1: there is none)."""
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=b.broker_id, host="127.0.0.1", port=b.port)
            for b in brokers
        ],
        controller_id=controller,
        topics=[
            MetadataResponseTopic(
                error_code=0,
                name=name,
                topic_id=name.encode().ljust(16, b"\1"),
                partitions=[
                    MetadataResponsePartition(
                        error_code=0,
                        partition_index=i,
                        leader_id=leader,
                        replica_nodes=[b.broker_id for b in brokers],
                        isr_nodes=[b.broker_id for b in brokers],
                    )
                    for i, leader in enumerate(row)
                ],
            )
            for name, row in (leaders or {}).items()
        ],
    )


def tell(brokers: list[ScriptedBroker], *answers: MetadataResponse) -> None:
    """All of these brokers answer Metadata alike, one answer after the other."""
    left = list(answers)

    def answer(_request: MetadataRequest) -> MetadataResponse:
        return left.pop(0) if len(left) > 1 else left[0]

    for broker in brokers:
        broker.on(MetadataRequest, answer)
