"""Spark's own Kafka connector and ours, one after the other."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from interop.building import heavy
from support.filling import fill

from tidelog.testing import LocalBroker

pytestmark = heavy("java", "mvn")

# In a process of its own: the connector must be there when the JVM starts.
PROGRAM = """
import sys
import tidelog.pipeline
jars, bootstrap, topic, checkpoint, out = sys.argv[1:]
spark = tidelog.pipeline.session(cores=1, settings={"spark.jars": jars})
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
frame = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=4).load()
query = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start(out).awaitTermination()
print(spark.read.parquet(out).count())
"""


def test_its_checkpoint_is_continued(
    spark: Any, broker: LocalBroker, topic: str, tmp_path: Any, checkpoint: str
) -> None:
    """A query that was run with the format ``kafka`` goes on with the format ``tidelog``."""
    from bench.kafka_jars import NoKafka
    from bench.spark_jars import connector

    try:
        jars = ",".join(map(str, connector()))
    except NoKafka as reason:
        pytest.skip(str(reason))
    fill(broker.bootstrap, topic, [b"%d" % i for i in range(10)], partitions=2)
    out = str(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, jars, broker.bootstrap, topic, checkpoint, out],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "10\n", done.stderr
    fill(broker.bootstrap, topic, [b"%d" % i for i in range(10, 15)], partitions=2, make=False)
    frame = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")  # which the checkpoint wins over
        .load()
    )
    query = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start(out).awaitTermination()
    values = [int(row.value) for row in spark.read.parquet(out).select("value").collect()]
    assert sorted(values) == list(range(15))
