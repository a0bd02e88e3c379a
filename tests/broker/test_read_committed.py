"""Isolation levels, on a log with transactions in it."""

import pytest
from support.log import NOW, append, open_in
from support.raw_client import RawClient, batch_of, values_of

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.batch import TRANSACTIONAL
from tidelog.wire.markers import Marker, encode_marker
from tidelog.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidelog.wire.messages.fetch import AbortedTransaction
from tidelog.wire.records import encode_batch

LATEST, NEWEST = -1, -3


def in_transaction(producer_id, value, sequence=0):
    return encode_batch(
        [(NOW, None, value, ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """Offsets: 0 aborted, 1 plain, 2 marker, 3 committed, 4 marker, 5 open, 6 plain."""
    data = tmp_path_factory.mktemp("data")
    log = open_in(data / "t-0")
    append(log, in_transaction(1, b"aborted"))
    append(log, batch_of(b"plain", timestamp=NOW))
    append(log, encode_marker(Marker(False, 0), 1, 0, NOW))
    append(log, in_transaction(2, b"committed"))
    append(log, encode_marker(Marker(True, 0), 2, 0, NOW))
    append(log, in_transaction(3, b"open"))
    append(log, batch_of(b"after", timestamp=NOW + 5))
    log.close()
    with LocalBroker({"log.retention.ms": -1}, data=data) as running:
        yield running


def offsets(part):
    return [offset for offset, _ in values_of(part.records)]


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch(client, version):
    (part,) = client.fetch(("t", 0, 0), version=version)
    assert offsets(part) == [0, 1, 2, 3, 4, 5, 6]
    assert (part.high_watermark, part.last_stable_offset) == (7, 5)
    assert part.aborted_transactions is None
    (part,) = client.fetch(("t", 0, 0), version=version, isolation_level=1)
    assert offsets(part) == [0, 1, 2, 3, 4]
    assert (part.high_watermark, part.last_stable_offset) == (7, 5)
    assert part.aborted_transactions == [AbortedTransaction(producer_id=1, first_offset=0)]


def test_fetch_after_the_aborted_one(client):
    (part,) = client.fetch(("t", 0, 3), isolation_level=1)
    assert offsets(part) == [3, 4]
    assert part.aborted_transactions == []


@pytest.mark.parametrize("offset", [5, 6, 7])
def test_fetch_at_the_open_one(client, offset):
    (part,) = client.fetch(("t", 0, offset), isolation_level=1)
    assert (part.error_code, part.records or b"") == (0, b"")


def test_fetch_out_of_range(client):
    (part,) = client.fetch(("t", 0, 8), isolation_level=1)
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_list_offsets(client):
    assert client.list_offset("t", LATEST).offset == 7
    assert client.list_offset("t", LATEST, isolation_level=1).offset == 5
    assert client.list_offset("t", NOW + 5).offset == 6
    assert client.list_offset("t", NOW + 5, isolation_level=1).offset == -1
    assert client.list_offset("t", NEWEST).offset == 6
    assert client.list_offset("t", NEWEST, isolation_level=1).offset == -1


def test_describe_producers(client):
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    answer = client.call(request, DescribeProducersResponse, 0)
    rows = answer.topics[0].partitions[0].active_producers
    starts = {row.producer_id: row.current_txn_start_offset for row in rows}
    assert starts == {1: -1, 2: -1, 3: 5}


def test_transactions_cannot_be_written_yet(client):
    answer = client.produce("t", in_transaction(3, b"more", 1))
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE


def test_the_data_after_an_open_transaction_survives_a_restart(broker):
    broker.restart()
    with RawClient(broker.port) as client:
        (part,) = client.fetch(("t", 0, 0), isolation_level=1)
        assert offsets(part) == [0, 1, 2, 3, 4]
