"""A connection to another broker, whose address comes from the network."""

from __future__ import annotations

import pytest

from tidelog.client.connection import BrokerUnreachable
from tidelog.client.peer import Peer
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 65536), ("127.0.0.1", -1), ("a\0b", 1), ("a" * 300, 1)]
)
async def test_an_address_that_cannot_be(host: str, port: int) -> None:
    """As if the broker were down: no error of ours, and no traceback."""
    peer = Peer(host, port, "test", 1000)
    with pytest.raises(BrokerUnreachable):
        await peer.request(MetadataRequest(topics=[]), MetadataResponse, 9)
