"""The second half of ``tidelog demo``: with Spark the events go into a lake, and are counted."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.clock import Clock
from tidelog.text import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.tools.demo import Account

WINDOW_SECONDS = 30
_SHOWN = 3  # keywords of each window
_NEEDED = ("pyspark", "pyarrow", "numba")


class Searched(NamedTuple):
    """How often a keyword was searched for in a window of time."""

    window: str
    keyword: str
    searches: int


def can_load() -> bool:
    """Whether the extra ``spark`` is installed."""
    return all(importlib.util.find_spec(name) for name in _NEEDED)


def load_and_query(say: Account, bootstrap: str, topic: str, events: int, clock: Clock) -> None:
    """Load the topic, prove that the load is whole, and ask the lake a question."""
    from tidelog import pipeline

    begun = clock.monotonic()
    spark = pipeline.session("tidelog demo")
    try:
        ready = f"a session of Spark {spark.version} after {clock.monotonic() - begun:.1f} s"
        say("spark", ready, spark=spark.version)
        with tempfile.TemporaryDirectory(prefix="tidelog-lake-") as folder:
            _load(say, spark, bootstrap, topic, folder, events, clock)
            begun = clock.monotonic()
            rows = _top_keywords(pipeline.read_lake(spark, folder))
            took = f"{clock.monotonic() - begun:.1f} s"
            say.windows(f"top keywords in windows of {WINDOW_SECONDS} s, in {took}", rows)
    finally:
        spark.stop()


def _load(
    say: Account,
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    folder: str,
    events: int,
    clock: Clock,
) -> None:
    from tidelog import pipeline

    begun = clock.monotonic()
    report = pipeline.load(
        topic, folder, bootstrap=bootstrap, spark=spark, value="json", by="date(timestamp) as day"
    )
    again = pipeline.load(topic, folder, bootstrap=bootstrap, spark=spark, value="json")
    proof = pipeline.verify(folder, bootstrap=bootstrap)
    if not proof.ok or report.rows != events or again.rows:
        raise say.failed(f"the load is not whole: {proof.problems or report}")
    say(
        "loaded",
        f"{plural(report.rows, 'event')} into {plural(_files(folder), 'Parquet file')}, "
        f"{clock.monotonic() - begun:.1f} s; a second load found nothing new",
        loaded=report.rows,
    )
    offsets = proof.total("offsets")
    say("verified", f"{plural(offsets, 'offset')} in, {proof.total('rows'):,} rows out")


def _files(folder: str) -> int:
    return sum(1 for _ in Path(folder).rglob("*.parquet"))


def _top_keywords(lake: DataFrame) -> list[Searched]:
    """What was searched for most in each window of the events' own time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    window = F.window(F.to_timestamp("date"), f"{WINDOW_SECONDS} seconds")
    counts = lake.groupBy(window.alias("window"), "keyword").count()
    rank = F.row_number().over(Window.partitionBy("window").orderBy(F.desc("count"), "keyword"))
    rows: list[Any] = (
        counts.withColumn("rank", rank)
        .where(F.col("rank") <= _SHOWN)
        .orderBy("window", "rank")
        .select(F.date_format("window.start", "HH:mm:ss"), "keyword", "count")
        .collect()
    )
    return [Searched(*row) for row in rows]
