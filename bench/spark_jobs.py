"""What Spark is asked to do, by format: ``tidelog``, or ``kafka`` for Spark's own connector.

Each job says how long it took, from naming the topic to the end of the last task: planning is
in it, the start of the session is not.  Both formats run in one session, in turn.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.system import memory_kib
from bench.wire import BenchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONSUMER = {"fetch.queue.backoff.ms": 10, "queued.min.messages": 1_000_000}  # as in ``clients``


@contextlib.contextmanager
def session(jars: Sequence[Path]) -> Iterator[SparkSession]:
    """As users get it, with Spark's own connector beside."""
    import tidelog.pipeline

    settings = {"spark.jars": ",".join(map(str, jars))} if jars else {}
    spark = tidelog.pipeline.session("bench", settings=settings)
    try:
        yield spark
    finally:
        with contextlib.suppress(Exception):  # an interrupted call leaves its socket unusable
            spark.stop()


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of one format."""

    spark: SparkSession
    form: str
    bootstrap: str
    folder: Path  # for what they write

    def read(self, topic: str, **options: Any) -> DataFrame:
        reader = self.spark.read.format(self.form)
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def count(self, topic: str) -> int:
        return int(self.read(topic).count())

    def noop(self, topic: str, **options: Any) -> float:
        """Read all columns and let them go."""
        started = time.perf_counter()
        self.read(topic, **options).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    def load(self, topic: str, rows: int, **options: Any) -> float:
        """What a user does for Parquet files of a topic: with tidelog that is a lake load."""
        if self.form != "tidelog":
            return self.parquet(topic, rows, **options)
        import tidelog.pipeline

        with self._folder() as target:
            started = time.perf_counter()
            tidelog.pipeline.load(topic, target, bootstrap=self.bootstrap, spark=self.spark)
            seconds = time.perf_counter() - started
            check_rows(target, rows)
            return seconds

    def parquet(self, topic: str, rows: int, **options: Any) -> float:
        """Read all columns into Parquet files that Spark writes."""
        with self._folder() as target:
            started = time.perf_counter()
            self.read(topic, **options).write.parquet(str(target))
            seconds = time.perf_counter() - started
            check_rows(target, rows)
            return seconds

    def stream(self, topic: str, rows: int, batches: int) -> float:
        """Everything that is there, in several micro-batches, into nothing."""
        progress, seconds = self._available_now(topic, -(-rows // batches))
        check(self.form, sum(row["numInputRows"] for row in progress), rows)
        return seconds

    def small_batch(self, topic: str) -> float:
        """Milliseconds of one micro-batch with one record, in the middle of a query's."""
        progress, _ = self._available_now(topic, 1)
        times = [row["durationMs"]["triggerExecution"] for row in progress if row["numInputRows"]]
        if len(times) < 5:
            raise BenchError(f"{self.form}: only {len(times)} micro-batches")
        return float(statistics.median(times[2:]))  # the first ones also start the query

    def _available_now(self, topic: str, limit: int) -> tuple[list[dict[str, Any]], float]:
        reader = self.spark.readStream.format(self.form)
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        with self._folder() as checkpoint:
            started = time.perf_counter()
            frame = reader.option("maxOffsetsPerTrigger", limit).load()
            writer = frame.writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            query.awaitTermination()
            seconds = time.perf_counter() - started
            return [dict(row) for row in query.recentProgress], seconds

    def write(self, topic: str, value: int, rows: int) -> float:
        """Rows that Spark makes up, with a key, into a topic."""
        padding = "x" * (value - 10)
        frame = self.spark.range(10**9, 10**9 + rows).selectExpr(
            "cast(cast(id as string) as binary) as key",
            f"cast(concat(cast(id as string), '{padding}') as binary) as value",
        )
        writer = frame.write.format(self.form).option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap)
        started = time.perf_counter()
        writer.mode("append").save()
        return time.perf_counter() - started

    def plan(self, topic: str) -> tuple[float, int]:
        """Until Spark knows its tasks; none is run."""
        started = time.perf_counter()
        tasks = self.read(topic)._jdf.queryExecution().toRdd().getNumPartitions()
        return time.perf_counter() - started, int(tasks)

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        """A name for a folder, which is gone at the end."""
        parent = Path(tempfile.mkdtemp(prefix=self.form, dir=self.folder))
        try:
            yield parent / "made"
        finally:
            shutil.rmtree(parent, ignore_errors=True)


def check(who: str, got: int, rows: int) -> None:
    if got != rows:
        raise BenchError(f"{who}: {got} rows instead of {rows}")


def check_rows(folder: Path, rows: int) -> None:
    """Parquet files say how many rows they have."""
    import pyarrow.parquet as pq

    got = sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))
    check(str(folder), got, rows)


def consume(bootstrap: str, topic: str, partitions: int, rows: int) -> float:
    """The same topic by one confluent-kafka consumer, without Spark."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    started = time.perf_counter()
    consumer = Consumer({**settings, **_CONSUMER})
    try:
        consumer.assign([TopicPartition(topic, i, 0) for i in range(partitions)])
        got = size = 0
        while got < rows:
            messages = consumer.consume(min(10_000, rows - got), timeout=10)
            if not messages:
                raise BenchError(f"confluent-kafka got {got} of {rows} records")
            got += len(messages)
            for message in messages:
                size += len(message.value() or b"")
        return time.perf_counter() - started
    finally:
        consumer.close()


# -- memory ---------------------------------------------------------------------


def python_workers() -> list[int]:
    """The Python processes that our Spark has started."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                parents[int(path.name)] = int(fields[1])
    return [pid for pid in parents if _is_below(pid, parents) and _is_worker(pid)]


def _is_below(pid: int, parents: Mapping[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def _is_worker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"\0pyspark.daemon\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def peak_mib(work: Callable[[], object]) -> float:
    """The most memory that one of the Python processes had meanwhile."""
    for pid in python_workers():
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # from now on a peak is a new one
    work()
    return max(memory_kib(pid, "VmHWM") for pid in python_workers()) / 1024
