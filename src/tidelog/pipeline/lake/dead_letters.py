"""Records that did not decode: kept with the load, and sent to a topic if one is named.

They are published in the manifest of their load, in Parquet, with key, value, headers and time
as they were, where they came from, and the reason.  A dead-letter topic is filled from there
after the load is published, and the ledger notes when that is done.  If the process dies in
between, the next load looks into the topic for those that are there already, by the header
``tidelog.origin``, and sends the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.client.admin import create_topics
from tidelog.client.partitions import extents
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.ledger import SENT, Ledger, Manifest, open_ledger
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import HEADERS, Columns, OffsetRange
from tidelog.pipeline.reading import read_range
from tidelog.topic_partition import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN, REASON = "tidelog.origin", "tidelog.reason"


def prepare_topic(client: ClientOptions, topic: str) -> dict[str, Any]:
    """Make the topic if it is not there; where it ends now, before any letter of this load."""
    with client.cluster() as cluster:
        view = cluster.metadata([topic]).topics[topic]
        if view.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            made = create_topics(cluster, [NewTopic(topic, 1)])[topic]
            if isinstance(made, ApiError) and made.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise made
            return {"topic": topic, "ends": {}}
        tps = [TopicPartition(topic, row.index) for row in view.partitions]
        ends = extents(cluster, tps)
    return {"topic": topic, "ends": {str(row.partition): log.end for row, log in ends.items()}}


def send_unsent(ledger: Ledger, client: ClientOptions, root: Path, *, again: bool) -> int:
    """Send the letters of published loads to their topics; ``again`` if some may be there."""
    sent = 0
    for number in ledger.state.unsent:
        manifest = ledger.manifest(number)
        assert manifest is not None
        target = manifest.settings["dead_letters"]
        there = _origins(client, target["topic"], target["ends"]) if again else set()
        sent += _send(client, target["topic"], letters_of(manifest, root), there)
        ledger.publish(Manifest(SENT, sent=(number,)))
    return sent


def letters_of(manifest: Manifest, root: Path) -> Iterator[dict[str, Any]]:
    """The rows of a load that did not decode; their times are microseconds."""
    for entry in manifest.letters:
        with pq.ParquetFile(root / entry.path) as file:
            for batch in file.iter_batches(1000):
                index = batch.schema.get_field_index("timestamp")
                # As a number: Python has no dates after the year 9999, and records have.
                moments = batch.column(index).cast(pa.int64())
                yield from batch.set_column(index, "timestamp", moments).to_pylist()


def _origins(client: ClientOptions, topic: str, ends: Mapping[str, int]) -> set[bytes]:
    """Which letters the topic has got since the load began."""
    with client.cluster() as cluster:
        view = cluster.topics([topic])[topic]
        logs = extents(cluster, [TopicPartition(topic, row.index) for row in view.partitions])
    found = set()
    for tp, log in logs.items():
        start = max(log.start, ends.get(str(tp.partition), 0))
        part = OffsetRange(*tp, start, log.end, view.topic_id)
        for batch in read_range(client, part, Columns((HEADERS,)), on_loss=lambda _: None):
            for headers in batch.column(0).to_pylist():
                found |= {row["value"] for row in headers or () if row["key"] == ORIGIN}
    return found


def _send(
    client: ClientOptions, topic: str, letters: Iterator[dict[str, Any]], there: set[bytes]
) -> int:
    from confluent_kafka import Producer

    settings = {
        "bootstrap.servers": client.bootstrap,
        "client.id": client.client_id,
        "enable.idempotence": True,
        "linger.ms": 20,
    }
    producer = Producer(settings)
    errors: list[Any] = []
    sent = 0
    now = SystemClock().now_ms()

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(error)

    for row in letters:
        origin = f"{row['topic']}-{row['partition']}@{row['offset']}".encode()
        if origin in there:
            continue
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        headers += [(ORIGIN, origin), (REASON, row["reason"].encode())]
        # A broker may refuse a time that is still to come; the table has it as it was.
        milliseconds = min(max(0, (row["timestamp"] or 0) // 1000), now)
        while True:
            try:
                producer.produce(
                    topic,
                    row["value"],
                    row["key"],
                    headers=headers,
                    timestamp=milliseconds,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        sent += 1
    producer.flush()
    if errors:
        raise LakeError(
            f"the load is published, but its dead letters did not get to topic {topic!r}: "
            f"{errors[0]}; the next load sends them"
        )
    return sent


def list_dead_letters(to: str | Path) -> Iterator[dict[str, Any]]:
    """All records that did not decode, load by load, with the number of the load; no Spark."""
    ledger = open_ledger(to)
    ledger.settle_all()
    for manifest in ledger.manifests():
        for row in letters_of(manifest, Path(to)):
            yield row | {"load": manifest.number}


def read_dead_letters(spark: SparkSession, to: str | Path) -> DataFrame:
    """All records that did not decode: key, value, headers, origin, ``reason`` and ``load``."""
    from pyspark.sql.types import StructType

    from tidelog.pipeline.lake.schemas import to_spark_json
    from tidelog.pipeline.lake.writing import LETTER_SCHEMA

    ledger = open_ledger(to)
    ledger.settle_all()
    schema = StructType.fromJson(to_spark_json(LETTER_SCHEMA))
    paths = [str(Path(to).absolute() / path) for path in ledger.state.letters]
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*paths)
