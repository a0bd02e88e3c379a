"""What a query may ask, which wins, and what is said about mistakes."""

from __future__ import annotations

import json
import pickle

import pytest

from tidelog.client.offsets import END, START, Position, PositionKind
from tidelog.pipeline.kafka_settings import CONSUMER, PRODUCER, REFUSED_BY_SOURCE
from tidelog.pipeline.options import (
    SOURCE_OPTIONS,
    ClientOptions,
    OptionError,
    SinkOptions,
    SourceOptions,
)
from tidelog.pipeline.ranges import COLUMNS
from tidelog.pipeline.where import NoRecord
from tidelog.topic_partition import TopicPartition

NEW_YEAR = 1_767_225_600_000
SERVERS = {"kafka.bootstrap.servers": "a:9092,b:9093"}


def source(**options: str) -> SourceOptions:
    named = {name.replace("__", "."): value for name, value in options.items()}
    if not {"subscribe", "assign", "subscribepattern"} & {name.lower() for name in named}:
        named["subscribe"] = "clicks"
    return SourceOptions.parse(SERVERS | named)


def complaint(**options: str) -> str:
    with pytest.raises(OptionError) as error:
        source(**options)
    return str(error.value)


# -- the defaults of Spark's connector --------------------------------------------


def test_defaults() -> None:
    options = source()
    assert options.starting is None and options.ending is None
    assert options.fail_on_data_loss
    assert options.poll_timeout == 120
    assert options.num_retries == 3
    assert options.max_offsets_per_trigger is None
    assert options.min_offsets_per_trigger is None
    assert options.max_trigger_delay == 15 * 60
    assert options.min_partitions is None
    assert options.max_records_per_partition is None
    assert options.columns.names == COLUMNS
    assert not options.client.read_committed
    assert options.client.group_id is None


def test_without_any_limit_a_batch_is_capped_by_bytes() -> None:
    assert source().max_bytes_per_trigger == 1 << 30
    assert source(maxOffsetsPerTrigger="10").max_bytes_per_trigger == 0
    assert source(maxBytesPerTrigger="64m").max_bytes_per_trigger == 64 << 20
    assert source(maxBytesPerTrigger="0").max_bytes_per_trigger == 0
    both = source(maxBytesPerTrigger="1g", maxOffsetsPerTrigger="10")
    assert (both.max_bytes_per_trigger, both.max_offsets_per_trigger) == (1 << 30, 10)


def test_names_are_case_insensitive() -> None:
    options = SourceOptions.parse(
        {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "t", "FAILONDATALOSS": "FALSE"}
    )
    assert options.client.bootstrap == "a:1"
    assert options.topics.subscribe == ("t",)
    assert not options.fail_on_data_loss


def test_options_travel_to_executors() -> None:
    options = source(startingOffsets='{"t":{"0":5}}', assign='{"t":[0]}', kafka__group__id="g")
    assert pickle.loads(pickle.dumps(options)) == options


def test_passwords_are_not_shown() -> None:
    options = source(kafka__sasl__jaas__config="password='secret'")
    assert "secret" not in repr(options)
    assert dict(options.client.settings)["sasl.jaas.config"] == "password='secret'"


# -- the client -------------------------------------------------------------------


def test_client_settings() -> None:
    client = ClientOptions.parse(
        {
            "kafka.bootstrap.servers": "a:1",
            "kafka.client.id": "me",
            "kafka.request.timeout.ms": "1500",
            "kafka.default.api.timeout.ms": "2500",
            "kafka.socket.connection.setup.timeout.ms": "3500",
            "kafka.isolation.level": "read_committed",
            "kafka.group.id": "billing",
            "kafka.fetch.max.bytes": "1000",
            "kafka.max.partition.fetch.bytes": "2000",
            "kafka.fetch.max.wait.ms": "4",
            "subscribe": "not the client's business",
        }
    )
    assert client.client_id == "me"
    assert (client.timeout, client.api_timeout, client.connect_timeout) == (1.5, 2.5, 3.5)
    assert client.read_committed
    assert client.group_id == "billing"
    assert (client.fetch_max_bytes, client.partition_max_bytes) == (1000, 2000)
    assert client.fetch_max_wait_ms == 4
    assert client.cluster().bootstrap == [("a", 1)]


@pytest.mark.parametrize("name", sorted((CONSUMER | PRODUCER) - set(REFUSED_BY_SOURCE)))
def test_every_setting_of_kafkas_clients_is_known(name: str) -> None:
    values = {"security.protocol": "PLAINTEXT", "isolation.level": "read_uncommitted"}
    value = "a:1" if name == "bootstrap.servers" else values.get(name, "1")
    source(**{f"kafka__{name.replace('.', '__')}": value})


@pytest.mark.parametrize("name", sorted(REFUSED_BY_SOURCE))
def test_what_the_source_decides_itself_cannot_be_set(name: str) -> None:
    message = complaint(**{f"kafka__{name.replace('.', '__')}": "1"})
    assert message.startswith(f"kafka.{name} cannot be set: ")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_what_the_client_cannot_do_is_refused(protocol: str) -> None:
    message = complaint(kafka__security__protocol=protocol)
    assert message.startswith(f"kafka.security.protocol={protocol}: TLS and SASL")
    source(kafka__security__protocol="plaintext")


# -- which partitions -------------------------------------------------------------


def test_which_topics() -> None:
    assert source(subscribe=" a, b ,a").topics.subscribe == ("a", "b")
    assert source(assign='{"t":[1,0],"u":[2]}').topics.assign == {
        TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 2),
    }  # fmt: skip
    topics = source(subscribePattern="click.*").topics
    assert topics.wants("clicks") and topics.wants("old-clicks") and not topics.wants("views")


# -- where to begin and to end ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", START),
        ("Latest", END),
        ("start", START),
        ("-10", Position(PositionKind.END, 10)),
        ("+10", Position(PositionKind.START, 10)),
        ("1742", Position(PositionKind.ABSOLUTE, 1742)),
        ("-10m", Position(PositionKind.AGO, 600_000)),
        ("@-2h", Position(PositionKind.AGO, 7_200_000)),
        ("@2026-01-01T00:00Z", Position(PositionKind.TIME, NEW_YEAR)),
    ],
)
def test_one_offset_for_all(text: str, position: Position) -> None:
    for name in ("startingOffsets", "endingOffsets"):
        options = source(**{name: text})
        where = options.starting if name == "startingOffsets" else options.ending
        assert where is not None and where.position == position


def test_offsets_by_partition_are_numbers_as_in_spark_or_the_language() -> None:
    text = json.dumps({"t": {"0": -2, "1": -1, "2": 7, "3": "-7", "4": "@2026-01-01"}})
    where = source(startingOffsets=text).starting
    assert where is not None and where.each is not None
    assert [where.each[TopicPartition("t", i)] for i in range(5)] == [
        START, END, Position(PositionKind.ABSOLUTE, 7), Position(PositionKind.END, 7),
        Position(PositionKind.TIME, NEW_YEAR),
    ]  # fmt: skip


def test_a_time_wins_over_times_by_partition_which_win_over_offsets() -> None:
    by_partition = json.dumps({"clicks": {"0": 2_000}})
    for end in ("starting", "ending"):
        options = {f"{end}Offsets": "17"}
        where = getattr(source(**options), end)
        assert where.position == Position(PositionKind.ABSOLUTE, 17)
        options[f"{end}OffsetsByTimestamp"] = by_partition
        where = getattr(source(**options), end)
        assert where.each == {TopicPartition("clicks", 0): Position(PositionKind.TIME, 2_000)}
        options[f"{end}Timestamp"] = "1000"
        where = getattr(source(**options), end)
        assert (where.position, where.each) == (Position(PositionKind.TIME, 1_000), None)


def test_no_record_at_a_time_is_an_error_only_for_times_where_a_query_starts() -> None:
    def no_record(end: str, **options: str) -> NoRecord:
        return getattr(source(**options), end).no_record  # type: ignore[no-any-return]

    assert no_record("starting", startingTimestamp="5") is NoRecord.ERROR
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert no_record("starting", startingTimestamp="5", **latest) is NoRecord.END
    assert no_record("ending", endingTimestamp="5") is NoRecord.END
    assert no_record("starting", startingOffsets="@2026-01-01") is NoRecord.END


def test_a_groups_offsets() -> None:
    options = source(startingOffsets="group", kafka__group__id="g")
    assert options.starting is not None and options.starting.group
    assert "kafka.group.id" in complaint(startingOffsets="group")
    assert "group" in complaint(endingOffsets="group", kafka__group__id="g")


def test_a_stream_has_no_end() -> None:
    for options in (
        {"endingOffsets": "latest"},
        {"endingTimestamp": "5"},
        {"endingOffsetsByTimestamp": '{"clicks":{"0":5}}'},
    ):
        with pytest.raises(OptionError, match=f"^{next(iter(options))}: a stream has no end"):
            source(**options).for_stream()
    source(startingOffsets="latest").for_stream()


def test_a_batch_begins_and_ends_somewhere() -> None:
    for options, message in (
        ({"startingOffsets": "latest"}, "startingOffsets=latest"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets says latest for t-0"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets says earliest for t-0"),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":5}}'},
            "must name the same partitions: t-0, t-1",
        ),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            "startingOffsets is 5 for t-0, after endingOffsets 4",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":5}}',
                "endingOffsetsByTimestamp": '{"t":{"0":4}}',
            },
            "startingOffsetsByTimestamp is 5 for t-0, after",
        ),
    ):
        with pytest.raises(OptionError, match=message):
            source(**options).for_batch()
    source(startingOffsets='{"t":{"0":5}}', endingOffsets='{"t":{"0":-1}}').for_batch()
    source(maxOffsetsPerTrigger="5").for_batch()  # says nothing to a batch


# -- columns ------------------------------------------------------------------------


def test_columns() -> None:
    assert source(includeHeaders="true").columns.names == (*COLUMNS, "headers")
    assert source(columns="value, OFFSET").columns.names == ("value", "offset")
    assert source(columns="headers,value").columns.names == ("headers", "value")
    assert source(columns="value", includeHeaders="true").columns.names == ("value", "headers")
    assert "did you mean timestamp?" in complaint(columns="timestmp")


# -- mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfsets": "1"}, "did you mean startingOffsets?"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"bootstrap__servers": "a:1"}, "did you mean kafka.bootstrap.servers?"),
        ({"kafka__fetch__max__byte": "1"}, "did you mean kafka.fetch.max.bytes?"),
        ({"topic": "clicks"}, "did you mean subscribe?"),
        ({"brokers": "a:1"}, "did you mean kafka.bootstrap.servers?"),
        ({"something": "1"}, "something: there is no such option"),
        ({"subscribe": " , "}, "subscribe is empty"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "assign and subscribe are both set"),
        ({"subscribePattern": ""}, "subscribePattern is empty"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"assign": "clicks"}, 'write json, for example {"topicA":[0,1]'),
        ({"assign": '{"clicks":0}'}, "write json"),
        ({"assign": '{"clicks":[-1]}'}, "write json"),
        ({"assign": "{}"}, "assign is empty"),
        ({"startingOffsets": "yesterday"}, "startingOffsets: 'yesterday' is not an offset"),
        ({"startingOffsets": "{"}, 'write json, for example {"topicA":{"0":23'),
        ({"startingOffsets": '{"t":5}'}, "write json"),
        ({"startingOffsets": '{"t":{"x":5}}'}, "write json"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "-3 is not an offset; write a number, -1"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "1.5 is not an offset"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "True is not an offset"),
        ({"startingOffsets": '{"t":{"0":"x"}}'}, "startingOffsets: 'x' is not an offset"),
        ({"startingTimestamp": "2026-01-01"}, "write milliseconds since 1970"),
        ({"startingTimestamp": "2026-01-01"}, "use startingOffsets=@2026-01-01T00:00Z"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":"x"}}'}, "endingOffsets=@2026-01-01T00:00Z"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "write error or latest"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss=yes: write true or false"),
        ({"minPartitions": "0"}, "minPartitions=0: write a whole number that is at least 1"),
        ({"maxRecordsPerPartition": "many"}, "maxRecordsPerPartition=many: write a whole number"),
        ({"maxOffsetsPerTrigger": "-1"}, "at least 1"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is above"),
        ({"maxTriggerDelay": "soon"}, "write a time span, for example 30s"),
        ({"maxBytesPerTrigger": "big"}, "write a size, for example 512m"),
        ({"maxBytesPerPartition": "0"}, "at least 1"),
        ({"partition__metadata__cache__ttl__ms": "0"}, "or -1 for no cache"),
        ({"columns": ""}, "columns is empty"),
        ({"kafka__bootstrap__servers": "a:b"}, "write host:port"),
        ({"kafka__isolation__level": "serializable"}, "write read_committed or read_uncommitted"),
        ({"kafka__request__timeout__ms": "fast"}, "kafka.request.timeout.ms=fast"),
    ],
)
def test_mistakes_are_named_and_say_what_to_write(options: dict[str, str], message: str) -> None:
    assert message in complaint(**options)


def test_spark_tells_names_in_lower_case() -> None:
    """The nearest name says how this one was written."""
    assert complaint(startingoffset="1").startswith("startingOffset: there is no such option")
    assert complaint(failonloss="1").startswith("failOnLoss: ")
    assert complaint(Subscribed="1").startswith("Subscribed: ")


def test_what_a_batch_does_not_use_is_told() -> None:
    given = {"maxoffsetspertrigger": "5", "maxTriggerDelay": "1m", "kafka.group.id": "g"}
    assert SourceOptions.unused_by_batch(given) == [
        "maxOffsetsPerTrigger is for streams: this batch is read without it",
        "maxTriggerDelay is for streams: this batch is read without it",
        "kafka.group.id: a batch commits no offsets, and reads those of the group only with "
        "startingOffsets=group",
    ]
    group = {"kafka.group.id": "g", "startingoffsets": "group", "subscribe": "t"}
    assert SourceOptions.unused_by_batch(group) == []


def test_what_is_missing_is_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        SourceOptions.parse({"subscribe": "t"})
    with pytest.raises(OptionError, match="what shall be read"):
        SourceOptions.parse(SERVERS)


def test_what_spark_adds_is_no_mistake() -> None:
    source(path="x", checkpointLocation="y")


def test_spans_and_sizes() -> None:
    for text, expected in (("500", 0.5), ("30s", 30), ("15m", 900), ("2h", 7200), ("1 min", 60)):
        assert source(maxTriggerDelay=text).max_trigger_delay == expected
    for text, expected in (("1048576", 1 << 20), ("1m", 1 << 20), ("2GB", 2 << 30), ("5KiB", 5120)):
        assert source(maxBytesPerPartition=text).max_bytes_per_partition == expected


def test_every_option_is_in_the_table() -> None:
    values = {
        "assign": '{"t":[0]}', "subscribe": "t", "subscribePattern": "t", "columns": "value",
        "startingOffsetsByTimestamp": '{"t":{"0":1}}', "endingOffsets": "latest",
        "endingOffsetsByTimestamp": '{"t":{"0":1}}', "startingOffsets": "earliest",
        "startingOffsetsByTimestampStrategy": "latest", "failOnDataLoss": "true",
        "failOnCorruptBatch": "true", "includeHeaders": "true", "ranges": "true",
    }  # fmt: skip
    for name in SOURCE_OPTIONS:
        source(**{name.replace(".", "__"): values.get(name, "1")})


# -- the sink ---------------------------------------------------------------------------


def test_sink() -> None:
    options = SinkOptions.parse(SERVERS | {"topic": " clicks ", "kafka.acks": "all"})
    assert options.topic == "clicks"
    assert dict(options.client.settings)["acks"] == "all"
    with pytest.raises(OptionError, match="did you mean topic"):
        SinkOptions.parse(SERVERS | {"topics": "clicks"})
    with pytest.raises(OptionError, match=r"kafka\.key\.serializer cannot be set"):
        SinkOptions.parse(SERVERS | {"kafka.key.serializer": "x"})
