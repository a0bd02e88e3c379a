"""Every API of the registry answers in every version that it announces."""

import importlib

import pytest
from support import request_samples
from support.raw_client import RawClient, batch_of
from support.request_samples import CASES, SAMPLES, TOPIC, sample_describe_topic_partitions

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.messages import describe_topic_partitions, offset_commit
from tidelog.wire.messages.find_coordinator import FindCoordinatorResponse


@pytest.fixture(scope="module")
def client():
    with LocalBroker() as broker, RawClient(broker.port) as connected:
        request_samples.TOPIC_ID = connected.create_topic(TOPIC, partitions=2)
        connected.produce(TOPIC, batch_of(b"a", b"b", b"c"))
        connected.call(SAMPLES[10](4), FindCoordinatorResponse, 4)  # makes __consumer_offsets
        connected.call(SAMPLES[8](9), offset_commit.OffsetCommitResponse, 9)
        yield connected


def test_java_cannot_read_null_eligible_leaders(client):
    answer = client.call(
        sample_describe_topic_partitions(0),
        describe_topic_partitions.DescribeTopicPartitionsResponse,
        0,
    )
    for row in answer.topics[0].partitions:
        assert (row.eligible_leader_replicas, row.last_known_elr) == ([], [])


def errors_in(message):
    """Every error code anywhere in an answer."""
    for name in message._fields:
        value = getattr(message, name)
        if name == "error_code":
            yield value
        elif isinstance(value, list):
            for item in value:
                if hasattr(item, "_fields"):
                    yield from errors_in(item)


@pytest.mark.parametrize(("key", "version"), CASES)
def test_it_answers(client, key, version):
    request = SAMPLES[key](version)
    module = importlib.import_module(type(request).__module__)
    response = getattr(module, type(request).__name__.replace("Request", "Response"))
    answer = client.call(request, response, version)
    expected = {
        # A broker alone is its own controller, and takes no orders.
        4: {ErrorCode.STALE_CONTROLLER_EPOCH},
        5: {ErrorCode.STALE_CONTROLLER_EPOCH},
        6: {ErrorCode.STALE_CONTROLLER_EPOCH},
        7: {ErrorCode.NOT_CONTROLLER},
        56: {ErrorCode.NOT_CONTROLLER},
        11: {0, ErrorCode.MEMBER_ID_REQUIRED},
        12: {ErrorCode.UNKNOWN_MEMBER_ID},
        13: {0, ErrorCode.UNKNOWN_MEMBER_ID},
        14: {ErrorCode.UNKNOWN_MEMBER_ID},
        29: {ErrorCode.SECURITY_DISABLED},
        42: {ErrorCode.GROUP_ID_NOT_FOUND},
        20: {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert set(errors_in(answer)) <= expected.get(key, {0})
