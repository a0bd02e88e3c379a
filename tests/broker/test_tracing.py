"""What -v tells about clients, and that it does not make a broker weaker."""

import logging

import pytest

from tidelog.broker import broker as _registered  # noqa: F401  (the handlers)
from tidelog.broker.tracing import traced
from tidelog.wire import compiler
from tidelog.wire.frame import encode_request
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import ProduceRequest, TopicProduceData


class Peer:
    peer = "127.0.0.1:41234"


@pytest.fixture
def trace(caplog):
    """Sends a request through the tracer; returns the lines so far."""
    caplog.set_level(logging.DEBUG, "tidelog.broker.tracing")
    served = []
    dispatch = traced(lambda connection, data: served.append(data), None)
    peer = Peer()

    def send(request):
        before = len(served)
        dispatch(peer, memoryview(request)[4:])
        assert len(served) == before + 1, "whatever it is, the dispatcher decides"
        return caplog.messages

    return send


def test_a_line_is_one_line(trace):
    request = encode_request(MetadataRequest(topics=[]), 9, 1, "evil\n12:00:00 ERROR")
    assert trace(request) == ["127.0.0.1:41234 (evil?12:00:00 ERROR): Metadata v9"]


def test_a_produce_is_shown_once_by_its_topic(trace):
    message = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=1,
        topic_data=[TopicProduceData(name="tides", partition_data=[])],
    )
    for number in range(3):
        lines = trace(encode_request(message, 9, number, "c"))
    assert lines == ["127.0.0.1:41234 (c): Produce v9: tides"]


def test_versions_that_are_not_served_cost_nothing(trace):
    request = bytearray(encode_request(MetadataRequest(topics=[]), 9, 1, "c"))
    known = len(compiler._decoders)
    for version in range(100, 120):
        request[6:8] = version.to_bytes(2, "big")
        assert trace(bytes(request)) == []
    assert len(compiler._decoders) == known


def test_what_a_connection_can_say_is_bounded(trace):
    for number in range(1000):
        names = DeleteTopicsRequest(topic_names=[f"t{number}"], timeout_ms=1)
        lines = trace(encode_request(names, 4, number, "c"))
    assert 100 <= len(lines) < 1000
