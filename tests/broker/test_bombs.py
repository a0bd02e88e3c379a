"""Small requests that become large: what the broker opens is bounded, and others do not wait."""

import contextlib
import select

import cramjam
import pytest
from crc32c import crc32c
from support.raw_client import RawClient, batch_of, many, now_ms, sealed, values_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.wire.batch import HEADER, BatchHeader
from tidelog.wire.compression import Codec
from tidelog.wire.messages.list_offsets import ListOffsetsResponse
from tidelog.wire.messages.produce import ProduceResponse
from tidelog.wire.primitives import varint
from tidelog.wire.records import encode_batch

LIMIT = 16 * 1048588
TINY = b"\x0e\x00\x00\x00\x02k\x00\x00"  # eight bytes: key k, offset delta 0
MEBIBYTE = TINY * (1 << 17)


def bomb(mebibytes, count=None):
    """So many mebibytes of copies of one tiny record."""
    compressor = cramjam.zstd.Compressor()
    for _ in range(mebibytes):
        compressor.compress(MEBIBYTE)
    count = mebibytes * (1 << 17) if count is None else count
    return sealed(bytes(compressor.finish()), count)


@contextlib.contextmanager
def others_are_served(broker, waiting, at_least):
    """Before there is an answer for ``waiting``, other clients get theirs."""
    with RawClient(broker.port) as other:
        yield
        for _ in range(at_least):
            other.list_offset("no such topic", -1)
    assert not select.select([waiting.sock], [], [], 0)[0]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_count_that_cannot_fit_is_refused_by_the_header_alone(client, topic, codec):
    packed = b"not even compressed records"
    for count, code in {
        2**31 - 1: ErrorCode.INVALID_RECORD,
        LIMIT // 7 + 1: ErrorCode.INVALID_RECORD,
        LIMIT // 7: 0,
    }.items():
        answer = client.produce(topic, sealed(packed, count, codec))
        assert answer.error_code == code
        if code:
            assert "max.decompressed.bytes=16777408" in answer.error_message


def test_the_bound_follows_max_message_bytes_unless_it_is_set(client):
    client.create_topic("large", max_message_bytes=4 << 20)
    fits = (64 << 20) // 7
    assert client.produce("large", sealed(b"x", fits)).error_code == 0
    assert client.produce("large", sealed(b"x", fits + 1)).error_code == ErrorCode.INVALID_RECORD
    client.create_topic("small", max_message_bytes=4 << 20, max_decompressed_bytes=7000)
    assert client.produce("small", sealed(b"x", 1000)).error_code == 0
    assert client.produce("small", sealed(b"x", 1001)).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("count", [None, 100])
def test_thirty_million_records_in_22_kilobytes(broker, client, count):
    name = f"compacted-{count}"
    client.create_topic(name, cleanup_policy="compact")
    records = bomb(240, count)
    assert len(records) < 30_000
    answer = client.produce(name, records)
    if count is None:
        assert answer.error_code == ErrorCode.INVALID_RECORD
    else:
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.decompressed.bytes=16777408" in answer.error_message
    assert client.produce(name, batch_of(b"v", key=b"k")).base_offset == 0


def test_the_batches_of_a_request_are_bounded_together(client):
    client.create_topic("forty", partitions=40, cleanup_policy="compact")
    value = bytes(5 << 20)
    records = encode_batch([(now_ms(), b"k", value, [])], codec=Codec.ZSTD)
    assert len(records) < 8000
    request = client.produce_request("forty", records)
    for partition in range(1, 40):
        more = client.produce_request("forty", records, partition=partition)
        request.topic_data[0].partition_data += more.topic_data[0].partition_data
    answers = client.call(request, ProduceResponse, 9).responses[0].partition_responses
    assert [row.error_code for row in answers] == 3 * [0] + 37 * [ErrorCode.MESSAGE_TOO_LARGE]
    assert "the batches of the request" in answers[-1].error_message
    assert client.produce("forty", records).error_code == 0  # the next request begins at nothing


def test_others_are_served_while_a_batch_is_opened(broker, client):
    client.create_topic("slow", cleanup_policy="compact")
    count = 300_000
    bodies = (b"\0\0" + varint(number) + b"\x02k\0\0" for number in range(count))
    packed = cramjam.zstd.compress(b"".join(varint(len(body)) + body for body in bodies))
    records = sealed(bytes(packed), count)
    with others_are_served(broker, client, at_least=10):
        client.send(client.produce_request("slow", records, acks=1), 9)
    _, answer = client.receive(ProduceResponse, 9)
    (row,) = answer.responses[0].partition_responses
    assert (row.error_code, row.base_offset) == (0, 0)
    assert client.produce("slow", batch_of(b"v", key=b"k")).base_offset == count


def test_millions_of_wrong_offset_deltas_are_refused_at_the_first(client):
    client.create_topic("renumbered", cleanup_policy="compact")
    for count, code in {10_000: 0, 10_001: ErrorCode.INVALID_RECORD}.items():
        records = sealed(bytes(cramjam.zstd.compress(TINY * count)), count)
        answer = client.produce("renumbered", records)
        assert answer.error_code == code, answer.error_message
    assert "record 1 of 10001 has another offset delta" in answer.error_message
    assert client.list_offset("renumbered", -1).offset == 10_000


def test_others_are_served_while_a_time_is_looked_for(broker, client, topic):
    """The header says that a record is newer than they are: all of the batch is looked at."""
    late = now_ms() + 60_000
    packed = bytes(cramjam.zstd.compress(MEBIBYTE))
    client.produce(topic, sealed(packed, 1 << 17, max_timestamp=late))
    client.produce(topic, batch_of(b"v", timestamp=late))
    with others_are_served(broker, client, at_least=20):
        client.send(client.list_offset_request(topic, late), 7)
    _, answer = client.receive(ListOffsetsResponse, 7)
    (row,) = answer.topics[0].partitions
    assert (row.timestamp, row.offset) == (late, 1 << 17)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_what_is_sent_together_is_appended_in_order(broker, client, acks):
    """Also if the first batch takes long to open and the second does not."""
    name = f"ordered-{acks}"
    client.create_topic(name, cleanup_policy="compact")
    sequence = 0
    with RawClient(broker.port) as producer:
        for _ in range(3):
            for batch, count in (many, 1200), (many, 2), (many, 1500):
                records = batch(
                    count, producer_id=7_000_000, producer_epoch=0, base_sequence=sequence
                )
                producer.send(producer.produce_request(name, records, acks=acks), 9)
                sequence += count
        if acks:
            answers = [producer.receive(ProduceResponse, 9)[1] for _ in range(9)]
            rows = [answer.responses[0].partition_responses[0] for answer in answers]
            assert [row.error_code for row in rows] == 9 * [0]
            assert [row.base_offset for row in rows] == sorted(row.base_offset for row in rows)
    # Also if the connection is closed at once, without an answer to wait for.
    until(lambda: client.list_offset(name, -1).offset == sequence)


def test_an_error_without_an_answer_closes_the_connection(broker, client):
    client.create_topic("unanswered", cleanup_policy="compact")
    with RawClient(broker.port) as producer:
        producer.send(producer.produce_request("unanswered", bomb(20, 100), acks=0), 9)
        assert producer.hung_up()


def test_an_opened_batch_is_corrected_as_kafka_does(client):
    """Records all numbered 0 (by Kafka only where it recompresses), and a largest timestamp that
    no record has."""
    client.create_topic("corrected", cleanup_policy="compact")
    now = now_ms()
    packed = bytes(cramjam.zstd.compress(TINY * 3))
    wrong = sealed(packed, 3, base_timestamp=now, max_timestamp=now + 5)
    assert client.produce("corrected", wrong).error_code == 0
    (row,) = client.fetch(("corrected", 0, 0))
    assert [offset for offset, _ in values_of(row.records)] == [0, 1, 2]
    header = BatchHeader(*HEADER.unpack_from(row.records))
    assert (header.max_timestamp, header.attributes) == (now, Codec.ZSTD)
    assert crc32c(row.records[21:]) == header.crc


@pytest.mark.parametrize("count", [2, 4])
def test_a_count_that_is_not_true_is_refused_where_batches_are_opened(client, count):
    name = f"miscounted-{count}"
    client.create_topic(name, cleanup_policy="compact")
    packed = bytes(cramjam.zstd.compress(TINY * 3))
    assert client.produce(name, sealed(packed, count)).error_code == ErrorCode.INVALID_RECORD
    assert client.produce(name, sealed(packed, 3)).base_offset == 0


def test_what_recompression_makes_too_large_is_refused(client):
    client.create_topic("plain", compression_type="uncompressed", max_message_bytes=10_000)
    for size, code in {9000: 0, 11_000: ErrorCode.MESSAGE_TOO_LARGE}.items():
        records = batch_of(bytes(size), codec=Codec.ZSTD)
        assert client.produce("plain", records).error_code == code
