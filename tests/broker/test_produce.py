"""Produce: what is taken, and the error that each bad batch gets."""

import struct

import pytest
from support.raw_client import RawClient, batch_of, now_ms, values_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.wire.batch import CONTROL, LOG_APPEND_TIME
from tidelog.wire.compression import Codec
from tidelog.wire.frame import encode_request
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import ProduceResponse
from tidelog.wire.records import encode_batch


def resealed(batch, at, code, value):
    """Change a header field and make the CRC right again."""
    from crc32c import crc32c

    changed = bytearray(batch)
    struct.pack_into(code, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def broken(batch, at):
    changed = bytearray(batch)
    changed[at] ^= 0x5A
    return bytes(changed)


GOOD = batch_of(b"a", b"b")

BAD = {
    "wrong CRC": (broken(GOOD, 70), ErrorCode.CORRUPT_MESSAGE),
    "wrong magic": (resealed(GOOD, 16, ">b", 1), ErrorCode.INVALID_RECORD),
    "wrong count": (resealed(GOOD, 57, ">i", 3), ErrorCode.INVALID_RECORD),
    "no records": (encode_batch([]), ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "cut off": (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "too short": (GOOD[:40], ErrorCode.INVALID_RECORD),
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "null": (None, ErrorCode.INVALID_RECORD),
    "control batch": (batch_of(b"x", attributes=CONTROL), ErrorCode.INVALID_RECORD),
    "append time": (batch_of(b"x", attributes=LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
    "unknown codec": (resealed(GOOD, 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "too large": (batch_of(bytes(1_100_000)), ErrorCode.MESSAGE_TOO_LARGE),
    "from the future": (batch_of(b"x", timestamp=now_ms() + 10**8), ErrorCode.INVALID_TIMESTAMP),
    "id, no sequence": (batch_of(b"x", producer_id=1), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_get_their_own_error_and_change_nothing(client, topic, name):
    client.produce(topic, batch_of(b"before"))
    records, code = BAD[name]
    answer = client.produce(topic, records)
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert answer.error_message
    assert client.produce(topic, batch_of(b"after")).base_offset == 1
    assert client.read_values(topic) == [b"before", b"after"]


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_appends(client, topic, version):
    answer = client.produce(topic, GOOD, version=version)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert client.read_values(topic) == [b"a", b"b"]


def test_topic_ids(client):
    topic_id = client.create_topic("by-id")
    assert client.produce(topic_id, GOOD, version=13).error_code == 0
    assert client.read_values("by-id") == [b"a", b"b"]
    unknown = client.produce(bytes(range(16)), GOOD, version=13)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [0, 1, 2])
def test_message_sets_from_before_kafka_0_11_are_named_as_such(client, topic, version):
    assert client.produce(topic, GOOD, version=version).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", [0, 2])
def test_an_old_producer_that_waits_for_no_answer_is_named_in_the_log(broker, topic, version):
    with RawClient(broker.port) as old:
        name = f"old\n{version}"
        request = old.produce_request(topic, GOOD, acks=0)
        old.sock.sendall(encode_request(request, version, 1, name))
        host, port = old.sock.getsockname()
        assert old.hung_up()
    (line,) = until(lambda: [row for row in broker.log.splitlines() if f"{host}:{port}" in row])
    assert f"client old?{version}" in line
    assert f"Produce v{version}" in line
    assert "are lost" in line
    assert "upgrade the client" in line


def test_unknown_topics_and_partitions(client, topic):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("nobody", GOOD).error_code == code
    assert client.produce(topic, GOOD, partition=7).error_code == code
    assert client.produce(topic, GOOD, partition=-1).error_code == code


def test_acks(client, topic):
    assert client.produce(topic, GOOD, acks=1).error_code == 0
    assert client.produce(topic, GOOD, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_acks_0_gets_no_answer_but_an_error_hangs_up(broker, client, topic):
    with RawClient(broker.port) as quiet:
        quiet.send(quiet.produce_request(topic, GOOD, acks=0), 9)
        # The next answer on this connection is the Fetch's, and it sees the records.
        assert [v for _, v in values_of(quiet.fetch((topic, 0, 0))[0].records)] == [b"a", b"b"]
        quiet.send(quiet.produce_request("nobody", GOOD, acks=0), 9)
        assert quiet.hung_up()


def test_zstd_needs_a_client_that_knows_it(client, topic):
    zstd = batch_of(b"x" * 100, codec=Codec.ZSTD)
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(topic, zstd, version=6).error_code == code
    assert client.produce(topic, zstd, version=7).error_code == 0


def new_producer(client):
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    answer = client.call(request, InitProducerIdResponse, 4)
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def test_idempotent_producers_survive_a_restart(broker, client, topic):
    producer, epoch = new_producer(client)

    def send(to, sequence, *values):
        batch = batch_of(
            *values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
        )
        return to.produce(topic, batch)

    assert send(client, 0, b"a", b"b").base_offset == 0
    assert send(client, 2, b"c").base_offset == 2
    assert send(client, 0, b"a", b"b").base_offset == 0, "a duplicate has the first offset"
    assert send(client, 9, b"x").error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for stop in (broker.stop, broker.kill):
        stop()
        broker.start()
        with RawClient(broker.port) as again:
            assert send(again, 2, b"c").base_offset == 2
            assert send(again, 9, b"x").error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert again.read_values(topic) == [b"a", b"b", b"c"]
            assert new_producer(again)[0] > producer, "an id is never given twice"


def test_many_partitions_in_one_request(client):
    client.create_topic("wide", partitions=5)
    request = client.produce_request("wide", GOOD)
    for index in (1, 2, 99):
        request.topic_data[0].partition_data.append(
            type(request.topic_data[0].partition_data[0])(index=index, records=GOOD)
        )
    answer = client.call(request, ProduceResponse, 9).responses[0].partition_responses
    assert [(p.index, p.error_code) for p in answer] == [(0, 0), (1, 0), (2, 0), (99, 3)]
