"""What PySpark needs further packages for, with topics: the extra ``spark`` brings them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tidelog.testing import LocalBroker

pytestmark = pytest.mark.slow


class Count(StatefulProcessor):
    """How many records of a key there were."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self._count.get()
        number = (known[0] if known else 0) + sum(1 for _ in rows)
        self._count.update((number,))
        yield Row(key=key[0], n=number)

    def close(self) -> None:
        pass


def test_to_pandas(filled: Callable[..., str], read: Callable[..., Any]) -> None:
    found = read(filled(["a", "b"])).select("offset", "value").toPandas()
    assert found.to_dict("list") == {"offset": [0, 1], "value": [b"a", b"b"]}


def test_transform_with_state(
    spark: Any, broker: LocalBroker, filled: Callable[..., str], checkpoint: str
) -> None:
    topic = filled([{"key": b"%d" % (i % 2), "value": b"x"} for i in range(5)])
    records = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    counts = (
        records.selectExpr("string(key) as key")
        .groupBy("key")
        .transformWithState(Count(), "key string, n bigint", "update", "none")
    )
    query = counts.writeStream.format("memory").queryName("counts").outputMode("update")
    query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(map(tuple, spark.table("counts").collect())) == [("0", 3), ("1", 2)]
