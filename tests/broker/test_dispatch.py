"""A bug of ours in a handler: the client is not left waiting for an answer."""

import asyncio
from dataclasses import replace

import pytest
from support.raw_client import RawClient

from tidelog.broker.broker import Broker
from tidelog.broker.registry import REGISTRY
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse


def at_once(broker, message, request):
    raise RuntimeError("a bug")


async def later(broker, message, request):
    await asyncio.sleep(0)
    raise RuntimeError("a bug")


async def not_an_answer(broker, message, request):
    return MetadataResponse(brokers=[], topics="a bug")


@pytest.mark.parametrize("handler", [at_once, later, not_an_answer])
def test_a_handler_that_fails_hangs_up(tmp_path, monkeypatch, caplog, handler):
    key = ListGroupsRequest.api_key
    monkeypatch.setitem(REGISTRY, key, replace(REGISTRY[key], handler=handler))

    def ask(port):
        with RawClient(port) as client, RawClient(port) as other:
            client.send(ListGroupsRequest(), 4)
            assert client.hung_up()
            assert other.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers

    async def run():
        settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
        async with Broker(settings) as broker:
            await asyncio.to_thread(ask, broker.port)

    asyncio.run(run())
    assert any(record.exc_info for record in caplog.records), "with its traceback"
