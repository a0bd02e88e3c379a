"""Settings of topics that change what the broker does with a batch."""

import pytest
from support.raw_client import RawClient, batch_of, now_ms, values_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.batch import CODEC_MASK, LOG_APPEND_TIME, read_header
from tidelog.wire.compression import Codec
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.produce import ProduceResponse
from tidelog.wire.records import decode_batch, encode_batch


def alter(client, topic, **config):
    configs = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=str(value))
        for name, value in config.items()
    ]
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = client.call(request, IncrementalAlterConfigsResponse, 1).responses[0]
    assert answer.error_code == 0, answer.error_message


def stored(client, topic, offset=0):
    """The batch at an offset, as it lies on disk."""
    (part,) = client.fetch((topic, 0, offset, 1))
    return bytes(part.records)


def test_log_append_time(client):
    client.create_topic("stamped", message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = client.produce("stamped", batch_of(b"a", b"b", timestamp=1000))
    assert before <= answer.log_append_time_ms <= now_ms()
    batch = stored(client, "stamped")
    assert read_header(batch).attributes & LOG_APPEND_TIME
    assert {r.timestamp for r in decode_batch(batch)} == {answer.log_append_time_ms}


def test_create_time_is_kept(client, topic):
    answer = client.produce(topic, batch_of(b"a", timestamp=1000))
    assert answer.log_append_time_ms == -1
    assert [r.timestamp for r in decode_batch(stored(client, topic))] == [1000]


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_the_broker_recompresses_when_asked(client, wanted):
    name = f"recompressed-{wanted}"
    client.create_topic(name, compression_type=wanted)
    target = Codec.NONE if wanted == "uncompressed" else Codec[wanted.upper()]
    for codec in Codec:
        offset = client.produce(name, batch_of(b"x" * 500, codec=codec)).base_offset
        batch = stored(client, name, offset)
        assert read_header(batch).attributes & CODEC_MASK == target
        assert [r.value for r in decode_batch(batch)] == [b"x" * 500]


def test_without_being_asked_the_bytes_stay_as_they_came(client, topic):
    for codec in Codec:
        sent = batch_of(b"x" * 500, codec=codec)
        offset = client.produce(topic, sent).base_offset
        assert stored(client, topic, offset)[16:] == sent[16:]


def test_a_compacted_topic_needs_keys(client):
    client.create_topic("compacted", cleanup_policy="compact")
    for codec in (Codec.NONE, Codec.ZSTD):
        refused = client.produce("compacted", batch_of(b"no key", codec=codec))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert "needs a key" in refused.error_message
        assert [row.batch_index for row in refused.record_errors] == [0]
        assert "needs a key" in refused.record_errors[0].batch_index_error_message
        assert client.produce("compacted", batch_of(b"v", key=b"k", codec=codec)).error_code == 0


def test_the_record_that_is_too_far_in_the_future_is_named(client, topic):
    now = now_ms()
    rows = [(now + late, None, b"v", []) for late in (0, 10**8, 0)]
    for codec, version in (Codec.NONE, 8), (Codec.GZIP, 12):
        refused = client.produce(topic, encode_batch(rows, codec=codec), version=version)
        assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [row.batch_index for row in refused.record_errors] == [1]
        reason = refused.record_errors[0].batch_index_error_message
        assert "message.timestamp.after.max.ms" in reason


def test_timestamps_too_far_in_the_past(client):
    client.create_topic("recent", message_timestamp_before_max_ms=60_000)
    old = batch_of(b"a", timestamp=now_ms() - 120_000)
    assert client.produce("recent", old).error_code == ErrorCode.INVALID_TIMESTAMP
    assert client.produce("recent", batch_of(b"a")).error_code == 0


@pytest.mark.parametrize("acks", [1, -1])
def test_more_replicas_in_sync_than_there_are_cannot_be_asked_for(client, acks):
    client.create_topic(f"careful{acks}", min_insync_replicas=2)
    assert client.produce(f"careful{acks}", batch_of(b"a"), acks=acks).error_code == 0


def test_changes_take_effect_at_once(client, topic):
    alter(client, topic, max_message_bytes=1000)
    too_large = client.produce(topic, batch_of(bytes(2000)))
    assert too_large.error_code == ErrorCode.MESSAGE_TOO_LARGE
    alter(client, topic, max_message_bytes=10_000)
    assert client.produce(topic, batch_of(bytes(2000))).error_code == 0


def test_visible_only_when_flushed(broker, client):
    client.create_topic("durable", visibility="flushed", flush_ms=3_600_000)
    assert client.produce("durable", batch_of(b"a"), acks=1).error_code == 0
    assert client.read_values("durable") == []
    late = client.produce("durable", batch_of(b"b"), acks=-1, timeout_ms=50)
    assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
    # A pipelined acks=all waits for the flush that the next batch brings about.
    with RawClient(broker.port) as waiting:
        waiting.send(waiting.produce_request("durable", batch_of(b"c")), 9)
        until(lambda: client.produce("durable", batch_of(b"d"), acks=1).base_offset >= 3)
        alter(client, "durable", flush_messages=1)
        client.produce("durable", batch_of(b"e"), acks=1)
        waiting.read_frame()
    assert set(client.read_values("durable")) == {b"a", b"b", b"c", b"d", b"e"}


def test_a_timeout_names_the_right_partition_also_by_topic_id(client):
    slow = client.create_topic("slow", visibility="flushed", flush_ms=3_600_000)
    quick = client.create_topic("quick")
    request = client.produce_request(slow, batch_of(b"a"), timeout_ms=50)
    request.topic_data += client.produce_request(quick, batch_of(b"b")).topic_data
    answer = client.call(request, ProduceResponse, 13)
    codes = {t.topic_id: t.partition_responses[0].error_code for t in answer.responses}
    assert codes == {slow: ErrorCode.REQUEST_TIMED_OUT, quick: 0}


def test_deleting_a_topic_ends_the_wait_for_its_acks(broker, client):
    client.create_topic("doomed", visibility="flushed", flush_ms=3_600_000)
    with RawClient(broker.port) as waiting:
        waiting.send(waiting.produce_request("doomed", batch_of(b"a"), timeout_ms=60_000), 9)
        until(lambda: client.produce("doomed", batch_of(b"b"), acks=1).base_offset >= 1)
        request = DeleteTopicsRequest(topic_names=["doomed"], timeout_ms=1000)
        client.call(request, DeleteTopicsResponse, 5)
        _, answer = waiting.receive(ProduceResponse, 9)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_flushed_by_the_clock(client):
    client.create_topic("clocked", visibility="flushed", flush_ms=20)
    assert client.produce("clocked", batch_of(b"a"), acks=-1).error_code == 0
    assert client.read_values("clocked") == [b"a"]


def test_retention_by_size_and_time():
    settings = {"log.retention.check.interval.ms": 20, "log.segment.delete.delay.ms": 0}
    with LocalBroker(settings) as broker, RawClient(broker.port) as client:
        client.create_topic("small", segment_bytes=2000, retention_bytes=5000)
        for i in range(20):
            client.produce("small", batch_of(b"%d" % i + bytes(900)))

        def first_record():  # retention may move the start between the two questions
            first = client.list_offset("small", -2).offset
            (part,) = client.fetch(("small", 0, first))
            return first and part.error_code == 0 and values_of(part.records, first)[0]

        offset, value = until(first_record, "old segments to go")
        assert value.startswith(b"%d" % offset)
        code = ErrorCode.OFFSET_OUT_OF_RANGE
        assert client.fetch(("small", 0, 0))[0].error_code == code
        until(lambda: not list((broker.data / "small-0").glob("*.deleted")), "files to go")

        client.create_topic("short", retention_ms=1000)
        client.produce("short", batch_of(b"old", timestamp=now_ms() - 60_000))
        until(lambda: client.list_offset("short", -2).offset == 1, "the old record to go")
        assert client.produce("short", batch_of(b"new")).base_offset == 1
        assert client.read_values("short", offset=1) == [b"new"]


def changed(client, topic, *operations):
    """The answer to IncrementalAlterConfigs: ``(operation, name, value)`` each."""
    configs = [AlterableConfig(name=n, config_operation=o, value=v) for o, n, v in operations]
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    return client.call(request, IncrementalAlterConfigsResponse, 1).responses[0]


def test_deleting_an_unknown_setting_changes_nothing_else(client, topic):
    """As MirrorMaker 2 does for all that is default at its source."""
    answer = changed(client, topic, (1, "no.such.thing", None), (0, "max.message.bytes", "1000"))
    assert answer.error_code == 0, answer.error_message
    too_large = client.produce(topic, batch_of(bytes(2000)))
    assert too_large.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert changed(client, topic, (0, "no.such.thing", "1")).error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("codec", "quick", "tight"), [("gzip", 1, 9), ("lz4", 9, 12), ("zstd", -5, 19)]
)
def test_the_broker_compresses_at_the_topics_level(client, codec, quick, tight):
    value = b"".join(b"%d and %d, " % (i, i * i % 977) for i in range(2000))
    sizes = []
    for level in (quick, tight):
        name = f"{codec}-at-{level}"
        client.create_topic(
            name, **{"compression_type": codec, f"compression_{codec}_level": level}
        )
        assert client.produce(name, batch_of(value)).error_code == 0
        batch = stored(client, name)
        assert [record.value for record in decode_batch(batch)] == [value]
        sizes.append(len(batch))
    assert sizes[1] < sizes[0]


def test_a_topic_without_a_cleanup_policy_keeps_everything(client, topic):
    """KIP-1161: neither retention nor compaction, and records need no key."""
    answer = changed(client, topic, (3, "cleanup.policy", "delete"), (0, "retention.ms", "1"))
    assert answer.error_code == 0, answer.error_message
    assert client.produce(topic, batch_of(b"old", timestamp=1000)).error_code == 0
    assert client.read_values(topic) == [b"old"]
