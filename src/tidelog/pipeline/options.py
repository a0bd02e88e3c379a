"""The options of the format ``tidelog``.  No I/O.

Names, defaults and precedence are those of Spark's own Kafka connector, so that moving a job
is one word; ``SOURCE_OPTIONS`` is the whole list, with what goes beyond it.  Names are
case-insensitive, as everywhere in Spark.  A wrong value and a name that does not exist are
refused before anything is read, in a sentence that says what to write.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.connection import CONNECT_TIMEOUT, REQUEST_TIMEOUT
from tidelog.client.offsets import END, START
from tidelog.clock import Clock
from tidelog.errors import ApiError
from tidelog.pipeline.kafka_settings import (
    ALL_SETTINGS,
    CONSUMER,
    PRODUCER,
    REFUSED_BY_SINK,
    REFUSED_BY_SOURCE,
)
from tidelog.pipeline.option_values import (
    KAFKA_PREFIX,
    Given,
    OptionError,
    unknown_option,
    whole_number,
)
from tidelog.pipeline.producer_settings import LIBRDKAFKA
from tidelog.pipeline.ranges import ALL, COLUMNS, HEADERS, Columns
from tidelog.pipeline.where import Topics, Where, check_pairs, parse_topics, parse_where

__all__ = ["ClientOptions", "OptionError", "SinkOptions", "SourceOptions", "kafka_settings"]

CLIENT_ID = "tidelog-spark"
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"


# -- the client -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to talk to the cluster: what the ``kafka.*`` options say.  Travels to executors.

    Times are in seconds, as in our client.  ``settings`` holds every ``kafka.*`` option as it
    was written, without the prefix and sorted: the sink hands them to librdkafka.
    """

    bootstrap: str
    client_id: str = CLIENT_ID
    connect_timeout: float = CONNECT_TIMEOUT  # socket.connection.setup.timeout.ms
    timeout: float = REQUEST_TIMEOUT  # request.timeout.ms
    api_timeout: float = 60.0  # default.api.timeout.ms: a question, with all its repetitions
    read_committed: bool = False  # isolation.level
    group_id: str | None = None
    fetch_max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024  # max.partition.fetch.bytes
    fetch_max_wait_ms: int = 500
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold passwords

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        refused: Mapping[str, str] | None = None,
        known: Iterable[str] = ALL_SETTINGS,
    ) -> ClientOptions:
        """Read the ``kafka.*`` options among ``options``; ``refused`` gives reasons by name."""
        settings = kafka_settings(options)
        for name, value in settings.items():
            if name in (refused or {}):
                reason = (refused or {})[name]
                raise OptionError(f"{KAFKA_PREFIX}{name} cannot be set: {reason}")
            if name not in known:
                raise unknown_option(KAFKA_PREFIX + name, [KAFKA_PREFIX + row for row in known])
            if name == "security.protocol" and value.strip().upper() != "PLAINTEXT":
                raise OptionError(
                    f"kafka.security.protocol={value}: TLS and SASL are not supported yet; "
                    "use a PLAINTEXT listener of the cluster and leave this option out"
                )
        bootstrap = settings.get("bootstrap.servers", "").strip()
        if not bootstrap:
            raise OptionError(
                "kafka.bootstrap.servers is missing: write "
                '.option("kafka.bootstrap.servers", "host:9092,host:9092")'
            )
        isolation = settings.get("isolation.level", READ_UNCOMMITTED).strip().lower()
        if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
            raise OptionError(
                f"kafka.isolation.level={isolation}: write {READ_COMMITTED} or {READ_UNCOMMITTED}"
            )
        own = cls(bootstrap)

        def number(name: str, default: int, least: int) -> int:
            return whole_number(KAFKA_PREFIX + name, settings.get(name), default, least)

        def seconds(name: str, default: float) -> float:
            return number(name, round(default * 1000), 1) / 1000

        result = cls(
            bootstrap,
            client_id=settings.get("client.id") or CLIENT_ID,
            connect_timeout=seconds("socket.connection.setup.timeout.ms", own.connect_timeout),
            timeout=seconds("request.timeout.ms", own.timeout),
            api_timeout=seconds("default.api.timeout.ms", own.api_timeout),
            read_committed=isolation == READ_COMMITTED,
            group_id=settings.get("group.id") or None,
            fetch_max_bytes=number("fetch.max.bytes", own.fetch_max_bytes, 1),
            partition_max_bytes=number("max.partition.fetch.bytes", own.partition_max_bytes, 1),
            fetch_max_wait_ms=number("fetch.max.wait.ms", own.fetch_max_wait_ms, 0),
            settings=tuple(sorted(settings.items())),
        )
        try:
            result.cluster().close()  # it connects when it is first used: this reads addresses
        except ApiError as error:
            reason = str(error).removeprefix("bootstrap: ")
            raise OptionError(f"kafka.bootstrap.servers={bootstrap}: {reason}") from None
        return result

    def cluster(self, *, patience: float | None = None, clock: Clock | None = None) -> Cluster:
        """A client of the cluster; it connects with its first request."""
        return Cluster(
            self.bootstrap,
            client_id=self.client_id,
            connect_timeout=self.connect_timeout,
            timeout=self.timeout,
            patience=min(self.api_timeout, 10.0) if patience is None else patience,
            clock=clock,
        )


def kafka_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The ``kafka.*`` options under the names that Kafka gives them.

    ``kafkaConsumer.pollTimeoutMs`` is not one of them: the dot comes later.
    """
    return {
        name.lower().removeprefix(KAFKA_PREFIX): str(value)
        for name, value in options.items()
        if name.lower().startswith(KAFKA_PREFIX)
    }


# -- the source -----------------------------------------------------------------


class Option(NamedTuple):
    """A row of the reference page."""

    default: str
    queries: str  # both, batch or stream
    meaning: str
    beyond: bool = False  # Spark's own connector does not have it


# Every option of the source, by the name that users write.
SOURCE_OPTIONS = {
    "subscribe": Option("", "both", "topics to read, with commas between"),
    "subscribePattern": Option(
        "", "both", "a regular expression that is found in the names of topics to read; topics "
        "made later are read, too"
    ),
    "assign": Option("", "both", 'partitions to read: `{"topic":[0,1]}`'),
    "startingOffsets": Option(
        "latest for a stream, earliest for a batch", "both",
        "where to begin: `earliest`, `latest`, or by partition "
        '`{"topic":{"0":23,"1":-1,"2":-2}}` (-1 latest, -2 earliest). Beyond Spark: an offset '
        "as on the command line (`-10m`, `-1000`, `@2026-01-01T00:00Z`), also as a string in "
        "the json; `group`: what `kafka.group.id` has committed, and the beginning where it "
        "has committed nothing",
    ),
    "startingTimestamp": Option(
        "", "both", "begin at the first record at or after this time, in ms since 1970; wins "
        "over the two others"
    ),
    "startingOffsetsByTimestamp": Option(
        "", "both", 'the same by partition: `{"topic":{"0":1767225600000}}`; wins over '
        "startingOffsets"
    ),
    "startingOffsetsByTimestampStrategy": Option(
        "error", "both", "if no record is that new: `error` or `latest`"
    ),
    "endingOffsets": Option(
        "latest", "batch", "where a batch ends, exclusive; written as startingOffsets, but not "
        "`group`"
    ),
    "endingTimestamp": Option(
        "", "batch", "a batch ends before the first record at or after this time"
    ),
    "endingOffsetsByTimestamp": Option("", "batch", "the same by partition"),
    "failOnDataLoss": Option(
        "true", "both", "`false`: what is not there any more is left out, and the log says "
        "which offsets of which partition that were, as does `lost` in a stream's `endOffset`"
    ),
    "failOnCorruptBatch": Option(
        "true", "both", "`false`: damaged batches are left out and named in the log", True
    ),
    "maxOffsetsPerTrigger": Option("no limit", "stream", "at most so many offsets in a batch"),
    "maxBytesPerTrigger": Option(
        "1g, no limit with maxOffsetsPerTrigger", "stream",
        "at most about so many bytes in a batch, as they are on the broker's disk (`512m`, "
        "`1g`); `0`: no limit", True,
    ),
    "minOffsetsPerTrigger": Option("", "stream", "no batch before there are so many offsets,"),
    "maxTriggerDelay": Option("15m", "stream", "or before this time has passed"),
    "minPartitions": Option("", "both", "at least so many tasks, if there are offsets enough"),
    "maxRecordsPerPartition": Option("no limit", "both", "at most so many offsets in a task"),
    "maxBytesPerPartition": Option(
        "128m", "both", "at most about so many bytes in a task: one hot partition becomes many "
        "tasks", True,
    ),
    "includeHeaders": Option("false", "both", "add the column `headers`"),
    "columns": Option(
        "all but headers", "both", "the columns to make, with commas between; nothing else is "
        "decoded (Spark cannot tell a Python source which columns a query uses)", True,
    ),
    "kafkaConsumer.pollTimeoutMs": Option(
        "120000", "both", "how long a task waits for records, while brokers restart for example"
    ),
    "fetchOffset.numRetries": Option("3", "both", "how often a question about offsets is repeated"),
    "fetchOffset.retryIntervalMs": Option("1000", "both", "and the pause between"),
    "partition.metadata.cache.ttl.ms": Option(
        "-1", "both", "how long the list of partitions is kept; -1: it is asked for each time"
    ),
    "groupIdPrefix": Option(
        "", "both", "accepted, and without effect: there is no group unless `kafka.group.id` is set"
    ),
    "ranges": Option(
        "false", "both", "`true`: a row for each planned range of offsets (topic, topic_id, "
        "partition, start, end) instead of the records", True,
    ),
}  # fmt: skip

DEFAULT_BYTES_PER_TRIGGER = 1 << 30
DEFAULT_BYTES_PER_TASK = 128 << 20


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asks of the source.  Travels to executors."""

    client: ClientOptions
    topics: Topics
    starting: Where | None = None  # None: latest for a stream, earliest for a batch
    ending: Where | None = None  # None: latest
    fail_on_data_loss: bool = True
    fail_on_corrupt_batch: bool = True
    poll_timeout: float = 120.0
    num_retries: int = 3
    retry_interval: float = 1.0
    metadata_ttl: float | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    max_bytes_per_trigger: int = DEFAULT_BYTES_PER_TRIGGER  # 0: no limit
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = DEFAULT_BYTES_PER_TASK
    columns: Columns = ALL
    ranges: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Everything but what holds only for batches or only for streams."""
        found = Given(options, SOURCE_OPTIONS)
        client = ClientOptions.parse(options, refused=REFUSED_BY_SOURCE, known=CONSUMER | PRODUCER)
        max_offsets = found.number("maxOffsetsPerTrigger", 1)
        min_offsets = found.number("minOffsetsPerTrigger", 1)
        if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
            raise OptionError(
                f"minOffsetsPerTrigger={min_offsets} is above maxOffsetsPerTrigger={max_offsets}: "
                "write the smaller number first"
            )
        max_bytes = found.size("maxBytesPerTrigger")
        if max_bytes is None:
            # Without any limit a first run from the beginning would be one endless batch.
            max_bytes = DEFAULT_BYTES_PER_TRIGGER if max_offsets is None else 0
        starting = parse_where(found, "starting")
        if starting is not None and starting.group and client.group_id is None:
            raise OptionError(
                "startingOffsets=group begins where a group has committed: write its name, "
                '.option("kafka.group.id", "...")'
            )
        ttl = found.number("partition.metadata.cache.ttl.ms", -1)
        if ttl == 0:
            raise OptionError(
                "partition.metadata.cache.ttl.ms=0: write milliseconds, or -1 for no cache"
            )
        own = cls(client, Topics())
        return cls(
            client,
            parse_topics(found),
            starting=starting,
            ending=parse_where(found, "ending"),
            fail_on_data_loss=found.truth("failOnDataLoss", True),
            fail_on_corrupt_batch=found.truth("failOnCorruptBatch", True),
            poll_timeout=found.ms("kafkaConsumer.pollTimeoutMs", own.poll_timeout, 1),
            num_retries=found.number("fetchOffset.numRetries", 0, own.num_retries),
            retry_interval=found.ms("fetchOffset.retryIntervalMs", own.retry_interval, 0),
            metadata_ttl=None if ttl is None or ttl < 0 else ttl / 1000,
            max_offsets_per_trigger=max_offsets,
            min_offsets_per_trigger=min_offsets,
            max_trigger_delay=found.duration("maxTriggerDelay", own.max_trigger_delay),
            max_bytes_per_trigger=max_bytes,
            min_partitions=found.number("minPartitions", 1),
            max_records_per_partition=found.number("maxRecordsPerPartition", 1),
            max_bytes_per_partition=found.size("maxBytesPerPartition", 1)
            or own.max_bytes_per_partition,
            columns=_columns(found),
            ranges=found.truth("ranges", False),
        )

    def for_batch(self) -> SourceOptions:
        """Checks what a batch may not have."""
        nothing = "such a batch would hold no records"
        for where, wrong, name in (
            (self.starting, END, "latest"),
            (self.ending, START, "earliest"),
        ):
            if where is None:
                continue
            if where.position == wrong:
                raise OptionError(f"{where.option}={name}: {nothing}; name another offset")
            for tp, position in (where.each or {}).items():
                if position == wrong:
                    raise OptionError(
                        f"{where.option} says {name} for {tp}: {nothing}; name another offset"
                    )
        if self.starting is not None and self.ending is not None:
            check_pairs(self.starting, self.ending)
        return self

    @staticmethod
    def unused_by_batch(options: Mapping[str, str]) -> list[str]:
        """What was given and means nothing to a batch, and why; Spark's connector accepts it."""
        given = {name.lower(): str(value) for name, value in options.items()}
        result = [
            f"{name} is for streams: this batch is read without it"
            for name, option in SOURCE_OPTIONS.items()
            if option.queries == "stream" and name.lower() in given
        ]
        starting = given.get("startingoffsets", "").strip().lower()
        if "kafka.group.id" in given and starting != "group":
            result.append(
                "kafka.group.id: a batch commits no offsets, and reads those of the group only "
                "with startingOffsets=group"
            )
        return result

    def for_stream(self) -> SourceOptions:
        """Checks what a stream may not have."""
        if self.ending is not None:
            raise OptionError(
                f"{self.ending.option}: a stream has no end; use spark.read, or "
                ".trigger(availableNow=True) to stop at what is there now"
            )
        return self


def _columns(found: Given) -> Columns:
    headers = found.truth("includeHeaders", False)
    text = found.get("columns")
    if text is None:
        return Columns((*COLUMNS, HEADERS)) if headers else ALL
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    names = []
    for part in (row.strip() for row in text.split(",") if row.strip()):
        name = known.get(part.lower())
        if name is None:
            close = difflib.get_close_matches(part.lower(), known, n=1, cutoff=0.5)
            hint = f"did you mean {known[close[0]]}? " if close else ""
            raise OptionError(
                f"columns={text}: there is no column {part}; {hint}"
                f"There are: {', '.join(known.values())}"
            )
        names.append(name)
    if headers:
        names.append(HEADERS)
    if not names:
        raise OptionError(f"columns is empty: write some of {', '.join(known.values())}")
    return Columns(tuple(dict.fromkeys(names)))


# -- the sink -------------------------------------------------------------------

SINK_OPTIONS = {
    "topic": "where records go that have no column topic",
    "includeHeaders": "accepted: a column headers is always written",
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a query asks of the sink.  Travels to executors."""

    client: ClientOptions
    topic: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        found = Given(options, SINK_OPTIONS)
        client = ClientOptions.parse(
            options, refused=REFUSED_BY_SINK, known=CONSUMER | PRODUCER | LIBRDKAFKA
        )
        topic = (found.get("topic") or "").strip() or None
        found.truth("includeHeaders", False)
        return cls(client, topic)
